"""What of a run goes through the platform at its end: what every site keeps, and what people are shown."""

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
        metrics=text_of(directory, "metrics"),
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


def test_results_of(models: Mapping[str, GivenModel], sites: Mapping[str, str]) -> tuple[SiteResults, dict[str, Any]]:
    """Return the same of a model that was tested alone.

    Args:
        models: with the members' tests, by site.
        sites: by the clients' ids.

    Raises:
        FormError: the tests are not of one model.
    """
    spec, test, rows = pooled(models)
    seen = [site for site in models if site in spec.federation.sites]
    some = f"{', '.join(seen)} took part in the run that trained this model: rows of that run make it look better"
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
