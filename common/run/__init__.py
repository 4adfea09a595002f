"""The state of a run, the same at every site and at the aggregator."""
