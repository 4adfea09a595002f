"""Formatting of numbers, names and sentences in a report."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from decimal import Decimal
from functools import partial
from typing import Literal, NamedTuple

from rankdad.common.errors import counted
from rankdad.common.errors import listed as first_of
from rankdad.common.metrics.intervals import Interval
from rankdad.common.metrics.paired_sums import Difference

NAMES = {
    "auc": "AUC",
    "auc_within": "AUC within hospitals",
    "accuracy": "accuracy",
    "loss": "loss",
    "balanced_accuracy": "balanced accuracy",
    "f1": "F1",
    "calibration_error": "calibration error",
    "mae": "MAE",
    "r2": "R²",
    "pearson_r": "Pearson's r",
    "perplexity": "perplexity",
    "bits_per_byte": "bits per byte",
}
Code = Literal[
    "predicts", "studied", "events", "label", "mae", "auc", "auc-within", "hardly-found", "class-untested", "accuracy",
    "bits-per-byte", "brier", "brier-no-smaller", "r2", "r2-no-smaller", "between",
    "upside-down", "too-far-apart", "too-close", "spread-right", "spread-unknown", "too-high", "too-low",
    "calibration-by-hospital", "calibration-of-many", "hospitals-none", "hospitals-all",
    "hospitals-differ", "hospitals-off", "hospitals-cancel", "hospitals-upside-down",
    "hospitals-too-far-apart", "hospitals-too-close",
    "reference", "reference-within", "reference-everywhere", "everywhere-misleads", "in-folds", "conditions",
    "own-model-better", "own-model-better-by-chance", "own-model-no-better", "no-own-model", "same-model", "no-linear",
    "unsolved", "kept-unsolved", "reference-in-part",
    "opposite-effects", "effects-not-compared",
    "better-than-guess", "guess-undecided", "worse-than-guess", "guess-without-interval",
    "chance", "below-chance", "site-untested",
    "no-other-hospital", "hospitals-vary", "kept-untested", "not-equal", "no-ranking", "recalibrate", "no-cause",
    "repeats-texts",
]  # fmt: skip
WARNINGS = {
    "weights-made-equal-after-a-comparison": "adopted the aggregator's weights after a comparison",
    "one-class": "has samples of one class alone: no AUC, and a balanced accuracy of that class only",
    "fewer-samples-than-folds": "has fewer samples, or parts of them, than there are folds: some folds test none there",
    "missing-classes": "has no samples of some class",
    "exact-solver-not-allowed": "has a policy that does not allow the sums of an exact solution",
    "replay-differs": "computed other updates after a restart than before: the recorded ones were applied",
    "left-out-of-a-test": "did not take part in a test: its samples are in none of that test's metrics",
    "left-out-of-a-comparison": "took part in a test but not in the comparison after it: its differences are unknown",
    "rare-values": "replaced values that too few of its patients have by common ones (min_level)",
    "rows-left-out": "left out rows that are incomplete or wait for more patients; its own log says how many",
    "reader-differs": "reads its data with another package or version than the first site",
    "two-processes": "had two processes in the run, whose samples may differ: does another use its name and token?",
    "sets-too-small-to-evaluate": (
        "has validation or test samples whose figures its policy withholds: they are too few, or too much has been "
        "disclosed about them"
    ),
}
MAX_NAMES = 8  # in a sentence
NONE = "–"  # a missing figure


count = counted  # for templates


def number(value: float | None, digits: int = 3) -> str:
    """Format a number with fixed decimals; – for None, NaN and infinity."""
    return NONE if value is None or not math.isfinite(value) else f"{value:z,.{digits}f}".replace("-", "−")


class Sentence(NamedTuple):
    """A sentence of the verdict with its code, and hospitals with linked figures."""

    code: Code
    text: str
    sites: tuple[str, ...] = ()


def percent(share: float, digits: int = 0) -> str:
    """Format a share as a percentage; a non-breaking space keeps the sign on its line."""
    return f"{number(100 * share, digits)}\N{NO-BREAK SPACE}%"


def duration(seconds: float) -> str:
    """Format seconds in a readable unit."""
    if seconds < 120:
        return f"{seconds:.1f} s"
    minutes, hours = seconds / 60, seconds / 3600
    return f"{minutes:.1f} min" if minutes < 120 else f"{hours:.1f} h"


def significant(value: float | None, digits: int = 3) -> str:
    """Format a number to significant digits, without an exponent; – for None, NaN and infinity."""
    if value is None or not math.isfinite(value):
        return NONE
    return f"{Decimal(f'{value:.{digits}g}'):,f}".replace("-", "−")


def span(low: float, high: float, written: Callable[[float], str]) -> str:
    """Format an interval with the given formatter."""
    return f"{written(low)} to {written(high)}"


def between(low: float, high: float, digits: int = 3) -> str:
    """Format an interval with fixed decimals."""
    return span(low, high, partial(number, digits=digits))


def with_interval(value: float | None, found: Interval | Difference | None, digits: int = 3) -> str:
    """Format a figure, followed by its interval in brackets if there is one."""
    return number(value, digits) + (f" ({between(found.low, found.high, digits)})" if found else "")


def listed(names: Sequence[str]) -> str:
    """Join names in a sentence, the first few of many."""
    return first_of(names, MAX_NAMES)


def warned(kind: str, sites: Sequence[str], most: int) -> str:
    """Say what hospitals warn of.

    Args:
        kind: of warning.
        sites: the hospitals.
        most: of them to name.
    """
    meaning = WARNINGS.get(kind, f"warns: {kind.replace('-', ' ')}")
    meaning = meaning if len(sites) == 1 else meaning.replace("has ", "have ", 1).replace("warns", "warn", 1)
    return f"{count(len(sites), 'hospital')} {meaning} ({first_of(sites, most)})"
