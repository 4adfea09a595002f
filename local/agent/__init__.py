"""A site's agent: it stays, is offered runs, decides by the site's rules, and trains each in a process of its own."""
