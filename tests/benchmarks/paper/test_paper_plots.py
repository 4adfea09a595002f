"""The figures: axes that say what they show, and no text on top of another."""

from __future__ import annotations

import itertools

import pandas as pd
import pytest
from matplotlib.axis import Axis
from matplotlib.figure import Figure
from matplotlib.text import Text

from benchmarks.paper.paper_plots import drawn, time_to_target
from benchmarks.paper.settings import SETTINGS
from tests.benchmarks.paper.tables import curve, seconds, sizes, spectra, timing

pytestmark = pytest.mark.slow

PANELS = SETTINGS["middle"].panels


def texts(figure: Figure) -> list[Text]:
    """All that is written, as it lies after drawing; labels of ticks beyond the axes' limits are not."""
    figure.draw_without_rendering()
    beyond = set()
    for axis in figure.findobj(Axis):
        assert isinstance(axis, Axis)
        low, high = sorted(axis.get_view_interval())
        ticks = [*axis.get_major_ticks(), *axis.get_minor_ticks()]
        beyond |= {id(tick.label1) for tick in ticks if not low <= tick.get_loc() <= high}
        beyond |= {id(tick.label2) for tick in ticks if not low <= tick.get_loc() <= high}
    found = [text for text in figure.findobj(Text) if isinstance(text, Text) and id(text) not in beyond]
    return [text for text in found if text.get_visible() and text.get_text().strip()]


@pytest.fixture(scope="module")
def figures() -> dict[str, Figure]:
    methods = {
        "pooled": 1.0,
        "dsgd": 0.995,
        "rank-dad-1": 0.98,
        "powersgd-1": 0.97,
        "rank-dad-4": 0.99,
        "published-4": 0.9,
    }
    curves = [curve(key, (auc - 0.3, auc), size=1000 * (place + 1)) for place, (key, auc) in enumerate(methods.items())]
    vit = [curve("top-rows", (0.6, 0.7), "cifar10"), curve("dsgd", (0.6, 0.9), "cifar10", folds=(0,))]
    return drawn(
        {
            "figure-2": pd.concat(curves),
            "figure-3": spectra((4, 3, 2)),
            "figure-5": pd.concat(vit),
            "figure-5-seconds": seconds(top_rows=1.0, dsgd=0.5),
            "figure-6": pd.concat([sizes("dsgd", 2), sizes("rank-dad-4", 1), sizes("rank-dad-10", 1, times=2.5)]),
            "table-3": timing(published_10=(0.05, 0.04)),
        },
        PANELS,
    )


def test_there_is_a_figure_for_every_table(figures: dict[str, Figure]) -> None:
    stems = [
        "figure-2",
        "figure-2-bytes",
        "figure-3",
        "figure-5",
        "figure-5-auc",
        "figure-5-bytes",
        "figure-6",
        "table-3",
    ]
    assert list(figures) == stems
    for figure in figures.values():
        assert all(axes.get_xlabel() or figure.get_supxlabel() for axes in figure.axes)
        assert figure.axes[0].get_ylabel() or figure.get_supxlabel()
    titles = [axes.get_title().strip() for axes in figures["figure-2"].axes]
    assert titles == ["rank 1", "rank 4"]
    assert [len(axes.lines) for axes in figures["figure-2"].axes] == [4, 4], "two of the rank, dSGD and pooled"
    assert figures["figure-5-auc"].axes[0].get_ylabel() == "test AUC\n1 to 2 of 5 folds"
    (bar,) = figures["figure-5"].axes[0].containers[1]
    assert bar.get_width() == pytest.approx(1.0), "as many steps of half the time"


def test_folds_that_are_all_equal_have_a_bar() -> None:
    """Their mean was above all of them by rounding, and error bars have no negative length."""
    assert time_to_target(pd.DataFrame({"link": "any", "method": ["rank-dad-4"] * 3, "log2": [0.1] * 3})) is not None


def test_what_cannot_be_compared_is_not_drawn() -> None:
    tables = {"figure-5": curve("dsgd", (0.9,), "cifar10"), "figure-5-seconds": seconds(dsgd=1.0), "table-3": timing()}
    assert list(drawn(tables, PANELS)) == ["figure-5-auc", "figure-5-bytes"]


@pytest.mark.parametrize("stem", ["figure-2", "figure-2-bytes", "figure-3", "figure-5", "figure-6", "table-3"])
def test_no_text_lies_on_another_or_leaves_the_figure(stem: str, figures: dict[str, Figure]) -> None:
    figure = figures[stem]
    boxes = [(text.get_text(), text.get_window_extent()) for text in texts(figure)]
    for (one, first), (other, second) in itertools.combinations(boxes, 2):
        assert not first.padded(-1).overlaps(second.padded(-1)), (one, other)
    whole = figure.bbox.padded(1)
    for text, box in boxes:
        assert whole.x0 <= box.x0 < box.x1 <= whole.x1, text
        assert whole.y0 <= box.y0 < box.y1 <= whole.y1, text
