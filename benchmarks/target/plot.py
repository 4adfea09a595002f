"""Draw quality by bytes and by seconds. Importing this fails where matplotlib is missing."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from matplotlib import style
from matplotlib.axes import Axes

from benchmarks.target.curves import Target
from benchmarks.target.tables import Trained
from rankdad.common.spec.tasks import LOWER_IS_BETTER, shown
from rankdad.remote.report.plot_style import GREY, blank, dress, png, wheel

DASHES = ("-", "--", "-.", ":")
FLOOR = 1e-5  # an AUC above 1 - FLOOR is drawn there
BY = ("megabytes a site, both ways (log)", "seconds at 100 Mbit/s, computed (log)")
HEIGHT, WIDTH = 3.6, 5.2  # of each pair of axes, in inches


def picture(trained: Sequence[Trained], targets: Sequence[Target]) -> bytes:
    """Return a PNG file: for every kind of sites the best test so far against megabytes, and against seconds.

    Args:
        trained: with tests.
        targets: the first one's metric is drawn; those of this metric are lines.
    """
    metric = targets[0][0]
    kinds = list(dict.fromkeys(one.sites for one in trained))
    methods = list(dict.fromkeys(one.method for one in trained if one.curve))
    with style.context("default"):
        figure = blank()
        figure.set_size_inches(2 * WIDTH, HEIGHT * len(kinds) + 0.25 * len(methods))
        grid = figure.subplots(len(kinds), 2, squeeze=False, sharey=True)
        for row, kind in zip(grid, kinds, strict=True):
            for axes, by in zip(
                row, ("megabytes a site, both ways (log)", "seconds at 100 Mbit/s, computed (log)"), strict=True
            ):
                dress(axes, by, f"{kind} sites\n{_label(metric)}" if axes is row[0] else "")
                for one in trained:
                    if one.sites == kind and one.curve:
                        _line(axes, one, methods.index(one.method), metric, seconds=axes is row[1])
                for name, value in targets:
                    if name == metric:
                        axes.axhline(_height(metric, value), color=GREY, lw=0.6, ls=":")
        lines = grid[0][0].get_legend_handles_labels()
        named = dict(zip(lines[1], lines[0], strict=True))
        figure.legend(named.values(), named.keys(), loc="outside lower center", frameon=False, fontsize=8)
        return png(figure, ())


def _line(axes: Axes, one: Trained, place: int, metric: str, *, seconds: bool) -> None:
    best = (np.minimum if metric in LOWER_IS_BETTER else np.maximum).accumulate([p.values[metric] for p in one.curve])
    x = [point.seconds_on_link if seconds else point.bytes / 1e6 for point in one.curve]
    dash, marker = DASHES[place // 8 % len(DASHES)], "." if len(x) < 20 else ""
    heights = [_height(metric, value) for value in best]
    axes.plot(x, heights, dash, color=wheel(place), lw=1.2, marker=marker, label=one.method)
    axes.set_xscale("log")
    if metric == "auc":
        axes.set_yscale("log")
        axes.yaxis.set_inverted(True)


def _height(metric: str, value: float) -> float:
    return max(1 - value, FLOOR) if metric == "auc" else value


def _label(metric: str) -> str:
    return "1 − test AUC, best so far (log)" if metric == "auc" else f"test {shown(metric)}, best so far"
