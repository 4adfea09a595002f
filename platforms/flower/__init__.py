"""Flower: a ServerApp and a ClientApp, which carry the calls of a run's sites."""

ENVIRONMENT = "RANKDAD_FLOWER"  # names a folder with server.json and, for simulations, a file for each site
SERVER = "server"
