"""Progress of a run on the terminal: a live view, or plain lines."""

from __future__ import annotations

import logging
import math
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from rich.console import Console, Group, JustifyMethod
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from rankdad.common.errors import counted, visible
from rankdad.common.logs import MAX_LINE, MAX_PROGRESS
from rankdad.common.metrics.summary import bound
from rankdad.common.spec.tasks import decimals, shown
from rankdad.common.terminal import Drawing, can_draw, fitted, listed, sparkline
from rankdad.page.history import History
from rankdad.remote.results.progress import AGGREGATOR, Epoch, Progress
from rankdad.remote.results.run_summary import RunFigures
from rankdad.remote.site_status import SiteStatus, shown_state

_log = logging.getLogger(__name__)

WAITING_PERIOD = 10.0  # seconds between lines about the same wait
MIN_WAITING = 1.0
PERIOD = 0.4  # seconds between drawings
MAX_METRICS = 3  # metrics of a line
MAX_WARNINGS = 10  # about the sites' tables
SOME = 2  # warnings, and problems of sites, in the live view
MIN_SITES = 3  # rows of the table of sites on a small terminal
MIN_COLUMN, MAX_NAME = 7, 30  # characters; columns keep their places while values change
JUSTIFY: tuple[JustifyMethod, ...] = ("left", "right", "right", "right", "left")


@dataclass(frozen=True)
class Waiting:
    """State of the present round.

    Args:
        sites: sites with missing contributions.
        seconds: since it was opened.
        without: departed sites that it does not wait for.
        ended: whether the run has ended and only informs the sites.
    """

    sites: tuple[str, ...] = ()
    seconds: float = 0.0
    without: tuple[str, ...] = ()
    ended: bool = False


class View(Protocol):
    """Shows a run's progress from `start` to `stop`; call `tick` several times a second."""

    def start(self) -> None:
        """Begin."""

    def tick(self) -> None:
        """Show changes."""

    def stop(self) -> None:
        """Leave the last state on the screen."""


def view_of(
    progress: Progress,
    waiting: Callable[[], Waiting],
    console: Console,
    history: History | None = None,
    sites: Callable[[], Sequence[SiteStatus]] = tuple,
) -> View:
    """Create the view that suits the console.

    Args:
        progress: the run's, read at every tick.
        waiting: returns the state of the present round.
        console: the terminal.
        history: curves of the run.
        sites: returns the sites' status; none if they are in this process.
    """
    if can_draw(console):
        return LiveView(progress, waiting, console, history, sites)
    return PlainView(progress, waiting, console)


class PlainView:
    """Lines about the first step, every epoch, every ten seconds of waiting, and sites that leave and return.

    None is longer than `MAX_PROGRESS` but those that give a reason. What is wrong is said in full; a quiet console
    leaves that: it is logged.
    """

    def __init__(self, progress: Progress, waiting: Callable[[], Waiting], console: Console) -> None:
        self._progress, self._waiting, self._console = progress, waiting, console
        self._periods, self._begun, self._steps_shown = 0, False, False
        self._without: tuple[str, ...] = ()
        self._problems: dict[str, str] = {}
        self._warned = 0  # number of shown warnings about data

    def start(self) -> None:
        """Print the first line."""
        p = RunFigures.of(self._progress)
        most = "" if p.method.startswith("exact") else f", at most {counted(p.planned_epochs, 'epoch')}"
        self._say(f"{p.name}: {p.method}, {p.members}{most}")

    def tick(self) -> None:
        """Print changes."""
        p, monitor, ended = RunFigures.of(self._progress), self._progress.monitor, self._progress.ended
        if p.exact and not self._begun:
            self._begun = True
            self._say(f"solved exactly, without steps: {p.solver['why']}", MAX_LINE)
        if "code" in p.solver and not self._steps_shown:
            self._steps_shown = True
            self._warn(f"solved by steps: {p.solver['why']}", "warning: ")
        if "unsolved" in p.solver and not self._steps_shown:
            self._steps_shown = True
            self._warn(p.solver["warning"], "warning: ")
        lines = data_warnings(self._progress.table1)
        for line in lines[self._warned :]:
            self._warn(line, "warning: ")
        self._warned = len(lines)
        if p.steps and not self._begun:
            self._begun = True
            self._say(f"step {p.steps} of {p.planned_steps}: loss {_number(p.loss)}")
        while ended:
            self._say(_epoch_line(p, ended.popleft(), monitor))
        for site, line in _problems(p.problems).items():
            if self._problems.get(site) != p.problems[site]:
                self._warn(line)
        self._problems = dict(p.problems)
        now = self._waiting()
        periods = int(now.seconds / WAITING_PERIOD) if now.sites else 0
        if periods > self._periods:
            known = "; ".join(f"{site}: {p.problems[site]}" for site in now.sites if site in p.problems)
            seconds = f" ({now.seconds:.0f} s)"
            names = listed(now.sites, MAX_PROGRESS - len(f"waiting for {seconds}"))
            self._say(f"waiting for {names}{seconds}" + f": {known}" * bool(known), MAX_LINE)
        self._periods = periods
        if now.without != self._without and not now.ended:
            without = f"continues without {listed(now.without, MAX_PROGRESS - len('continues without '))}"
            self._say(without if now.without else "all sites are back")
            self._without = now.without

    def stop(self) -> None:
        """Print changes since the last tick."""
        self.tick()

    def _warn(self, problem: str, before: str = "") -> None:
        if self._console.quiet:
            _log.warning(problem)
        else:
            self._console.print(Text(before + problem), soft_wrap=True)

    def _say(self, line: str, most: int = MAX_PROGRESS) -> None:
        self._console.print(Text(visible(line, most)), soft_wrap=True)


