"""`python -m benchmarks paired`: intervals of differences beside the bootstrap, and how often a verdict errs."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import pandas as pd
from rich.console import Console
from rich.table import Table

from benchmarks.paired import data
from benchmarks.paired.null import Rate, drawn_runs, rates, spec_of
from benchmarks.paired.widths import Width, widths

APART = 0.1  # of an interval's width from the bootstrap's, at most
ERROR, ENOUGH = (0.04, 0.06), 5000  # type I error, and of how many data sets; of fewer its own interval comes to it
ROWS = 200  # that each null data set is tested on
NULLS: dict[str, dict[str, Any]] = {"AUC, two classes": data.CLASSES["task"], "MAE, a number": data.NUMBER["task"]}


@dataclass(frozen=True)
class Found:
    """What was measured.

    Args:
        widths: of the intervals of every data set.
        rates: of the verdicts on each kind of null.
    """

    widths: list[Width]
    rates: dict[str, list[Rate]]

    @property
    def holds(self) -> bool:
        """Whether all intervals are as wide as the bootstrap's, and verdicts err as often as they say."""
        verdicts = [next(rate for rate in found if rate.metric == "verdict") for found in self.rates.values()]
        low, high = ERROR
        narrow = all(abs(one.ratio - 1) <= APART for one in self.widths)
        of_few = [0.0 if one.tried >= ENOUGH else one.error for one in verdicts]
        return narrow and all(
            low - slack <= one.share <= high + slack for one, slack in zip(verdicts, of_few, strict=True)
        )


def data_sets(shared: Path) -> Iterator[tuple[str, Callable[[], list[pd.DataFrame]], dict[str, Any]]]:
    """Yield the data sets' names, tables and tasks, those that come with scikit-learn first."""
    yield "breast cancer", data.breast_cancer, data.CLASSES
    yield "diabetes", data.diabetes, data.NUMBER
    yield "digits", data.digits, data.CLASSES
    yield "visits", data.visits, data.CLASSES
    if (shared / "heart").is_dir():
        yield "heart", partial(data.heart, shared / "heart"), data.CLASSES


def bench_paired(count: int, draws: int, sets: int | None, shared: Path, console: Console) -> Found:
    """Measure and print both.

    Args:
        count: null data sets of each kind.
        draws: of the bootstrap.
        sets: how many of the data sets; all without it.
        shared: folder of the data that come with no package.
        console: where to print.
    """
    measured = []
    for name, tables, task in list(data_sets(shared))[:sets]:
        with tempfile.TemporaryDirectory() as folder:
            spec, read = data.written(tables(), Path(folder) / "data", task)
            measured += widths(name, spec, read, Path(folder) / "run", draws)
    table = Table("data", "less", "metric", "difference", "interval ±", "bootstrap ±", "ratio")
    for one in measured:
        figures = (f"{one.value:+.4f}", f"{one.half:.4f}", f"{one.bootstrap:.4f}", f"{one.ratio:.3f}")
        table.add_row(one.data, one.rival, one.metric, *figures)
    console.print(f"Intervals of differences in 3 folds beside the paired bootstrap of {draws:,} draws")
    console.print(table)
    found, shown = dict[str, list[Rate]](), Table("null", "by", "data sets", "found a difference", "±")
    for kind, task in NULLS.items():
        found[kind] = rates(drawn_runs(spec_of(task), count, ROWS, 0))
        for rate in found[kind]:
            shown.add_row(kind, rate.metric, f"{rate.tried:,}", f"{100 * rate.share:.2f} %", f"{100 * rate.error:.2f}")
    console.print(f"Two models that are equally good, tested on the same {ROWS} rows")
    console.print(shown)
    return Found(measured, found)
