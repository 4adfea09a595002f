"""What a person sees of a run: a live view on a terminal, plain lines elsewhere."""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Protocol

from rich.console import Console, Group
from rich.live import Live
from rich.progress import BarColumn, MofNCompleteColumn, TaskID, TextColumn
from rich.progress import Progress as Bar
from rich.table import Table
from rich.text import Text

from rankdad.common.errors import counted
from rankdad.common.spec.run import training_name
from rankdad.common.spec.tasks import shown
from rankdad.remote.progress import AGGREGATOR, Progress

_log = logging.getLogger(__name__)

WAITING_PERIOD = 10.0  # seconds between two lines about the same wait
MIN_WAITING = 1.0
MAX_METRICS = 3  # metrics of a line
MAX_WARNINGS = 10  # about the sites' tables


@dataclass(frozen=True)
class Waiting:
    """How the present round stands.

    Args:
        sites: that it waits for.
        seconds: for which it has been open.
        without: sites that have departed, and that it does not wait for.
        ended: whether the run goes on no more, and only has to tell the sites.
    """

    sites: tuple[str, ...] = ()
    seconds: float = 0.0
    without: tuple[str, ...] = ()
    ended: bool = False


class View(Protocol):
    """Shows a run's progress, from `start` to `stop`; `tick` is called several times a second."""

    def start(self) -> None:
        """Begin."""

    def tick(self) -> None:
        """Show what is new."""

    def stop(self) -> None:
        """Leave the last state on the screen."""


def view_of(progress: Progress, waiting: Callable[[], Waiting], console: Console) -> View:
    """Return the view that suits the console.

    Args:
        progress: read at every tick.
        waiting: returns how the present round stands.
        console: where to show it.
    """
    live = console.is_terminal and not console.quiet
    return LiveView(progress, waiting, console) if live else PlainView(progress, waiting, console)


class PlainView:
    """A line for the first step, for every epoch, for every ten seconds of waiting, and for who goes and comes back.

    A quiet console leaves what is wrong: that is logged.
    """

    def __init__(self, progress: Progress, waiting: Callable[[], Waiting], console: Console) -> None:
        self._progress, self._waiting, self._console = progress, waiting, console
        self._epoch = self._said = 0
        self._begun = False
        self._without: tuple[str, ...] = ()
        self._problems: dict[str, str] = {}
        self._warned = False

    def start(self) -> None:
        """Say what begins."""
        p = self._progress
        self._say(f"{p.name}: {p.method}, {p.members}, at most {counted(p.epochs, 'epoch')}")

    def tick(self) -> None:
        """Say what is new."""
        p = self._progress
        if p.table1 and not self._warned:
            self._warned = True
            for line in data_warnings(p.table1):
                self._warn(line, "warning: ")
        if p.step and not self._begun:
            self._begun = True
            self._say(f"step 1 of {p.steps}: loss {_number(p.loss)}")
        done = p.fold * p.epochs + p.epoch
        if p.validation is not None and p.epoch and done > self._epoch:
            self._epoch = done
            self._say(f"{_fold(p)}epoch {p.epoch} of {p.epochs} · {_figures(p)} · {_bytes(p)} · {_left(p)}")
        for site, problem in p.problems.items():
            if self._problems.get(site) != problem:
                self._warn(_problem(site, problem))
        self._problems = dict(p.problems)
        now = self._waiting()
        periods = int(now.seconds / WAITING_PERIOD) if now.sites else 0
        if periods > self._said:
            known = "; ".join(f"{site}: {p.problems[site]}" for site in now.sites if site in p.problems)
            self._say(f"waiting for {', '.join(now.sites)} ({now.seconds:.0f} s)" + f": {known}" * bool(known))
        self._said = periods
        if now.without != self._without and not now.ended:
            self._say(f"goes on without {', '.join(now.without)}" if now.without else "all sites are back")
            self._without = now.without

    def stop(self) -> None:
        """Print what is new since the last tick."""
        self.tick()

    def _warn(self, problem: str, before: str = "") -> None:
        if self._console.quiet:
            _log.warning(problem)
        else:
            self._say(before + problem)

    def _say(self, line: str) -> None:
        self._console.print(Text(line), soft_wrap=True)


