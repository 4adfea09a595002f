"""Attacks on runs by an aggregator, a member or an owner, and the single patients that they find."""
