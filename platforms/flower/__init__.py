"""Flower: a ServerApp and a ClientApp, which carry the calls of a run's sites."""

ENVIRONMENT, SERVER = "RANKDAD_FLOWER", "server"  # names a folder with server.json and, in simulations, sites' files
