"""What of a run goes through the platform at its end: what every site keeps, and what people are shown."""

from __future__ import annotations

import base64
from pathlib import Path
from typing import Any

from common.documents import load_json
from platforms.coinstac.outputs import Results
from remote.report import drawer, report
from remote.results import BASELINE, read_results


def for_sites(directory: Path) -> Results:
    """Return what every site writes beside its model.

    Raises:
        UserError: the directory holds no run.
    """
    metrics = (directory / "metrics.csv").read_text(encoding="utf-8")
    return Results(summary=load_json(directory / "summary.json"), metrics=metrics, report=report(directory))


def for_people(directory: Path) -> dict[str, Any]:
    """Return tables and figures under the names of the description's `output`.

    Raises:
        UserError: the directory holds no run.
    """
    run, figures = read_results(directory), drawer()
    drawn = figures(run) if figures else {}
    pictures = {name: base64.b64encode(png).decode("ascii") for name, png in drawn.items()}
    by_site = {
        site: {name: value for name, value in row.items() if not name.startswith(BASELINE)}
        for site, row in run.by_site.items()
    }
    return {"global_metrics": run.test, "site_metrics": by_site, "global_stats": pictures, "local_stats": {}}
