"""`python -m benchmarks paired`: intervals of differences beside the bootstrap, and how often a verdict errs."""

from __future__ import annotations

import math
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import pandas as pd
from rich.console import Console
from rich.table import Table

from benchmarks.paired import data, folds
from benchmarks.paired.null import Rate, Z, calls, drawn_runs, rates, spec_of
from benchmarks.paired.widths import Width, widths

APART = 0.1  # of an interval's width from the bootstrap's, at most
ERROR, ENOUGH = (0.04, 0.06), 5000  # type I error, and of how many data sets; of fewer its own interval comes to it
IN_FOLDS, ENOUGH_RUNS = (0.035, 0.065), 1000  # the same of cross-validated runs
ROWS = 200  # that each null data set is tested on
NULLS: dict[str, dict[str, Any]] = {"AUC, two classes": data.CLASSES["task"], "MAE, a number": data.NUMBER["task"]}
FEW, MANY = 3, 20  # inputs of a model; with many, its quality depends on the training rows


@dataclass(frozen=True)
class Found:
    """What was measured.

    Args:
        widths: of the intervals of every data set.
        rates: of the verdicts on each kind of null.
        in_folds: of those of cross-validated runs whose models have few inputs.
    """

    widths: list[Width]
    rates: dict[str, list[Rate]]
    in_folds: dict[str, list[Rate]]

    @property
    def holds(self) -> bool:
        """Whether all intervals are as wide as the bootstrap's, and verdicts err as often as they say."""
        narrow = all(one.within(APART) for one in self.widths)
        return narrow and _err(self.rates, ERROR, ENOUGH) and _err(self.in_folds, IN_FOLDS, ENOUGH_RUNS)


def _err(rates: dict[str, list[Rate]], between: tuple[float, float], enough: int) -> bool:
    """Tell whether verdicts err as often as they say; of few data sets, as far as these can tell."""
    verdicts = [rate for found in rates.values() for rate in found if rate.metric == "verdict"]
    low, high = between
    slack = [0.0 if one.tried >= enough else Z * math.sqrt(high * (1 - high) / one.tried) for one in verdicts]
    return all(low - more <= one.share <= high + more for one, more in zip(verdicts, slack, strict=True))


def data_sets(shared: Path) -> Iterator[tuple[str, Callable[[], list[pd.DataFrame]], dict[str, Any]]]:
    """Yield the data sets' names, tables and tasks, those that come with scikit-learn first."""
    yield "breast cancer", data.breast_cancer, data.CLASSES
    yield "diabetes", data.diabetes, data.NUMBER
    yield "digits", data.digits, data.CLASSES
    yield "visits", data.visits, data.CLASSES
    if (shared / "heart").is_dir():
        yield "heart", partial(data.heart, shared / "heart"), data.CLASSES
    if (folder := shared / "abide_freesurfer").is_dir():
        for label, task in (("sex", data.CLASSES), ("autism", data.CLASSES), ("age", data.NUMBER)):
            yield f"ABIDE, {label}", partial(data.abide, folder, label), task


def bench_paired(
    count: int, draws: int, sets: int | None, runs: int, shared: Path, folder: Path, console: Console
) -> Found:
    """Measure and print all.

    Args:
        count: null data sets of each kind.
        draws: of the bootstrap.
        sets: how many of the data sets; all without it.
        runs: null runs that are cross-validated, of each kind.
        shared: folder of the data that come with no package.
        folder: of what is known of these runs, which goes on after an interruption.
        console: where to print.
    """
    measured = []
    for name, tables, task in list(data_sets(shared))[:sets]:
        with tempfile.TemporaryDirectory() as written:
            spec, read = data.written(tables(), Path(written) / "data", task)
            measured += widths(name, spec, read, Path(written) / "run", draws)
    table = Table("data", "less", "metric", "difference", "interval ±", "bootstrap ±", "ratio")
    for one in measured:
        figures = (f"{one.value:+.4f}", f"{one.half:.4f}", f"{one.bootstrap:.4f}", f"{one.ratio:.3f}")
        table.add_row(one.data, one.rival, one.metric, *figures)
    console.print(f"Intervals of differences in 3 folds beside the paired bootstrap of {draws:,} draws")
    console.print(table)
    found = {kind: rates(map(calls, drawn_runs(spec_of(task), count, ROWS, 0))) for kind, task in NULLS.items()}
    _print(f"Two models that are equally good, tested on the same {ROWS} rows", found, console)
    folder.mkdir(parents=True, exist_ok=True)
    in_folds: dict[int, dict[str, list[Rate]]] = {}
    for inputs in (FEW, MANY):
        in_folds[inputs] = {
            kind: folds.fold_rates(folds.spec_of(task, inputs), runs, folder / f"{kind[:3]}-{inputs}.jsonl".lower())
            for kind, task in NULLS.items()
        }
        what = f"Two exact solutions on exchangeable sets of {inputs} inputs, {folds.FOLDS}-fold"
        _print(what, in_folds[inputs], console)
    return Found(measured, found, in_folds[FEW])


def _print(what: str, found: dict[str, list[Rate]], console: Console) -> None:
    shown = Table("null", "by", "data sets", "found a difference", "±")
    for kind, all_ in found.items():
        for rate in all_:
            shown.add_row(kind, rate.metric, f"{rate.tried:,}", f"{100 * rate.share:.2f} %", f"{100 * rate.error:.2f}")
    console.print(what)
    console.print(shown)
