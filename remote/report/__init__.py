"""The report about a run: its results read from files, and the page and plots that show them."""
