"""What a run's directory holds, read back: spec, plan, summary and tables, however the run ended."""

from __future__ import annotations

import io
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

import numpy as np
import pandas as pd
from pydantic import Field

from common.columns import Labelled
from common.documents import Part, load_json, validate
from common.errors import UserError, one_line
from common.metrics import Interval, Spread
from common.spec import RunSpec
from common.tasks import Classification, Regression

TEXT = ("split", "site", "left_out")
KEYS = ("fold", "epoch", "split", "site", "train_loss")  # what is no metric of a split
METRICS = (*KEYS, "samples", "loss")
SITES = ("site", "samples")
RANKED = ("auc", "pearson_r")  # a guess that is the same for all samples of a site and fold has none there
LABEL_CELLS = ("true negatives", "false positives", "false negatives", "true positives")
BASELINE = "baseline_"  # before the name of a metric of the guess that knows only the site
STEPS = ("step", "epoch", "loss", "seconds", "aggregation_seconds", "bytes_up", "bytes_down", "left_out")


class StateLoss(Part):
    """A site that has lost its state."""

    site: str
    """Its name."""
    round: int
    """The round in which it went on without residuals."""


Values = dict[str, float | None]


class RunMetrics(Part, extra="ignore"):
    """What the tests of all folds say together, by metric; nothing before the first test."""

    test: Values | None = None
    """All samples that have been tested, with their number."""
    folds: dict[str, Spread] = Field(default={})
    """Over folds."""
    sites: dict[str, Spread] = Field(default={})
    """Over sites."""
    intervals: dict[str, Interval] = Field(default={})
    """Of the metrics that have one."""
    within_sites: Values = Field(default={})
    """With every site's own level taken out."""
    baseline: Values = Field(default={})
    """Of a guess that knows only the site."""
    confusion: tuple[tuple[int | tuple[int, int], ...], ...] = ()
    """Samples by true and predicted class, or by label, true and predicted value."""
    calibration: tuple[tuple[float | None, float | None, int], ...] = ()
    """Mean confidence, frequency of hits and count by bin of confidence."""


class Summary(Part, extra="ignore"):
    """What people want to know of `summary.json`; the defaults are those of a run that has just begun."""

    status: str = "running"
    reason: str = ""
    steps: int = 0
    epochs: int = 0
    best_epoch: int = 0
    seconds: float = 0.0
    seconds_per_step: float = 0.0
    bytes_up_per_site_step: float = 0.0
    bytes_down_per_site_step: float = 0.0
    dense_bytes: int = 0
    times_fewer_bytes_than_dense: float | None = None
    metrics: RunMetrics = RunMetrics()
    problems: dict[str, str] = Field(default={})
    rows_dropped: dict[str, int] = Field(default={})
    warnings: dict[str, tuple[str, ...]] = Field(default={})
    left_out: dict[str, int] = Field(default={})
    resets: tuple[StateLoss, ...] = ()
    drift: float | None = None
    weights_sha256: dict[str, str] = Field(default={})
    aggregator_sha256: str = ""
    versions: dict[str, str] = Field(default={})
    machine: dict[str, str] = Field(default={})


class PlanSummary(Part, extra="ignore"):
    """What people want to know of `plan.json`."""

    sha256: str = ""
    weights_sha256: str = ""
    warnings: tuple[str, ...] = ()


P = TypeVar("P", bound=Part)


