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

TEXT = ("split", "site", "left_out", "layer", "line", "name")
KEYS = ("fold", "epoch", "split", "site", "train_loss")  # columns that are no metric of a split
METRICS = (*KEYS, "samples", "loss")
SITES = ("site", "samples")
RANKED = ("auc", "pearson_r")  # undefined at a site for a baseline that is constant there
LABEL_CELLS = ("true negatives", "false positives", "false negatives", "true positives")
BASELINE = "baseline_"  # prefix of the metrics of the guess that knows only the site
EFFECT = "_effect"  # suffix of columns: how much wider groups make a figure's interval, as variances
RISKS = ("outcome", "bin", "low", "negatives", "positives")
SPECTRA = ("step", "fold", "epoch", "layer", "rank")
DIFFERENCES = ("average", "low", "high", "samples")
STEPS = ("step", "epoch", "loss", "seconds", "aggregation_seconds", "bytes_up", "bytes_down", "left_out")


class PlanSummary(Part, extra="ignore"):
    """The part of `plan.json` that is shown."""

    sha256: str = ""
    weights_sha256: str = ""
    warnings: tuple[str, ...] = ()


P = TypeVar("P", bound=Part)


@dataclass(frozen=True, eq=False)
class RunResults:
    """The contents of a run's directory.

    Args:
        spec: of the run.
        plan: of the run.
        summary: as it was last written.
        metrics: a row per fold, epoch, split and site; the site `pooled` is all sites together. Candidates have none.
        sites: a row per site, over the tests of all folds.
        steps: a row per step, of candidates too.
        risks: how many samples with and without each outcome were given which log-odds.
        differences: how many numbers were predicted how far off, by their size.
        spectra: leading singular values of layers' updates, of steps for which the run records them.
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
        """How often all folds are trained: repeats that are equal at every site are one."""
        return int(self.summary.partitions.get("run", self.spec.tested_folds // self.spec.folds_per_repeat))

    @property
    def tests(self) -> pd.DataFrame:
        """The pooled row of every test so far; a final training on all samples has none."""
        rows = self.metrics
        return rows[(rows["split"] == "test") & (rows["site"] == "pooled") & (rows["samples"] > 0)]

    @property
    def test(self) -> dict[str, float]:
        """Finite metrics of all samples tested so far, each by a model that has not seen it."""
        if self.summary.metrics.test is not None:
            return finite(self.summary.metrics.test)
        rows = rows_of(self.tests)
        return rows.get("pooled", {}) if len(self.tests) == 1 else {}

    def differences_from(self, rival: str) -> dict[str, Difference]:
        """Return the finite differences of the model's metrics from a rival's on the same rows."""
        found = self.summary.metrics.differences.get(rival, {})
        return {name: one for name, one in found.items() if math.isfinite(one.high - one.low)}

    def risks_of(self, outcome: int) -> list[Risks]:
        """Return the predictions of an outcome, of each repetition of a cross-validation; none where there are none."""
        rows = self.risks[self.risks["outcome"] == outcome]
        repeats = [own for _, own in rows.groupby("repeat")] if "repeat" in rows else [rows]
        return [_risks(own.dropna()) for own in repeats if len(own.dropna())]

    @property
    def outcomes(self) -> dict[str, dict[str, Any]]:
        """What predicted risks are worth, by the outcome's name."""
        found, named = self.summary.metrics.risks, outcome_names(self.spec)
        if len(found) == 1:
            return {named(found[0]["outcome"]): found[0]}
        names = class_names(self.spec)
        return {names[one["outcome"]]: one for one in found}

    @property
    def only_outcome(self) -> dict[str, Any] | None:
        """What predicted risks are worth, if there is but one outcome."""
        found = list(self.outcomes.values())
        return found[0] if len(found) == 1 else None

    @property
    def site_calibration(self) -> dict[int, dict[str, dict[str, Any]]]:
        """Each outcome's calibration at every hospital that has tested rows."""
        found = self.summary.metrics.calibration_by_site
        return {one["outcome"]: {site["site"]: site for site in one["sites"]} for one in found}

    def miscalibrated(self, outcome: int) -> dict[str, dict[str, float]]:
        """Return in what hospitals differ more than chance makes them, and its value where it is wrong."""
        found = (one for one in self.summary.metrics.calibration_by_site if one["outcome"] == outcome)
        return next(map(differing, found), {})

    @property
    def recalls(self) -> dict[str, float | None]:
        """Share of each class's rows, or of those with each label, that are found; None of no rows."""
        classes, named = isinstance(self.spec.task, Classification), outcome_names(self.spec)
        found = dict[str, float | None]()
        for place, row in enumerate(self.confusion):
            hits, rows = (row[place], sum(row)) if classes else (row[3], row[2] + row[3])
            found[named(place)] = hits / rows if rows else None
        return found

    @property
    def tested_at(self) -> list[str]:
        """The sites whose rows are in the figures: not those whose policy keeps them back as too few."""
        return [site for site, row in self.by_site.items() if row.get("samples")]

    @property
    def confusion(self) -> list[list[int]]:
        """Counts: a row of predicted classes per true class, or a row of `LABEL_CELLS` per label."""
        return [list(np.ravel(row).tolist()) for row in self.summary.metrics.confusion]

    @property
    def by_site(self) -> dict[str, dict[str, float]]:
        """Finite metrics of every site, and those of the baseline, whose names begin with `baseline_`."""
        return rows_of(self.sites)