class LiveView:
    """A bar and a few lines, drawn over and over."""

    def __init__(self, progress: Progress, waiting: Callable[[], Waiting], console: Console) -> None:
        self._progress, self._waiting = progress, waiting
        name = TextColumn("{task.description}", markup=False)
        self._bar = Bar(name, BarColumn(None), MofNCompleteColumn(), TextColumn("steps"))
        self._task: TaskID = self._bar.add_task(progress.name, total=None)
        self._live = Live(console=console, auto_refresh=False, transient=False)

    def start(self) -> None:
        """Begin to draw."""
        self._live.start()

    def tick(self) -> None:
        """Draw again."""
        self._live.update(self.drawn(), refresh=True)

    def drawn(self) -> Group:
        """Return what is to be seen at the moment."""
        self._bar.update(self._task, completed=self._progress.step, total=self._progress.steps or None)
        return Group(self._bar, self._table())

    def stop(self) -> None:
        """Draw the last state and leave it there."""
        self.tick()
        self._live.stop()

    def _table(self) -> Table:
        p = self._progress
        rows = [
            (p.method, f"{p.members} · {_where(p)} · {_left(p)}"),
            ("quality", _figures(p)),
            ("traffic", _bytes(p)),
            ("round", self._round()),
            *(("warning", line) for line in data_warnings(p.table1)),
            *(("to mend", _problem(site, problem)) for site, problem in p.problems.items()),
        ]
        table = Table.grid(padding=(0, 2))
        for label, text in rows:
            table.add_row(Text(label, "bold"), Text(text))  # a string would be read as markup
        return table

    def _round(self) -> str:
        now, p = self._waiting(), self._progress
        if p.status != "running":
            return p.status
        if now.ended:
            return "the run ends"
        words = [f"{len(p.sites) - len(now.sites) - len(now.without)} of {p.members} in"]
        if not now.sites:
            words.append("aggregating")
        elif now.seconds >= MIN_WAITING:
            words.append(f"waiting for {', '.join(now.sites)} ({now.seconds:.0f} s)")
        if now.without:
            words.append(f"without {', '.join(now.without)}")
        return " · ".join(words)


def data_warnings(table1: Mapping[str, Any]) -> list[str]:
    """Return what is odd about the sites' tables, the first of many."""
    found: list[str] = list(table1.get("warnings", ()))
    more = [f"{len(found) - MAX_WARNINGS} more, in summary.json"] if len(found) > MAX_WARNINGS else []
    return found[:MAX_WARNINGS] + more


def _problem(site: str, problem: str) -> str:
    if site == AGGREGATOR:
        return f"an error of the aggregator's own, which tries again; its log says more: {problem}"
    return f"{site} cannot take part: {problem}; mend that and start {site} again"


def _where(p: Progress) -> str:
    if not p.steps:
        return "waiting for all sites to say hello"
    return f"{_fold(p)}epoch {min(p.epoch + 1, p.epochs)} of {p.epochs}"


def _fold(p: Progress) -> str:
    if p.folds == 1:
        return ""
    return f"{training_name(min(p.fold, p.folds - 1), p.tested_folds, p.folds, p.candidates)} · "


def _figures(p: Progress) -> str:
    if p.validation is None:
        return f"training loss {_number(p.loss)}"
    if not p.validation.samples:
        return f"training loss {_number(p.train_loss)}"
    best = " · ".join(figures(p.validation.values, p.validation.auc_error)[:MAX_METRICS])
    return f"training loss {_number(p.train_loss)} · validation: {best}"


def figures(values: Mapping[str, float | None], auc_error: float | None) -> list[str]:
    """Return metrics as people read them."""
    words = []
    for name, value in values.items():
        error = "" if name != "auc" or auc_error is None else f" (± {bound(auc_error)})"
        words.append(f"{shown(name)} {_number(value, 5 if name == 'auc' else 4)}{error}")
    return words


def _bytes(p: Progress) -> str:
    if not p.step:
        return "nothing sent yet"
    up, down = (size(p.per_site_step(total)) for total in (p.up, p.down))
    return f"{up} up, {down} down per {p.member} and step, {times_fewer(p.ratio)} than dsgd"


def times_fewer(ratio: float) -> str:
    """Return how bytes compare with others, of which there are so many times as many."""
    return f"{ratio:.1f} times fewer" if ratio >= 1 or not ratio else f"{1 / ratio:.1f} times more"


def bound(error: float) -> str:
    """Return a bound in one digit, rounded up: it still is one."""
    if not error > 0:
        return f"{error:.0e}"
    unit = 10.0 ** math.floor(math.log10(error))
    return f"{math.ceil(error / unit - 1e-9) * unit:.0e}"


def _left(p: Progress) -> str:
    if not p.step or p.status != "running":
        return f"{p.seconds:.1f} s"
    left = p.seconds_left
    return f"{p.step_seconds / p.step * 1000:.0f} ms a step · " + (
        f"{left:.0f} s left" if left < 120 else f"{left / 60:.0f} min left"
    )


def _number(value: float | None, digits: int = 4) -> str:
    return "–" if value is None else f"{value:.{digits}f}" if abs(value) < 1e9 else f"{value:.3e}"


def size(count: float) -> str:
    """Return a number of bytes as people read it."""
    for unit in ("B", "KB", "MB"):
        if count < 1000:
            return f"{count:.0f} {unit}" if unit == "B" else f"{count:.1f} {unit}"
        count /= 1000
    return f"{count:.1f} GB"