@dataclass(frozen=True, eq=False)
class RunResults:
    """A run's directory, read.

    Args:
        spec: of the run.
        plan: of the run.
        summary: as it was last written.
        metrics: a row per fold, epoch, split and site, and one for `pooled`.
        sites: a row per site, of all folds' tests.
        steps: a row per step.
    """

    spec: RunSpec
    plan: PlanSummary
    summary: Summary
    metrics: pd.DataFrame
    sites: pd.DataFrame
    steps: pd.DataFrame

    @property
    def tests(self) -> pd.DataFrame:
        """The pooled row of every test so far; the last training, on all samples, has none."""
        rows = self.metrics
        return rows[(rows["split"] == "test") & (rows["site"] == "pooled") & (rows["samples"] > 0)]

    @property
    def test(self) -> dict[str, float]:
        """Metrics of all samples that have been tested, each by a model that has not seen it; what is known of them."""
        if self.summary.metrics.test is not None:
            return finite(self.summary.metrics.test)
        rows = rows_of(self.tests)
        return rows.get("pooled", {}) if len(self.tests) == 1 else {}

    @property
    def confusion(self) -> list[list[int]]:
        """Counts of a row for every true class by predicted class, or for every label in the order of `LABEL_CELLS`."""
        return [list(np.ravel(row).tolist()) for row in self.summary.metrics.confusion]

    @property
    def by_site(self) -> dict[str, dict[str, float]]:
        """The same of every site, and those of the baseline, each with `baseline_` before its name."""
        return rows_of(self.sites)


def finite(values: Mapping[str, float | None]) -> dict[str, float]:
    """Return those that are finite numbers."""
    return {name: float(value) for name, value in values.items() if value is not None and math.isfinite(value)}


def class_names(spec: RunSpec) -> list[str]:
    """Return what the run's classes or labels are called; nothing for a number."""
    data, task = spec.data, spec.task
    if isinstance(task, Regression):
        return []
    if not isinstance(data, Labelled):
        return [str(place) for place in range(task.outputs)]
    return [str(value) for value in data.values] if isinstance(task, Classification) else list(data.targets)


def read_results(directory: Path) -> RunResults:
    """Read a run's directory; only `run.json` has to be there.

    Raises:
        UserError: it holds no run, or a file in it cannot be read.
    """
    path = directory / "run.json"
    if not path.is_file():
        raise UserError(f"{directory}: holds no run, expected the directory of one, with its run.json")
    metrics = read_table(directory / "metrics.csv", METRICS).fillna({"fold": 0})
    sites = read_table(directory / "sites.csv", SITES)
    if sites.empty:  # of a run from before there were folds
        sites = metrics[(metrics["split"] == "test") & (metrics["site"] != "pooled") & (metrics["fold"] == 0)]
    return RunResults(
        validate(RunSpec, load_json(path), file=path),
        _optional(PlanSummary, directory / "plan.json"),
        _optional(Summary, directory / "summary.json"),
        metrics,
        sites,
        read_table(directory / "steps.csv", STEPS),
    )


def _optional(model: type[P], path: Path) -> P:
    return validate(model, load_json(path) if path.exists() else {}, file=path)


def read_table(path: Path, columns: Sequence[str]) -> pd.DataFrame:
    """Read a table: sites and splits as text, everything else as numbers, NaN where none stands.

    Args:
        path: of the file; without it the table is empty.
        columns: that it has in any case.

    Raises:
        UserError: it cannot be read.
    """
    try:
        text = path.read_text(encoding="utf-8")
        lines = text[: text.rfind("\n") + 1]  # a last line without its end was cut short
        table = pd.read_csv(io.StringIO(lines), dtype=str, keep_default_na=False)  # a site may be called "null"
    except (FileNotFoundError, pd.errors.EmptyDataError):
        table = pd.DataFrame()
    except (OSError, UnicodeDecodeError, pd.errors.ParserError) as error:
        raise UserError(f"{path}: cannot be read as a table: {one_line(error)}") from None
    table = table.reindex(columns=list(dict.fromkeys([*columns, *table.columns])))
    for name in table.columns.difference(list(TEXT)):
        table[name] = pd.to_numeric(table[name], errors="coerce")
    return table


def rows_of(table: pd.DataFrame) -> dict[str, dict[str, float]]:
    """Return a table's metrics by site, `pooled` among them; what was not measured is left out."""
    names = [str(name) for name in table.columns if name not in KEYS]
    return {str(row["site"]): finite({name: row[name] for name in names}) for row in table.to_dict("records")}
