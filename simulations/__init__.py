"""Simulation of many sites on one machine."""
