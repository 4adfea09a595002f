"""The aggregator: the process that all sites talk to. It sees no sample."""
