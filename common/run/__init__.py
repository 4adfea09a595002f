"""What a run is made of, the same at every site and at the aggregator."""
