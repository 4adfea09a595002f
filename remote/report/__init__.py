"""The report about a run, rendered from its results."""
