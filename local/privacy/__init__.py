"""A site's secret, and its disclosure log."""
