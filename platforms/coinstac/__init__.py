"""The computation on COINSTAC: its form, its two nodes, the service that the platform talks to."""
