"""The site: the process that runs next to a hospital's data."""
