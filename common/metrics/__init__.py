"""Metrics from sums that add up over batches, sites and folds.

A site reveals counts and sums over its samples, but no single score or label. For very few samples, sums reveal nearly
as much.
"""

from __future__ import annotations

from common.metrics.auc import BINS
from common.metrics.intervals import Interval, intervals
from common.metrics.sites import Spread, mean_over_sites, within_sites
from common.metrics.summary import Metrics, calibration, confusion, summarise
from common.metrics.sums import Tally, empty, tally
from common.metrics.tally_codec import pack_tally, tally_bytes, unpack_tally

__all__ = [
    "BINS",
    "Interval",
    "Metrics",
    "Spread",
    "Tally",
    "calibration",
    "confusion",
    "empty",
    "intervals",
    "mean_over_sites",
    "pack_tally",
    "summarise",
    "tally",
    "tally_bytes",
    "unpack_tally",
    "within_sites",
]
