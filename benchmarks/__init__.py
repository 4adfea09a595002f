"""Benchmarks: every figure of the documentation is printed by one of them."""
