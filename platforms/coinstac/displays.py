"""Results at the end of a run: files for every site, and displays for people."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pandas as pd
from markupsafe import escape

from rankdad.common.documents import load_json
from rankdad.platforms.coinstac.given_model import GivenModel, pooled
from rankdad.platforms.coinstac.outputs import FIGURES, SiteResults
from rankdad.platforms.coinstac.result_tables import NAMED, TABLES, named, numbered, studied
from rankdad.remote.report.run_report import plotter, report_page
from rankdad.remote.results.run_results import RunResults, read_results
from rankdad.remote.tables import text_of


def results_of(
    directory: Path, sites: Mapping[str, str], warnings: Sequence[str]
) -> tuple[SiteResults, dict[str, Any]]:
    """Return the results for every site, and the displays.

    Args:
        directory: the run's.
        sites: site names by client id.
        warnings: warnings before the first round.

    Raises:
        UserError: the directory has no run.
    """
    run, plot = read_results(directory), plotter()
    figures = plot(run) if plot else None
    results = SiteResults(
        summary=load_json(directory / "summary.json"),
        metrics=text_of(directory, "metrics"),
        report=report_page(run),
        figures=figures or {},
    )
    return results, displayed(run, sites, warnings, [*results.figures])


def displayed(
    run: RunResults, sites: Mapping[str, str], warnings: Sequence[str], figures: Sequence[str] = ()
) -> dict[str, Any]:
    """Return tables, warnings and paths of figures by the names in the description's `output`.

    The app shows the pictures in `global_stats` by their paths in the viewer's output folder, and only if `local_stats`
    has a key. It identifies members by client id.
    """
    return {
        **{table.key: table.content(run, warnings) for table in TABLES},
        "global_stats": [f"{FIGURES}/{name}.png" for name in figures],
        "local_stats": {client: [] for client in sites},
    }


def test_results_of(models: Mapping[str, GivenModel], sites: Mapping[str, str]) -> tuple[SiteResults, dict[str, Any]]:
    """Return the results and displays of a model that was only tested.

    Args:
        models: members' tests by site.
        sites: site names by client id.

    Raises:
        FormError: members tested different models.
    """
    spec, test, rows = pooled(models)
    seen = [site for site in models if site in spec.federation.sites]
    some = f"{', '.join(seen)} took part in the run that trained this model: its training rows make the test optimistic"
    content: dict[str, dict[str, Any]] = {
        "study": studied(spec) | {"training": "none: a trained model", "tested": "all rows that have a label"},
        "global_metrics": named(test),
        "warnings": numbered([some] if seen else []),
        "site_metrics": {str(row["site"]): {NAMED: row["site"], **named(row)} for row in rows},
        "coefficients": {"all sites": {"none": "the model was tested, and not trained"}},
    }
    page = [f"<!DOCTYPE html><meta charset='utf-8'><title>Test of {escape(spec.name)}</title>"]
    for table in TABLES:
        own = content[table.key]
        frame = pd.DataFrame(own) if table.by_key else pd.DataFrame({"": own})
        page.append(f"<h2>{table.label}</h2>" + frame.rename(index=dict(table.items)).to_html(na_rep="–"))
    summary: dict[str, Any] = {"status": "completed", "metrics": {"test": test}, "sites": list(models)}
    metrics = pd.DataFrame(rows).to_csv(index=False)
    results = SiteResults(summary=summary, metrics=metrics, report="\n".join(page), figures={})
    return results, {**content, "global_stats": [], "local_stats": {client: [] for client in sites}}
