"""`rankdad report`: a self-contained page about one run, from its directory."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

from markupsafe import Markup

from rankdad.common.rounds.scores import GUESS
from rankdad.remote.report import metric_tables as tables
from rankdad.remote.report import narrative, words
from rankdad.remote.report.coefficient_tables import (
    coefficient_notes,
    coefficient_table,
    reference_levels,
    site_coefficients,
)
from rankdad.remote.report.differences import against_guess, difference_table
from rankdad.remote.report.references import REFERENCES, reference_table
from rankdad.remote.report.rendering import damage_named, render
from rankdad.remote.report.site_calibration import site_calibration_table
from rankdad.remote.report.study_table import left_out, table_one
from rankdad.remote.report.tuning import price, tuning_table
from rankdad.remote.report.verdict import asides, topics
from rankdad.remote.results.comparison import shown_references
from rankdad.remote.results.run_results import BASELINE, RANKED, RunResults, read_results
from rankdad.remote.view import size

TEMPLATES = Path(__file__).parent / "templates"
NO_PLOTS = "figures need matplotlib, which is not installed: pip install 'rankdad[plots]'"
ALONE = "; round points, if requested, are of each hospital's own model."
CAPTIONS = {
    "roc": "ROC curve: share of those with the outcome found (sensitivity) against the share of false alarms. In "
    "the band, if drawn, both lie with 95 % at every threshold.",
    "precision_recall": "Precision-recall curve: share of those called positive with the outcome (precision), "
    "against the share of those with the outcome that are found. In the band, if drawn, both lie with 95 % at "
    "every threshold.",
    "calibration": "Observed frequency against predicted risk, in ten groups of about equal size; on the dotted line "
    "risks are right. Bars below, if drawn: distribution of risks.",
    "calibration_by_site": "Observed frequency against predicted risk at each hospital, in groups of at least 20 rows, "
    "with 95 % intervals; the square is all of a hospital's rows. Of many hospitals, those furthest off are drawn.",
    "decision_curve": "Decision curve: net benefit of acting on the model's risk from a threshold on, against acting "
    "on all or on nobody. The model is worth using where its line is the highest.",
    "bland_altman": "Bland–Altman: difference between prediction and label against their mean; the darker, the more "
    "rows. Dashed: quantiles of the differences, with the share between them in the legend.",
    "residuals": "Distribution of residuals.",
    "differences": "This model's figure minus that of each reference on the same rows, over all hospitals and by "
    "hospital, with 95 % intervals: one that excludes 0 shows a difference.",
    "test_auc_by_site": "Test AUC of each hospital with one, with its 95 % interval, and of all rows" + ALONE,
    "test_accuracy_by_site": "Test accuracy of each hospital, with its 95 % interval, and of all rows" + ALONE,
    "test_mae_by_site": "Test mean absolute error of each hospital, with its 95 % interval, and of all rows" + ALONE,
    "test_pearson_r_by_site": "Test correlation within each hospital, with its 95 % interval, and of all rows" + ALONE,
    "coefficients": "Coefficients of the linear model with 95 % intervals: the dotted line is no effect.",
    "confusion": "Test rows by true and predicted value, coloured by their share of the true value's rows.",
    "loss_over_epochs": "Training and validation loss of all hospitals together, by epoch.",
    "loss_over_steps": "Training loss of all hospitals together, by optimizer step.",
    "auc_within_over_epochs": "Validation AUC over pairs of rows of one hospital, by epoch.",
    "accuracy_over_epochs": "Validation accuracy by epoch.",
    "mae_over_epochs": "Validation mean absolute error by epoch.",
    "pearson_r_over_epochs": "Validation correlation by epoch.",
    "rank_over_steps": "Effective rank of each layer's update, of the last training.",
    "spectrum": "Singular values of each layer's update, relative to the largest: means of the last quarter of the "
    "recorded steps. If they fall steeply, a lower rank suffices.",
}
MEASURES = ("auc", "accuracy", "mae", "pearson_r")  # for comparisons by site
PARTS = ("task", "model", "data", "preparation", "evaluation", "training", "method", "federation", "tuning")
EXACT_SETTINGS = {"solver", "test", "dtype", "threads"}  # settings of training with effect on an exact solution
MAX_ITEMS = 30  # of a list in the specification
MAX_WARNINGS = 3  # shown unfolded
MAX_THRESHOLD_TABLES = 4  # outcomes with a table of thresholds
MAX_CONFUSION_CLASSES = 12  # in a table; a plot shows more

Plotter = Callable[[RunResults], dict[str, bytes]]


def plotter() -> Plotter | None:
    """Return the function that draws the plots; None without matplotlib."""
    try:
        from rankdad.remote.report.run_plots import run_plots
    except ImportError:
        return None
    return run_plots


def report(directory: Path) -> str:
    """Render a page about a run, however it ended, as self-contained HTML.

    Args:
        directory: the run's.

    Raises:
        UserError: the directory has no run, or a file in it cannot be read.
    """
    run = read_results(directory)
    with damage_named(directory):
        return report_page(run)


def report_page(run: RunResults) -> str:
    """Render the page about a run."""
    rows, validation, drawings = run.by_site, tables.last_validation(run), _drawings(run)
    baseline = {name.removeprefix(BASELINE) for row in rows.values() for name in row if name.startswith(BASELINE)}
    agreement, only = run.summary.metrics.agreement, run.only_outcome
    rivals = {GUESS: narrative.baseline_name(run)} | {name: REFERENCES[name] for name in shown_references(run)}
    ids = {site: f"hospital-{place}" for place, site in enumerate(rows, 1)}
    calibrations = {
        name: table
        for name, one in run.outcomes.items()
        if len(run.outcomes) <= MAX_THRESHOLD_TABLES and (table := site_calibration_table(run, one["outcome"]))
    }
    calibrated = run.site_calibration.get(only["outcome"], {}) if only and calibrations else {}
    links = {site: f"calibration-{place}" for place, site in enumerate(calibrated, 1)}
    if links:
        calibrations = {name: replace(table, ids=list(links.values())) for name, table in calibrations.items()}
    measured = [f"test_{name}_by_site" for name in MEASURES]
    first = next((name for name in measured if name in (drawings or {})), measured[0])
    return render(
        TEMPLATES,
        "run.html",
        run=run,
        narrative=narrative,
        words=words,
        topics=topics(run),
        asides=asides(run),
        links=links or ids,
        linked="calibration" if links else "figures",
        warnings=[*narrative.training_problems(run), *narrative.data_warnings(run)],
        MAX_WARNINGS=MAX_WARNINGS,
        table_one=table_one(run),
        columns_left_out=left_out(run),
        metrics=tables.metrics_table(run),
        risks=tables.risk_table(run) if run.outcomes else None,
        site_calibrations=calibrations,
        thresholds={
            name: tables.threshold_table(one)
            for name, one in run.outcomes.items()
            if one["thresholds"] and len(run.outcomes) <= MAX_THRESHOLD_TABLES
        },
        agreement=tables.agreement_table(agreement) if agreement else None,
        first=first,
        further=[name for name in measured if name != first],
        references=reference_table(run),
        coefficients=coefficient_table(run),
        first_levels=reference_levels(run),
        coefficients_by_site=site_coefficients(run),
        coefficient_notes=list(coefficient_notes(run)),
        differences=difference_table(run, rivals),
        sites=replace(tables.site_table(run, rows), ids=list(ids.values())),
        baseline=baseline,
        unranked=" and ".join(words.NAMES[name] for name in RANKED if name in baseline),
        confusion=tables.confusion_table(run),
        max_confusion_classes=MAX_CONFUSION_CLASSES,
        validation=validation,
        tuning=tuning_table(run),
        price=price(run),
        fewest=min(((row["samples"], site) for site, row in rows.items() if row.get("samples")), default=None),
        explained=[text for text in (*narrative.explained(run), " ".join(against_guess(run))) if text],
        figures=drawings or {},
        no_plots="There is nothing to draw yet." if drawings is not None else f"This page has no figures: {NO_PLOTS}",
        captions=CAPTIONS,
        specification=_specification(run),
        size=size,
    )


def _drawings(run: RunResults) -> dict[str, Markup] | None:
    """Draw the page's figures; None without matplotlib."""
    if plotter() is None:
        return None
    from rankdad.remote.report.run_plots import run_drawings

    return {name: Markup(drawing) for name, drawing in run_drawings(run, CAPTIONS).items()}


