"""A site's agent: it stays connected to a service, decides about offered runs, and trains each in its own process."""
