"""What a run's directory holds, read back: spec, plan, summary and tables, however the run ended."""

from __future__ import annotations

import io
import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

import pandas as pd
from pydantic import Field

from common.documents import Part, load_json, validate
from common.errors import UserError, one_line
from common.spec import RunSpec

TEXT = ("split", "site", "left_out")
KEYS = ("epoch", "split", "site", "train_loss")  # what is no metric of a split
METRICS = (*KEYS, "samples", "loss", "accuracy", "auc", "auc_error")
STEPS = ("step", "epoch", "loss", "seconds", "aggregation_seconds", "bytes_up", "bytes_down", "left_out")


class Reset(Part):
    """A site that has lost its state."""

    site: str
    """Its name."""
    round: int
    """When it went on without residuals."""


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
    left_out: dict[str, int] = Field(default={})
    resets: tuple[Reset, ...] = ()
    drift: float | None = None
    weights_sha256: dict[str, str] = Field(default={})
    aggregator_sha256: str = ""
    versions: dict[str, str] = Field(default={})
    machine: dict[str, str] = Field(default={})


class PlanFacts(Part, extra="ignore"):
    """What people want to know of `plan.json`."""

    sha256: str = ""
    weights_sha256: str = ""
    warnings: tuple[str, ...] = ()


P = TypeVar("P", bound=Part)


@dataclass(frozen=True, eq=False)
class Results:
    """A run's directory, read.

    Args:
        spec: of the run.
        plan: of the run.
        summary: as it was last written.
        metrics: a row per epoch, split and site, and one for `pooled`.
        steps: a row per step.
    """

    spec: RunSpec
    plan: PlanFacts
    summary: Summary
    metrics: pd.DataFrame
    steps: pd.DataFrame


def read_results(directory: Path) -> Results:
    """Read a run's directory; only `run.json` has to be there.

    Raises:
        UserError: it holds no run, or a file in it cannot be read.
    """
    path = directory / "run.json"
    if not path.is_file():
        raise UserError(f"{directory}: holds no run, expected the directory of one, with its run.json")
    return Results(
        validate(RunSpec, load_json(path), file=path),
        _optional(PlanFacts, directory / "plan.json"),
        _optional(Summary, directory / "summary.json"),
        read_table(directory / "metrics.csv", METRICS),
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


def metric_rows(metrics: pd.DataFrame) -> tuple[dict[str, float], dict[str, dict[str, float]]]:
    """Return the test metrics of all sites together, and by site; what was not measured is left out.

    Args:
        metrics: as `metrics.csv` holds them.
    """
    rows = rows_of(metrics[metrics["split"] == "test"])
    return rows.pop("pooled", {}), rows


def rows_of(metrics: pd.DataFrame) -> dict[str, dict[str, float]]:
    """Return the metrics of one split and epoch by site, `pooled` among them; what was not measured is left out."""
    names = [str(name) for name in metrics.columns if name not in KEYS]
    return {
        str(row["site"]): {name: float(row[name]) for name in names if pd.notna(row[name]) and math.isfinite(row[name])}
        for row in metrics.to_dict("records")
    }
