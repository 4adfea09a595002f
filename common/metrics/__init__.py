"""Metrics from sums that add up over batches, sites and folds.

A site reveals counts and sums over its samples: among them how many samples with and without each outcome have a score
in which of 1,000 bins. No row says which sample it is, but of few samples in a set these counts are their scores and
labels to three digits.
"""
