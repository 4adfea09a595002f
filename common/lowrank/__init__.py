"""Gradients as factors: captured, reduced, packed and sent by a method; usable without a run."""