class LiveView:
    """A progress bar, a few lines, the metric's curve and a table of sites, redrawn in place: see `view_of`."""

    def __init__(
        self,
        progress: Progress,
        waiting: Callable[[], Waiting],
        console: Console,
        history: History | None = None,
        sites: Callable[[], Sequence[SiteStatus]] = tuple,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._progress, self._waiting, self._console = progress, waiting, console
        self._history, self._sites, self._clock = history, sites, clock
        self._drawing, self._next, self._whole = Drawing(console, self.drawn), -math.inf, False

    def start(self) -> None:
        """Begin to draw."""
        self._drawing.start()

    def tick(self) -> None:
        """Redraw, at most every `PERIOD`."""
        if (now := self._clock()) >= self._next:
            self._drawing.draw()
            self._next = now + PERIOD

    def drawn(self) -> Group:
        """Return the renderable for the present state."""
        now, site_statuses, p = self._waiting(), self._sites(), RunFigures.of(self._progress)
        parts = [self._bar(p), self._figures(p, now)]
        if site_statuses:
            room = self._console.height - 1 - sum(len(self._console.render_lines(part)) for part in parts)
            is_over, width = p.status != "running" or now.ended, self._console.width
            parts.append(_table(site_statuses, now, max(MIN_SITES, room - 2), width, is_over=is_over))
        return Group(*parts)

    def stop(self) -> None:
        """Draw the last state and leave it there."""
        self._whole = True
        self._drawing.stop()

    def _bar(self, p: RunFigures) -> Table:
        bar = Table.grid(padding=(0, 1), expand=True)
        bar.add_column(no_wrap=True, max_width=MAX_NAME)
        bar.add_column(ratio=1)
        bar.add_column(no_wrap=True)
        of = ProgressBar(max(1, p.planned_steps), p.steps)
        bar.add_row(Text(p.name), of, f"{p.steps:,}/{p.planned_steps:,} steps" if p.planned_steps else "no steps yet")
        return bar

    def _figures(self, p: RunFigures, now: Waiting) -> Table:
        most = None if self._whole else SOME
        problems = list(_problems(p.problems).values())
        more = len(problems) - (most or len(problems))
        rows = [
            (p.method, " · ".join((p.members, *p.where, _left(p)))),
            ("quality", _figures(p)),
            *self._curve(p),
            ("traffic", _bytes(p)),
            ("round", self._round(p, now)),
            *[("warning", str(p.undertrained.get("warning")))] * bool(p.undertrained),
            *(("warning", line) for line in data_warnings(self._progress.table1, most or MAX_WARNINGS)),
            *(("to mend", problem) for problem in problems[:most]),
            *[("", f"{more} more sites have problems")] * (more > 0),
        ]
        table = Table.grid(padding=(0, 2))
        for label, text in rows:
            table.add_row(Text(label, "bold"), Text(text))  # a string would be read as markup
        return table

    def _curve(self, p: RunFigures) -> list[tuple[str, str]]:
        """Return the monitored metric of the present fold as a sparkline, or else its training loss."""
        monitor = self._progress.monitor
        if self._history is None or not monitor:
            return []
        values, name = self._history.by_epoch(monitor), shown(monitor)
        if not any(map(math.isfinite, values)):
            values, name = self._history.by_epoch("train_loss"), "training loss"
        if not any(map(math.isfinite, values)):
            return []
        best = f" best {_number(p.best_value)} in epoch {p.best_epoch}" if p.epochs and p.best_value is not None else ""
        width = max(8, self._console.width - max(len(name), len(p.method), 7) - 2 - len(best))
        return [(name, sparkline(values, min(60, width)) + best)]

    def _round(self, p: RunFigures, now: Waiting) -> str:
        if p.status != "running":
            return p.status
        if now.ended:
            return "the run ends"
        words = [f"{len(p.sites) - len(now.sites) - len(now.without)} of {p.members} in"]
        if not now.sites:
            words.append("aggregating")
        elif now.seconds >= MIN_WAITING:
            words.append(f"waiting for {listed(now.sites, MAX_PROGRESS)} ({now.seconds:.0f} s)")
        if now.without:
            words.append(f"without {listed(now.without, MAX_PROGRESS)}")
        return " · ".join(words)


def _table(site_statuses: Sequence[SiteStatus], now: Waiting, room: int, width: int, *, is_over: bool) -> Table:
    """Build a row for each site; if there is not enough room, awaited sites first."""
    late = set(now.sites) if now.seconds >= MIN_WAITING and not is_over else set()
    states = {one.site: shown_state(one, one.site in late, is_over) for one in site_statuses}
    rows, rest = list(site_statuses), list[SiteStatus]()
    if len(rows) > room:
        rows.sort(key=lambda one: (one.site not in late, states[one.site] in ("connected", "done")))
        rows, rest = rows[: room - 1], rows[room - 1 :]
    cells = [("site", "rows", "lag", "seconds", "state")]
    for one in rows:
        lag = f"{now.seconds:.0f} s" if one.site in late else counted(one.behind, "step") if one.behind else "–"
        seconds = "–" if one.seconds is None else f"{one.seconds:.2f}"
        cells.append((one.site, "–" if one.rows is None else f"{one.rows:,}", lag, seconds, states[one.site]))
    widths = [max(MIN_COLUMN, *map(len, column)) for column in list(zip(*cells, strict=True))[:-1]]
    widths[0] = min(widths[0], MAX_NAME, max(MIN_COLUMN, width // 3))
    rest_of_line = max(MIN_COLUMN, width - sum(widths) - 2 * len(widths))
    table = Table.grid(padding=(0, 2, 0, 0))
    for characters, justify in zip([*widths, rest_of_line], JUSTIFY, strict=True):
        table.add_column(width=characters, justify=justify, no_wrap=True, overflow="ellipsis")
    for place, row in enumerate(cells):
        table.add_row(*(Text(cell, "" if place else "bold") for cell in row))
    if rest:
        counts = Counter(states[one.site].partition(":")[0] for one in rest)
        many = ", ".join(f"{count:,} {state}" for state, count in counts.most_common())
        grid = Table.grid()
        grid.add_row(table)
        grid.add_row(Text(f"… and {len(rest):,} more: {many}", no_wrap=True, overflow="ellipsis"))
        return grid
    return table


def _epoch_line(p: RunFigures, epoch: Epoch, monitor: str) -> str:
    """Describe an ended epoch, the most important figures first."""
    pooled, number = epoch.validation, f"epoch {epoch.number} of {p.planned_epochs}"
    place = " · ".join([*[epoch.training] * bool(epoch.training), number, f"training loss {_number(epoch.train_loss)}"])
    values = pooled.values if pooled is not None and pooled.samples else {}
    error = pooled.auc_error if pooled is not None else None
    first = {name: value for name, value in values.items() if name == monitor}
    others = {name: value for name, value in values.items() if value is not None}
    metrics = figures(first | others, error)[:MAX_METRICS]
    left = _time_left(p) if p.status == "running" else ""
    fewer = f"{fewer} bytes" if (fewer := compared(p)) else ""
    return fitted([place, *metrics[:1], left, *metrics[1:], _step_time(p), fewer])


def data_warnings(table1: Mapping[str, Any], most: int = MAX_WARNINGS) -> list[str]:
    """Return warnings about the sites' tables, the first of many."""
    found: list[str] = list(table1.get("warnings", ()))
    more = [f"{len(found) - most} more, in summary.json"] if len(found) > most else []
    return found[:most] + more


def _problems(problems: Mapping[str, str]) -> dict[str, str]:
    """Return a line for each site's problem, which says it once of several sites."""
    lines, first = dict[str, str](), dict[str, str]()
    for site, problem in problems.items():
        said = f"{problem}; fix that and start {site} again, or the simulation"
        if (other := first.setdefault(problem, site)) != site:
            said = f"the same as at {other}"
        lines[site] = f"{site} cannot take part: {said}"
        if site == AGGREGATOR:
            lines[site] = f"an internal error of the aggregator, which retries; see its log: {problem}"
    return lines


def _figures(p: RunFigures) -> str:
    values = dict(p.metrics.validation or {})
    if p.metrics.validation is None:
        return f"training loss {_number(p.loss)}"
    if not values.pop("samples", 0):
        return f"training loss {_number(p.train_loss)}"
    error, _ = values.pop("auc_error", None), values.pop("absent", None)
    best = " · ".join(figures(values, error)[:MAX_METRICS])
    return f"training loss {_number(p.train_loss)} · validation: {best}"


def figures(values: Mapping[str, float | int | None], auc_error: float | None) -> list[str]:
    """Format metrics for people."""
    words = []
    for name, value in values.items():
        sign = "±" if value is not None else "may be off by"
        error = "" if name != "auc" or auc_error is None else f" ({sign} {bound(auc_error)})"
        words.append(f"{shown(name)} {_number(value, 5 if name == 'auc' else decimals(name, value, 4))}{error}")
    return words


def _bytes(p: RunFigures) -> str:
    if not p.steps:
        return "nothing sent yet"
    up, down = size(p.bytes_up_per_site_step), size(p.bytes_down_per_site_step)
    fewer = f", {fewer} than dsgd" if (fewer := compared(p)) else ""
    return f"{up} up, {down} down per {p.member} and step{fewer}"


def compared(p: RunFigures) -> str:
    """Return how a run's bytes compare with full gradients; "" where it sends these, and no more but its messages."""
    ratio = p.times_fewer_bytes_than_dense or 0.0
    return "" if p.method == "dsgd" and ratio <= 1 else times_fewer(ratio)


def times_fewer(ratio: float) -> str:
    """Describe a ratio of bytes: "2.0 times fewer"."""
    factor, word = (ratio, "fewer") if ratio >= 1 or not ratio else (1 / ratio, "more")
    return f"{100 * (factor - 1):.1f} % {word}" if 1 <= factor < 1.05 else f"{factor:.1f} times {word}"


def _left(p: RunFigures) -> str:
    if not p.steps or p.status != "running":
        return f"{p.seconds:.1f} s"
    return f"{_step_time(p)} · {_time_left(p)}"


def _step_time(p: RunFigures) -> str:
    return f"{p.seconds_per_step * 1000:.0f} ms a step"


def _time_left(p: RunFigures) -> str:
    left = p.seconds_left
    return f"{left:.0f} s left" if left < 120 else f"{left / 60:.0f} min left"


def _number(value: float | None, digits: int = 4) -> str:
    return "–" if value is None else f"{value:.{digits}f}" if abs(value) < 1e9 else f"{value:.3e}"


def size(count: float) -> str:
    """Format a number of bytes."""
    for unit in ("B", "KB", "MB"):
        if count < 1000:
            return f"{count:.0f} {unit}" if unit == "B" else f"{count:.1f} {unit}"
        count /= 1000
    return f"{count:.1f} GB"
