"""Drivers, which carry a trainer's messages."""
