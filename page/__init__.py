"""The live page about a run: what is kept of it, what changes, who may see it; for aggregators and sites."""
