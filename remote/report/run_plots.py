"""A run's figures as PNG: losses, validation metrics, and what the tests of all folds say."""

from __future__ import annotations

import numpy as np
import pandas as pd
from matplotlib import style
from matplotlib.figure import Figure

from common.tasks import Classification, MultiLabel, Regression
from remote.report.evaluation_plots import calibration, confusion, metric_by_site
from remote.report.narrative import baseline_name
from remote.report.plot_style import MEASURES, png
from remote.report.run_results import LABEL_CELLS, RunResults, class_names
from remote.report.training_plots import losses, losses_by_step, metric_by_epoch


def run_plots(run: RunResults) -> dict[str, bytes]:
    """Draw what there is to draw.

    Args:
        run: its results so far.

    Returns:
        PNG by name, in the order in which to read them: `loss_over_epochs`, `loss_over_steps`, of each measure
        `auc_over_epochs` and `test_auc_by_site`, `confusion`, `calibration`. What has too few numbers is left out.
    """
    with style.context("default"):  # not as a person's own matplotlibrc has it
        return {name: png(figure) for name, figure in _drawn(run).items() if figure is not None}


def _drawn(run: RunResults) -> dict[str, Figure | None]:
    folds, finished = run.spec.tested_folds, len(run.tests)
    metrics, sites, steps = (_finite(table) for table in (run.metrics, run.sites, run.steps))
    validation = metrics[(metrics["split"] == "validation") & (metrics["fold"] < folds)]
    best = {int(row["fold"]): int(row["epoch"]) for row in run.tests.to_dict("records")}
    if folds == 1:
        best = {0: run.summary.best_epoch}
    found, test = run.summary.metrics, run.test
    means = {name: spread.mean for name, spread in found.sites.items()}
    measures = [name for name in MEASURES if name in run.spec.task.metrics]
    return {
        "loss_over_epochs": losses(validation, best, finished),
        "loss_over_steps": losses_by_step(steps, folds, finished),
        **{
            f"{name}_over_epochs": metric_by_epoch(validation, name, best, finished)
            for name in measures
            if name in validation
        },
        **{
            f"test_{name}_by_site": metric_by_site(sites, name, test.get(name), means.get(name), baseline_name(run))
            for name in measures
            if name in sites
        },
        "confusion": _confusion(run),
        "calibration": _calibration(run),
    }


def _finite(table: pd.DataFrame) -> pd.DataFrame:
    return table.replace([np.inf, -np.inf], np.nan)


def _confusion(run: RunResults) -> Figure | None:
    counts, names = run.confusion, class_names(run.spec)
    if not counts:
        return None
    if isinstance(run.spec.task, MultiLabel):
        return confusion(counts, names, LABEL_CELLS, ("", "label"), 2)
    return confusion(counts, names, names, ("predicted class", "true class"), len(names))


def _calibration(run: RunResults) -> Figure | None:
    task, bins = run.spec.task, run.summary.metrics.calibration
    if isinstance(task, Regression) or not any(count for *_, count in bins):
        return None
    if isinstance(task, Classification):
        return calibration(bins, 1 / task.classes, independent=True)
    return calibration(bins, 0.0, independent=False)
