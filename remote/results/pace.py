"""The pace of a run, without the waiting of an outage."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from statistics import median_low

LATEST = 50  # rounds of a kind that count
OUTAGE = 10.0  # times the median: a round that took longer has waited for a site, the aggregator or a person


def pace(counts: Mapping[str, int], latest: Mapping[str, Sequence[float]]) -> float:
    """Return the seconds of a step with all rounds that come with it; 0 before the first.

    Args:
        counts: completed rounds by kind and exchange, such as "STEP/0".
        latest: seconds of the last of them.
    """
    return sum(count * _usual(latest[kind]) for kind, count in counts.items()) / max(1, counts.get("STEP/0", 0))


def _usual(seconds: Sequence[float]) -> float:
    most = OUTAGE * median_low(seconds)
    usual = [one for one in seconds if one <= most]
    return sum(usual) / len(usual)
