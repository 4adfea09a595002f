"""A service: a permanent aggregator with a queue of runs from several owners."""
