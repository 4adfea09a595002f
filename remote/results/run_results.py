"""Read a run's directory: spec, plan, summary and tables, however the run ended."""

from __future__ import annotations

import io
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import pandas as pd
import torch

from rankdad.common.data.spreadsheets import as_meant
from rankdad.common.documents import Part, load_json, validate
from rankdad.common.errors import UserError, one_line
from rankdad.common.files import check_file
from rankdad.common.metrics.auc import BINS, bin_edges
from rankdad.common.metrics.paired_sums import Difference
from rankdad.common.metrics.risk import Risks
from rankdad.common.metrics.site_calibration import differing
from rankdad.common.spec import RunSpec
from rankdad.common.spec.tasks import Classification, Regression
from rankdad.common.spec.written import Tabular
from rankdad.remote.results.run_summary import RunSummary
from rankdad.remote.results.table_one import outcome_names
from rankdad.remote.run_reader import TABLE_NAMES
from rankdad.remote.tables import text_of

TEXT = ("split", "site", "left_out", "late", "layer", "line", "name", "caption", "units", "problem")
KEYS = ("fold", "epoch", "split", "site", "train_loss")  # columns that are no metric of a split
METRICS = (*KEYS, "samples", "loss")
SITES = ("site", "samples")
RANKED = ("auc", "pearson_r")  # undefined at a site for a baseline that is constant there
LABEL_CELLS = ("true negatives", "false positives", "false negatives", "true positives")
BASELINE = "baseline_"  # prefix of the site-only guess's metrics
EFFECT = "_effect"  # suffix of design effects: variance with groups over variance without
RISKS = ("outcome", "bin", "low", "negatives", "positives")
SPECTRA = ("step", "fold", "epoch", "layer", "rank")
DIFFERENCES = ("average", "low", "high", "samples")
STEPS = ("step", "epoch", "loss", "seconds", "aggregation_seconds", "bytes_up", "bytes_down", "left_out")


class PlanSummary(Part, extra="ignore"):
    """The fields of `plan.json` that a report shows."""

    sha256: str = ""
    weights_sha256: str = ""
    warnings: tuple[str, ...] = ()


P = TypeVar("P", bound=Part)


