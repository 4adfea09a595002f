"""What of a run goes through the platform at its end: what every site keeps, and what people are shown."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from rankdad.common.documents import load_json
from rankdad.platforms.coinstac.outputs import FIGURES, SiteResults
from rankdad.platforms.coinstac.result_tables import TABLES
from rankdad.remote.report.run_report import plotter, report_page
from rankdad.remote.report.run_results import RunResults, read_results


def results_of(
    directory: Path, sites: Mapping[str, str], warnings: Sequence[str]
) -> tuple[SiteResults, dict[str, Any]]:
    """Return what every site writes beside its model, and what people are shown.

    Args:
        directory: of the run.
        sites: by the clients' ids.
        warnings: from before the first round.

    Raises:
        UserError: the directory holds no run.
    """
    run, plot = read_results(directory), plotter()
    figures = plot(run) if plot else None
    results = SiteResults(
        summary=load_json(directory / "summary.json"),
        metrics=(directory / "metrics.csv").read_text(encoding="utf-8"),
        report=report_page(run),
        figures=figures or {},
    )
    return results, displayed(run, sites, warnings, [*results.figures])


def displayed(
    run: RunResults, sites: Mapping[str, str], warnings: Sequence[str], figures: Sequence[str] = ()
) -> dict[str, Any]:
    """Return tables, warnings and paths of figures under the names of the description's `output`.

    The app shows the pictures of `global_stats` by their paths in the viewer's own output folder, and shows none unless
    `local_stats` has a key. It knows members by their ids.
    """
    return {
        **{table.key: table.content(run, warnings) for table in TABLES},
        "global_stats": [f"{FIGURES}/{name}.png" for name in figures],
        "local_stats": {client: [] for client in sites},
    }
