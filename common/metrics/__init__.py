"""Metrics from sums over batches, sites and folds.

A site discloses counts and sums over its samples, among them how many samples with and without each outcome have a
score in each of 1,000 bins. No row identifies its sample, but for few samples these counts are their scores and labels
to three digits.
"""
