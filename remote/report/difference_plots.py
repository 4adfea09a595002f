"""A forest of differences: the model less others on the same rows, with their intervals."""

from __future__ import annotations

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from rankdad.common.metrics.paired import WITHIN
from rankdad.common.metrics.paired_sums import Difference
from rankdad.remote.report.plot_style import BLACK, BLUE, legend, plain_axes, shortened
from rankdad.remote.report.references import REFERENCES
from rankdad.remote.report.words import NAMES
from rankdad.remote.results.comparison import measure, of_site, told
from rankdad.remote.results.run_results import RunResults

MAX_SITES = 30
ALONE = ("local", "site", "linear")  # the first of which is shown by site


def differences(run: RunResults) -> Figure | None:
    """Draw by how much the model's figure differs from every reference's, and from the first one's at each site."""
    name = measure(run)
    known = {REFERENCES[rival]: run.differences_from(rival) for rival in told(run)}
    pooled = {said: own.get(name) for said, own in known.items()}
    within = {f"{said}, within hospitals": own.get(WITHIN) for said, own in known.items()}
    rows = [(said, found, True) for said, found in (pooled | within).items() if found is not None]
    if not rows:
        return None
    first = next((rival for rival in ALONE if rival in run.summary.metrics.differences), None)
    by_site = [] if first is None else [(site, of_site(row, first, name)) for site, row in run.by_site.items()]
    if first is not None and len(by_site) <= MAX_SITES:
        label = f"{REFERENCES[first]}, by site"
        rows += [(shortened(site), found, False) for site, found in by_site if found is not None]
    else:
        label = ""
    figure, axes = plain_axes(
        f"difference of {NAMES[name]}: this model less", "", height=min(8.0, 1.5 + 0.26 * len(rows))
    )
    axes.axvline(0, color=BLACK, lw=1, zorder=1)
    for place, (_, found, whole) in enumerate(rows):
        _draw(axes, place, found, BLACK if whole else BLUE, "D" if whole else "s")
    axes.plot([], [], "D", color=BLACK, ms=6, label="all sites")
    if any(not whole for *_, whole in rows):
        axes.plot([], [], "s", color=BLUE, ms=5, label=label)
    axes.set_yticks(range(len(rows)), [said for said, *_ in rows], parse_math=False, fontsize=8)
    axes.set_ylim(len(rows) - 0.4, -0.6)
    legend(axes)
    return figure


def _draw(axes: Axes, place: int, found: Difference, colour: str, marker: str) -> None:
    axes.hlines([place], found.low, found.high, color=colour, lw=1.4)
    axes.plot([found.value], [place], marker, color=colour, ms=5)
