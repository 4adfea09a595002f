"""Flower: a ServerApp and a ClientApp, which carry the calls of a run's sites."""
