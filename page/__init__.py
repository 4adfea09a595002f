"""The live page about a run or service, for aggregators and sites."""