@dataclass(frozen=True, eq=False)
class RunResults:
    """The contents of a run's directory.

    Args:
        spec: the run's.
        plan: the run's.
        summary: as last written.
        metrics: a row per fold, epoch, split and site, without candidates; the site `pooled` is all sites together.
        sites: a row per site, over the tests of all folds.
        steps: a row per step, with those of candidates.
        risks: histogram of log-odds, by outcome.
        differences: histogram of errors of predicted numbers, by their size.
        spectra: leading singular values of layers' updates, at recorded steps.
    """

    spec: RunSpec
    plan: PlanSummary
    summary: RunSummary
    metrics: pd.DataFrame
    sites: pd.DataFrame
    steps: pd.DataFrame
    risks: pd.DataFrame = field(default_factory=lambda: pd.DataFrame(columns=list(RISKS)))
    differences: pd.DataFrame = field(default_factory=lambda: pd.DataFrame(columns=list(DIFFERENCES)))
    spectra: pd.DataFrame = field(default_factory=lambda: pd.DataFrame(columns=list(SPECTRA)))

    @property
    def repeats(self) -> int:
        """Number of trained repeats; repeats that equal an earlier one at every site are skipped."""
        return int(self.summary.partitions.get("run", self.spec.tested_folds // self.spec.folds_per_repeat))

    @property
    def tests(self) -> pd.DataFrame:
        """The pooled row of every test so far. A final training on all samples has none."""
        rows = self.metrics
        return rows[(rows["split"] == "test") & (rows["site"] == "pooled") & (rows["samples"] > 0)]

    @property
    def test(self) -> dict[str, float]:
        """Finite metrics of all samples tested so far, each by a model that was not trained on it."""
        if self.summary.metrics.test is not None:
            return finite(self.summary.metrics.test)
        rows = metrics_by_site(self.tests)
        return rows.get("pooled", {}) if len(self.tests) == 1 else {}

    def differences_from(self, rival: str) -> dict[str, Difference]:
        """Return the differences from a rival that have a finite interval, by metric."""
        found = self.summary.metrics.differences.get(rival, {})
        return {name: one for name, one in found.items() if math.isfinite(one.high - one.low)}

    def risks_of(self, outcome: int) -> list[Risks]:
        """Return an outcome's predictions for each repeat; empty if there are none."""
        rows = self.risks[self.risks["outcome"] == outcome]
        repeats = [own for _, own in rows.groupby("repeat")] if "repeat" in rows else [rows]
        return [_risks(own.dropna()) for own in repeats if len(own.dropna())]

    @property
    def outcomes(self) -> dict[str, dict[str, Any]]:
        """Metrics of predicted risks, by the outcome's name."""
        found, named = self.summary.metrics.risks, outcome_names(self.spec)
        if len(found) == 1:
            return {named(found[0]["outcome"]): found[0]}
        names = class_names(self.spec)
        return {names[one["outcome"]]: one for one in found}

    @property
    def only_outcome(self) -> dict[str, Any] | None:
        """Metrics of predicted risks if there is exactly one outcome."""
        found = list(self.outcomes.values())
        return found[0] if len(found) == 1 else None

    @property
    def site_calibration(self) -> dict[int, dict[str, dict[str, Any]]]:
        """Each outcome's calibration by hospital."""
        found = self.summary.metrics.calibration_by_site
        return {one["outcome"]: {site["site"]: site for site in one["sites"]} for one in found}

    def miscalibrated(self, outcome: int) -> dict[str, dict[str, float]]:
        """Return the calibration measures that differ significantly between hospitals, with the values that are off."""
        found = (one for one in self.summary.metrics.calibration_by_site if one["outcome"] == outcome)
        return next(map(differing, found), {})

    @property
    def recalls(self) -> dict[str, float | None]:
        """Recall of each class or label; None without rows."""
        classes, named = isinstance(self.spec.task, Classification), outcome_names(self.spec)
        found = dict[str, float | None]()
        for place, row in enumerate(self.confusion):
            hits, rows = (row[place], sum(row)) if classes else (row[3], row[2] + row[3])
            found[named(place)] = hits / rows if rows else None
        return found

    @property
    def tested_at(self) -> list[str]:
        """The sites with test figures. Policies withhold those of too few rows."""
        return [site for site, row in self.by_site.items() if row.get("samples")]

    @property
    def confusion(self) -> list[list[int]]:
        """Counts: a row of predicted classes per true class, or `LABEL_CELLS` per label."""
        return [list(np.ravel(row).tolist()) for row in self.summary.metrics.confusion]

    @property
    def by_site(self) -> dict[str, dict[str, float]]:
        """Finite metrics of every site; those of the baseline begin with `baseline_`."""
        return metrics_by_site(self.sites)


def _risks(rows: pd.DataFrame) -> Risks:
    """Rebuild predictions from the rows of a table, one bin each."""
    bins, base = torch.tensor(rows["bin"].astype(int).to_numpy()), bin_edges(0.0)
    counts = torch.zeros(2, BINS, dtype=torch.float64)
    counts[:, bins] = torch.tensor(rows[["negatives", "positives"]].to_numpy(float).T)
    risks = Risks.of(counts, float(rows["low"].iloc[0]) - float(base[bins[0]]))
    # Between two bins with samples, the edge above counts.
    place = torch.searchsorted(bins, torch.arange(BINS + 1)).clamp_max(len(bins) - 1)
    written = {name.removesuffix(EFFECT): rows[name] for name in rows.columns if name.endswith(EFFECT)}
    return replace(risks, effects={name: torch.tensor(own.to_numpy(float))[place] for name, own in written.items()})


def finite(values: Mapping[str, float | None]) -> dict[str, float]:
    """Return the values that are finite numbers."""
    return {name: float(value) for name, value in values.items() if value is not None and math.isfinite(value)}


def class_names(spec: RunSpec) -> list[str]:
    """Return the names of the classes or labels; empty for regression."""
    data, task = spec.data, spec.task
    if isinstance(task, Regression):
        return []
    if not isinstance(data, Tabular):
        return [str(place) for place in range(task.outputs)]
    if not isinstance(task, Classification):
        return [data.called(label) for label in data.targets]
    return [data.captions.get(f"{data.targets[0]} = {value}", str(value)) for value in data.values]


def read_results(directory: Path) -> RunResults:
    """Read a run's directory. Only `run.json` is required.

    Raises:
        UserError: there is no run, or a file cannot be read.
    """
    path = directory / "run.json"
    if not path.is_file():
        raise UserError(f"{directory}: has no run.json; give the directory of a run", code="no-run")
    metrics = _folds_from_zero(read_table(directory / "metrics.csv", METRICS)).fillna({"fold": 0})
    metrics = without_candidates(metrics).drop(columns="candidate", errors="ignore")
    sites = read_table(directory / "sites.csv", SITES)
    if sites.empty:  # written by a version without folds
        sites = metrics[(metrics["split"] == "test") & (metrics["site"] != "pooled") & (metrics["fold"] == 0)]
    return RunResults(
        validate(RunSpec, load_json(path), file=path),
        _optional(PlanSummary, directory / "plan.json"),
        _optional(RunSummary, directory / "summary.json"),
        metrics,
        sites,
        _folds_from_zero(read_table(directory / "steps.csv", STEPS)),
        read_table(directory / "risks.csv", RISKS),
        read_table(directory / "differences.csv", DIFFERENCES),
        _folds_from_zero(read_table(directory / "spectra.csv", SPECTRA)),
    )


def _folds_from_zero(table: pd.DataFrame) -> pd.DataFrame:
    """Return a table with folds as the spec counts them; files count from 1, and once counted from 0."""
    if "fold" in table and table["fold"].min() > 0:
        return table.assign(fold=table["fold"] - 1)
    return table


def _optional(model: type[P], path: Path) -> P:
    check_file(path, missing_ok=True)
    return validate(model, load_json(path) if path.exists() else {}, file=path)


def read_table(path: Path, columns: Sequence[str]) -> pd.DataFrame:
    """Read a table: sites and splits as text, other columns as numbers, invalid ones as NaN.

    Args:
        path: the file; a missing one gives an empty table.
        columns: columns of the result even if the file lacks them.

    Raises:
        UserError: it cannot be read.
    """
    check_file(path, missing_ok=True)
    try:
        is_of_run = path.stem in TABLE_NAMES  # a running one has no CSV file yet
        text = text_of(path.parent, path.stem) if is_of_run else path.read_text(encoding="utf-8")
        lines = text[: text.rfind("\n") + 1]  # the last line may be incomplete
        table = pd.read_csv(io.StringIO(lines), dtype=str, keep_default_na=False)  # a site may be called "null"
    except (FileNotFoundError, pd.errors.EmptyDataError):
        table = pd.DataFrame()
    except (OSError, UnicodeDecodeError, pd.errors.ParserError) as error:
        raise UserError(f"{path}: cannot be read as a table: {one_line(error)}", code="table-unreadable") from None
    table = table.reindex(columns=list(dict.fromkeys([*columns, *table.columns])))
    for name in table.columns.difference(list(TEXT)):
        table[name] = pd.to_numeric(table[name], errors="coerce")
    for name in table.columns.intersection(list(TEXT)):
        table[name] = table[name].map(as_meant, na_action="ignore")
    return table


def without_candidates(table: pd.DataFrame) -> pd.DataFrame:
    """Drop the rows of tuning candidates."""
    return table[table["candidate"].isna()] if "candidate" in table else table


def metrics_by_site(table: pd.DataFrame) -> dict[str, dict[str, float]]:
    """Return the finite metrics of every site in a table, with `pooled`."""
    names = [str(name) for name in table.columns if name not in KEYS]
    return {str(row["site"]): finite({name: row[name] for name in names}) for row in table.to_dict("records")}
