"""`rankdad report`: one page about a run, to keep and to print, made from the files of its directory."""

from __future__ import annotations

import json
from base64 import b64encode
from collections.abc import Callable, Mapping
from pathlib import Path

from rankdad.remote.report import metric_tables as tables
from rankdad.remote.report import narrative
from rankdad.remote.report.rendering import render
from rankdad.remote.report.run_results import BASELINE, RANKED, RunResults, read_results
from rankdad.remote.view import size

TEMPLATES = Path(__file__).parent / "templates"
NO_PLOTS = "figures need matplotlib, which is not installed: pip install 'rankdad[plots]'"
CAPTIONS = {
    "loss_over_epochs": "Training and validation loss of all sites together, by epoch.",
    "loss_over_steps": "Training loss of all sites together, by optimizer step.",
    "auc_over_epochs": "Validation AUC by epoch.",
    "accuracy_over_epochs": "Validation accuracy by epoch.",
    "mae_over_epochs": "Validation mean absolute error by epoch.",
    "pearson_r_over_epochs": "Validation correlation by epoch.",
    "test_auc_by_site": "Test AUC of each site that has one, and of all samples.",
    "test_accuracy_by_site": "Test accuracy of each site, and of all samples.",
    "test_mae_by_site": "Test mean absolute error of each site, and of all samples.",
    "test_pearson_r_by_site": "Test correlation within each site, and of all samples.",
    "confusion": "Test samples by true and predicted value, coloured by their share of the true value's samples.",
    "calibration": "Test predictions by confidence in 15 equal bins: how often they are right, and how many there are.",
}
PARTS = ("task", "model", "data", "preparation", "evaluation", "training", "method", "federation")
MAX_ITEMS = 30  # of a list in the specification
MAX_CONFUSION_CLASSES = 12  # in a table; a plot shows more

Plotter = Callable[[RunResults], dict[str, bytes]]


def plotter() -> Plotter | None:
    """Return the function that draws the plots; None where matplotlib is missing."""
    try:
        from rankdad.remote.report.run_plots import run_plots
    except ImportError:
        return None
    return run_plots


def report(directory: Path) -> str:
    """Return a page about a run, however it ended, as HTML that needs no other file.

    Args:
        directory: of the run.

    Raises:
        UserError: the directory holds no run, or a file in it cannot be read.
    """
    run, plot = read_results(directory), plotter()
    return report_page(run, plot(run) if plot else None)


def report_page(run: RunResults, figures: Mapping[str, bytes] | None) -> str:
    """Return the page about a run, with figures that are drawn already; None where matplotlib is missing."""
    rows, validation = run.by_site, tables.last_validation(run)
    baseline = {name.removeprefix(BASELINE) for row in rows.values() for name in row if name.startswith(BASELINE)}
    return render(
        TEMPLATES,
        "run.html",
        run=run,
        narrative=narrative,
        metrics=tables.metrics_table(run),
        sites=tables.site_table(run, rows),
        baseline=baseline,
        unranked=" and ".join(narrative.NAMES[name] for name in RANKED if name in baseline),
        confusion=tables.confusion_table(run),
        max_confusion_classes=MAX_CONFUSION_CLASSES,
        validation=validation,
        fewest=min(((row["samples"], site) for site, row in rows.items() if row.get("samples")), default=None),
        plots={name: b64encode(png).decode() for name, png in (figures or {}).items()},
        no_plots=f"This page has none: {NO_PLOTS}" if figures is None else "There is nothing to draw yet.",
        captions=CAPTIONS,
        specification=_specification(run),
        size=size,
    )


def _specification(run: RunResults) -> dict[str, str]:
    """Return what was run, by the name of its part."""
    spec, plan, dense = run.spec, run.plan, run.summary.dense_bytes
    facts = {"name": spec.name, "sites": ", ".join(spec.federation.sites), "seed": str(spec.seed)}
    for part in PARTS:
        document = getattr(spec, part).model_dump(mode="json", exclude={"sites"}, exclude_none=True)
        facts[part] = "; ".join(
            _plain(value) if key == "name" else f"{key} {_plain(value)}" for key, value in document.items()
        )
    facts["trained parameters"] = f"{dense // 4:,}" if dense else "–"
    facts["sha256 of the specification"] = spec.sha256()
    facts["sha256 of the first weights"] = plan.weights_sha256 or "–"
    return facts | ({"warnings": " ".join(plan.warnings)} if plan.warnings else {})


def _plain(value: object) -> str:
    if isinstance(value, list) and len(value) > MAX_ITEMS:
        return f"{json.dumps(value[:MAX_ITEMS], ensure_ascii=False)[:-1]}, … ({len(value)} in all)]"
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
