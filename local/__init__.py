"""A site: the process that stands next to a hospital's data."""
