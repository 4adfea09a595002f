"""A relay between sites and aggregator: slow links and faults."""
