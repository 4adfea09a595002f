"""What a site's terminal says while it trains: a line when a training begins, for each epoch and for each test.

A bar and the metric's curve stand below, where the terminal can be drawn on.
"""

from __future__ import annotations

import contextlib
import math
import threading
import time
from collections.abc import Callable, Mapping

from rich.console import Console, Group
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from rankdad.common.protocol.messages import Body, PooledMetrics, Step
from rankdad.common.run.state import RunState
from rankdad.common.spec import RunSpec
from rankdad.common.spec.tasks import shown
from rankdad.common.terminal import Drawing, sparkline

MAX_METRICS = 2  # in a line
PERIOD = 0.4  # seconds between two drawings
MIN_WAITING = 1.0  # seconds
MAX_NAME = 30  # characters
WAITING = "pack"  # the lap after which a site waits for the aggregator


def following(
    spec: RunSpec, run: RunState, say: Callable[[str], None], clock: Callable[[], float] = time.monotonic
) -> Callable[[Body], None]:
    """Return what is to be given every update after the run has followed it, and says what is new.

    Args:
        spec: the run.
        run: where it is.
        say: told each line.
        clock: seconds.
    """
    began, fold, epoch, said, loss = clock(), run.fold, run.epoch, run.fold if run.epoch else -1, 0.0

    def look(body: Body) -> None:
        nonlocal fold, epoch, said, loss
        if isinstance(body, Step):
            loss = body.loss
        if run.fold > fold:
            test = run.test
            tested = f"{_figures(test.values)}, {test.samples} samples" if test and test.samples else "no samples"
            if spec.place(fold)[1] is None:
                say(f"{spec.training_name(fold)} · test: {tested}".removeprefix(" · "))
        elif run.epoch > epoch:
            validation = run.validation
            measured = validation is not None and validation.samples > 0
            figures = _figures(validation.values) if validation and measured else f"training loss {loss:.4f}"
            best = " (best so far)" if measured and run.best_epoch == run.epoch - 1 else ""
            where = f"epoch {run.epoch} of {run.epochs} · {clock() - began:.0f} s · step {run.steps}"
            say(f"{where} · {figures}{best}")
        if run.trains and run.fold > said:
            said = run.fold
            if spec.folds > 1:
                model, candidate = spec.place(run.fold)
                final = " with all samples" * (model >= spec.tested_folds and candidate is None)
                say(f"{spec.training_name(run.fold)}: trains{final}")
        fold, epoch = run.fold, run.epoch

    return look


def _figures(values: Mapping[str, float | None]) -> str:
    known = [f"{shown(name)} {value:.4f}" for name, value in values.items() if value is not None]
    return ", ".join(known[:MAX_METRICS])


class SiteView:
    """Draws how far a site is, in a thread of its own while a `with` block runs; what is logged stays above it.

    Args:
        site: its name.
        spec: the run.
        run: where it is.
        console: a terminal.
        clock: seconds.
    """

    def __init__(
        self, site: str, spec: RunSpec, run: RunState, console: Console, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._site, self._spec, self._run, self._console, self._clock = site, spec, run, console, clock
        self._drawing, self._over = Drawing(console, self.drawn), threading.Event()
        self._thread = threading.Thread(target=self._draw, name="view", daemon=True)
        self._fold, self._steps = run.fold, 0
        self._curve, self._values, self._loss = "", list[float](), math.nan  # of the fold's epochs
        self._since, self._waits, self._waited = clock(), False, 0.0
        self._began, self._first = self._since, run.steps

    def __enter__(self) -> SiteView:
        self._drawing.start()
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        self._thread.join()
        with contextlib.suppress(OSError):  # nobody looks any more
            self._drawing.stop()

    def lap(self, name: str) -> None:
        """Take note that a stretch of work has ended, as `Timings.lap` does."""
        now, waits = self._clock(), name == WAITING
        if self._waits:
            self._waited += now - self._since
        if waits != self._waits:
            self._since = now
        self._waits = waits

    def followed(self, body: Body) -> None:
        """Take note of an update that the run has followed."""
        run = self._run
        if isinstance(body, Step):
            self._loss = body.loss
        elif isinstance(body, PooledMetrics) and body.split == "validation":
            value = body.values.get(self._spec.training.monitor) if body.samples else self._loss
            self._values.append(math.nan if value is None else value)
            self._curve = shown(self._spec.training.monitor) if body.samples else "training loss"
        if self._fold < run.fold < self._spec.folds:
            self._fold, self._values = run.fold, []

    def drawn(self) -> Group:
        """Return what is to be seen at the moment."""
        run, spec = self._run, self._spec
        steps = self._steps = self._steps or run.steps_in_all
        bar = Table.grid(padding=(0, 1), expand=True)
        bar.add_column(no_wrap=True, max_width=MAX_NAME)
        bar.add_column(ratio=1)
        bar.add_column(no_wrap=True)
        count = f"{run.steps:,}/{steps:,} steps" if steps else "no steps yet"
        bar.add_row(Text(f"{self._site}: {spec.name}"), ProgressBar(max(1, steps), run.steps), count)
        fold = spec.training_name(min(run.fold, spec.folds - 1)) if spec.folds > 1 else ""
        words = [fold, run.where or "before the first step", self._state()]
        if run.steps > self._first:
            spent = max(1e-9, self._clock() - self._began)
            words.append(f"{spent / (run.steps - self._first) * 1000:.0f} ms a step")
            words.append(f"{100 * self._waited / spent:.0f} % of it waiting")
        lines = [Text(" · ".join(filter(None, words)), no_wrap=True, overflow="ellipsis")]
        if self._values:
            last = f" {self._values[-1]:.4f}"
            width = min(60, max(8, self._console.width - len(self._curve) - 1 - len(last)))
            curve = f"{self._curve} {sparkline(self._values, width)}{last}"
            lines.append(Text(curve, no_wrap=True, overflow="ellipsis"))
        return Group(bar, *lines)

    def _state(self) -> str:
        seconds = self._clock() - self._since
        long = f" ({seconds:.0f} s)" if seconds >= MIN_WAITING else ""
        if self._run.farewell is not None:
            return "done"
        return f"waits for the aggregator{long}" if self._waits and long else f"computes{long * (not self._waits)}"

    def _draw(self) -> None:
        with contextlib.suppress(OSError):  # nobody looks any more: the run goes on
            while not self._over.wait(PERIOD):
                self._drawing.draw()
