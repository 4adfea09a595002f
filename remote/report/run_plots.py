"""The plots of a run as PNG. Importing this fails where matplotlib is missing."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
from matplotlib import style

from rankdad.remote.report.evaluation_plots import calibration, confusion, metric_by_site
from rankdad.remote.report.plot_style import MEASURES, png
from rankdad.remote.report.run_results import RunResults
from rankdad.remote.report.training_plots import losses, losses_by_step, metric_by_epoch


def run_plots(run: RunResults) -> dict[str, bytes]:
    """Draw what there is to draw.

    Returns:
        PNG by name, in the order in which to read them: `loss_over_epochs`, `loss_over_steps`, of each measure
        `auc_over_epochs` and `test_auc_by_site`, `confusion`, `calibration`. What has too few numbers is left out.
    """
    tables = {name: getattr(run, name).replace([np.inf, -np.inf], np.nan) for name in ("metrics", "sites", "steps")}
    run, measures = replace(run, **tables), [name for name in MEASURES if name in run.spec.task.metrics]
    with style.context("default"):  # whatever the user's own matplotlibrc says
        plots = {
            "loss_over_epochs": losses(run),
            "loss_over_steps": losses_by_step(run),
            **{f"{name}_over_epochs": metric_by_epoch(run, name) for name in measures if name in run.metrics},
            **{f"test_{name}_by_site": metric_by_site(run, name) for name in measures if name in run.sites},
            "confusion": confusion(run),
            "calibration": calibration(run),
        }
        return {name: png(figure) for name, figure in plots.items() if figure is not None}
