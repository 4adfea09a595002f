"""Metrics from sums that add up over batches, sites and folds.

A site reveals counts and sums over its samples: among them how many samples with and without each outcome have a score
in which of 1,000 bins. No row says which sample it is, but of few samples in a set these counts are their scores and
labels to three digits.
"""

from __future__ import annotations

from rankdad.common.metrics.agreement import agreement, cells
from rankdad.common.metrics.auc import BINS
from rankdad.common.metrics.clusters import Pairs
from rankdad.common.metrics.intervals import Interval, intervals
from rankdad.common.metrics.monitoring import measured_on, monitored
from rankdad.common.metrics.repeats import mean_intervals, mean_metrics, mean_tally, mean_values
from rankdad.common.metrics.risk import Risks, mean_risk_summary, risk_summary
from rankdad.common.metrics.site_calibration import calibration_by_site, expected
from rankdad.common.metrics.sites import Spread, mean_over_sites, site_alone, within_sites
from rankdad.common.metrics.summary import Metrics, calibration, confusion, summarise
from rankdad.common.metrics.sums import Tally, default_log_odds, empty, parts, same_labels, tally
from rankdad.common.metrics.tally_codec import (
    monitoring_bytes,
    pack_tally,
    tally_bytes,
    unpack_monitoring,
    unpack_tally,
)

__all__ = [
    "BINS",
    "Interval",
    "Metrics",
    "Pairs",
    "Risks",
    "Spread",
    "Tally",
    "agreement",
    "calibration",
    "calibration_by_site",
    "cells",
    "confusion",
    "default_log_odds",
    "empty",
    "expected",
    "intervals",
    "mean_intervals",
    "mean_metrics",
    "mean_over_sites",
    "mean_risk_summary",
    "mean_tally",
    "mean_values",
    "measured_on",
    "monitored",
    "monitoring_bytes",
    "pack_tally",
    "parts",
    "risk_summary",
    "same_labels",
    "site_alone",
    "summarise",
    "tally",
    "tally_bytes",
    "unpack_monitoring",
    "unpack_tally",
    "within_sites",
]