def _risks(rows: pd.DataFrame) -> Risks:
    """Return the predictions that a table's rows hold, a bin each."""
    bins, base = torch.tensor(rows["bin"].astype(int).to_numpy()), bin_edges(0.0)
    counts = torch.zeros(2, BINS, dtype=torch.float64)
    counts[:, bins] = torch.tensor(rows[["negatives", "positives"]].to_numpy(float).T)
    risks = Risks.of(counts, float(rows["low"].iloc[0]) - float(base[bins[0]]))
    # Between two bins that hold samples counts are those of the edge above.
    place = torch.searchsorted(bins, torch.arange(BINS + 1)).clamp_max(len(bins) - 1)
    written = {name.removesuffix(EFFECT): rows[name] for name in rows.columns if name.endswith(EFFECT)}
    return replace(risks, effects={name: torch.tensor(own.to_numpy(float))[place] for name, own in written.items()})


def finite(values: Mapping[str, float | None]) -> dict[str, float]:
    """Return the values that are finite numbers."""
    return {name: float(value) for name, value in values.items() if value is not None and math.isfinite(value)}


def class_names(spec: RunSpec) -> list[str]:
    """Return the names of the classes or labels; none for regression."""
    data, task = spec.data, spec.task
    if isinstance(task, Regression):
        return []
    if not isinstance(data, Tabular):
        return [str(place) for place in range(task.outputs)]
    if not isinstance(task, Classification):
        return [data.called(label) for label in data.targets]
    return [data.captions.get(f"{data.targets[0]} = {value}", str(value)) for value in data.values]


def read_results(directory: Path) -> RunResults:
    """Read a run's directory; only `run.json` has to be there.

    Raises:
        UserError: it holds no run, or a file in it cannot be read.
    """
    path = directory / "run.json"
    if not path.is_file():
        raise UserError(f"{directory}: holds no run, expected the directory of one, with its run.json", code="no-run")
    metrics = _folds_from_zero(read_table(directory / "metrics.csv", METRICS)).fillna({"fold": 0})
    metrics = of_models(metrics).drop(columns="candidate", errors="ignore")
    sites = read_table(directory / "sites.csv", SITES)
    if sites.empty:  # of a run from before there were folds
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
    """Read a table: sites and splits as text, the rest as numbers, with NaN for what is no number.

    Args:
        path: of the file; without it the table is empty.
        columns: that the table has even where the file lacks them.

    Raises:
        UserError: it cannot be read.
    """
    check_file(path, missing_ok=True)
    try:
        is_of_run = path.stem in TABLE_NAMES  # of one that goes on there is no CSV file yet
        text = text_of(path.parent, path.stem) if is_of_run else path.read_text(encoding="utf-8")
        lines = text[: text.rfind("\n") + 1]  # a last line without its end was cut short
        table = pd.read_csv(io.StringIO(lines), dtype=str, keep_default_na=False)  # a site may be called "null"
    except (FileNotFoundError, pd.errors.EmptyDataError):
        table = pd.DataFrame()
    except (OSError, UnicodeDecodeError, pd.errors.ParserError) as error:
        raise UserError(f"{path}: cannot be read as a table: {one_line(error)}", code="table-unreadable") from None
    table = table.reindex(columns=list(dict.fromkeys([*columns, *table.columns])))
    for name in table.columns.difference(list(TEXT)):
        table[name] = pd.to_numeric(table[name], errors="coerce")
    return table


def of_models(table: pd.DataFrame) -> pd.DataFrame:
    """Return the rows of the models that are tested or kept, without those of candidates for their settings."""
    return table[table["candidate"].isna()] if "candidate" in table else table


def rows_of(table: pd.DataFrame) -> dict[str, dict[str, float]]:
    """Return the finite metrics of every site in a table, `pooled` among them."""
    names = [str(name) for name in table.columns if name not in KEYS]
    return {str(row["site"]): finite({name: row[name] for name in names}) for row in table.to_dict("records")}
