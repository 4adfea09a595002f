"""Reductions of a factor to few rows, each a function from a matrix to a `Factor`."""
