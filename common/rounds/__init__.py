"""Kinds of rounds, one file each: when they are due, contributions, updates and their effects."""
