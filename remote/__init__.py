"""The aggregator: the process that all sites connect to. It never receives samples."""
