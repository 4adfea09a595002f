"""What is left of a run for people: the page and tables that every site gets, and what a platform shows."""

from __future__ import annotations

import base64
from pathlib import Path
from typing import Any

import pandas as pd

from common.coinstac.messages import Results
from common.documents import load_json
from remote.report import drawn, metric_rows, report


def results(directory: Path) -> Results:
    """Return what every site writes beside its model.

    Raises:
        UserError: the directory holds no run.
    """
    metrics = (directory / "metrics.csv").read_text(encoding="utf-8")
    return Results(summary=load_json(directory / "summary.json"), metrics=metrics, report=report(directory))


def shown(directory: Path) -> dict[str, Any]:
    """Return what COINSTAC shows at the end, under the names of the description's `output`: tables and figures."""
    pooled, by_site = metric_rows(pd.read_csv(directory / "metrics.csv"))
    figures = {name: base64.b64encode(png).decode("ascii") for name, png in drawn(directory).items()}
    return {"global_metrics": pooled, "site_metrics": by_site, "global_stats": figures, "local_stats": {}}