def _specification(run: RunResults) -> dict[str, str]:
    """List the run's settings by the name of their part."""
    spec, plan, dense = run.spec, run.plan, run.summary.dense_bytes
    facts = {"name": spec.name, "sites": ", ".join(spec.federation.sites), "seed": str(spec.seed)}
    for part in PARTS:
        if (own := getattr(spec, part)) is not None and not (run.summary.exact and part == "method"):
            only = EXACT_SETTINGS if run.summary.exact and part == "training" else None
            facts[part] = _plain(own.model_dump(mode="json", include=only, exclude={"sites"}, exclude_none=True))
    facts["trained parameters"] = f"{dense // 4:,}" if dense else "–"
    facts["sha256 of the specification"] = spec.sha256()
    facts["sha256 of the first weights"] = plan.weights_sha256 or "–"
    return facts | ({"warnings": " ".join(plan.warnings)} if plan.warnings else {})


def _plain(value: object) -> str:
    """Format a part of a specification in words, without empty values."""
    if isinstance(value, dict):
        sentence = {key: _plain(one) for key, one in value.items() if one not in ([], {})}
        return "; ".join(text if key == "name" else f"{key.replace('_', ' ')} {text}" for key, text in sentence.items())
    if isinstance(value, list):
        more = f", … ({len(value)} in all)" if len(value) > MAX_ITEMS else ""
        return ", ".join(map(_plain, value[:MAX_ITEMS])) + more
    return {True: "yes", False: "no"}[value] if isinstance(value, bool) else str(value)
