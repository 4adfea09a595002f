"""All plots of a run, as PNG and as SVG. Importing this module requires matplotlib."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import numpy as np
from matplotlib import style
from matplotlib.figure import Figure

from rankdad.remote.report.confusion_plot import confusion
from rankdad.remote.report.forest_plots import coefficients, differences, forest
from rankdad.remote.report.number_plots import bland_altman, residuals
from rankdad.remote.report.plot_style import MEASURES, png, svg
from rankdad.remote.report.risk_plots import (
    calibration,
    calibration_by_site,
    decision_curve,
    precision_recall_curves,
    roc_curves,
)
from rankdad.remote.report.training_plots import (
    losses,
    losses_by_step,
    metric_by_epoch,
    rank_over_steps,
    spectrum,
)
from rankdad.remote.results.run_results import RunResults


def figures(run: RunResults) -> dict[str, Figure]:
    """Draw all figures with enough data, by name."""
    tables = {name: getattr(run, name).replace([np.inf, -np.inf], np.nan) for name in ("metrics", "sites", "steps")}
    run, task = replace(run, **tables), run.spec.task
    measures, by_epoch = ([name for name in MEASURES if name in known] for known in (task.metrics, task.monitors))
    found = {
        "roc": roc_curves(run),
        "precision_recall": precision_recall_curves(run),
        "calibration": calibration(run),
        "calibration_by_site": calibration_by_site(run),
        "decision_curve": decision_curve(run),
        "bland_altman": bland_altman(run),
        "residuals": residuals(run),
        "differences": differences(run),
        **{f"test_{name}_by_site": forest(run, name) for name in measures if name in run.sites},
        "coefficients": coefficients(run),
        "confusion": confusion(run),
        "loss_over_epochs": losses(run),
        "loss_over_steps": losses_by_step(run),
        **{f"{name}_over_epochs": metric_by_epoch(run, name) for name in by_epoch if name in run.metrics},
        "rank_over_steps": rank_over_steps(run),
        "spectrum": spectrum(run),
    }
    return {name: figure for name, figure in found.items() if figure is not None}


def run_plots(run: RunResults) -> dict[str, bytes]:
    """Render all figures as PNG, by name."""
    with style.context("default"):  # ignores the user's matplotlibrc
        return {name: png(figure) for name, figure in figures(run).items()}


def run_drawings(run: RunResults, described: Mapping[str, str]) -> dict[str, str]:
    """Render all figures as SVG for a page, by name, with text alternatives."""
    with style.context("default"):
        return {name: svg(figure, name, described[name]) for name, figure in figures(run).items()}
