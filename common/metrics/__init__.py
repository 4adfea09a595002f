"""Metrics from sums that add up over batches, sites and folds.

A site reveals counts and sums over its samples, but no single score or label. For very few samples, sums reveal nearly
as much.
"""

from __future__ import annotations

from rankdad.common.metrics.auc import BINS
from rankdad.common.metrics.intervals import Interval, intervals
from rankdad.common.metrics.sites import Spread, mean_over_sites, within_sites
from rankdad.common.metrics.summary import Metrics, calibration, confusion, summarise
from rankdad.common.metrics.sums import Tally, empty, tally
from rankdad.common.metrics.tally_codec import pack_tally, tally_bytes, unpack_tally

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
