"""Kinds of rounds, a file each: what is due, what a site contributes, and what comes of it."""
