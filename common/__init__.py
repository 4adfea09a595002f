"""Specification, mathematics and protocol shared by sites and aggregator, without sockets, clocks or processes."""

__version__ = "0.1.0"
