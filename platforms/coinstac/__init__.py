"""The computation on COINSTAC: form, nodes, and the service that the platform connects to."""
