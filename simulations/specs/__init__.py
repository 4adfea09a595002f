"""Ready-made files for `rankdad simulate`."""
