"""A service: an aggregator that stays up, with a queue of runs that owners submit."""
