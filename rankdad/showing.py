"""Shows a run's progress on a terminal or in a notebook."""

from __future__ import annotations

import importlib
import io
import logging
import time
from typing import Any

from rich.console import Console, RenderableType
from rich.text import Text

from rankdad.common.errors import visible
from rankdad.common.logs import MAX_LINE
from rankdad.common.terminal import can_draw, console_here
from rankdad.remote.aggregator import Aggregator
from rankdad.remote.view import LiveView, View, Waiting, data_warnings

PERIOD = 0.2  # seconds between two updates
NOTEBOOK_WIDTH = 100  # characters

_log = logging.getLogger(__name__)


class Onlooker:
    """Show a run's progress within a `with`; warnings are logged at the end in any case.

    Args:
        wanted: whether to show the progress.
    """

    def __init__(self, wanted: bool) -> None:
        self._console = console_here(stderr=True)
        notebook = Console().is_jupyter
        self._cell = _Cell() if wanted and notebook else None
        self._drawing = wanted and (notebook or can_draw(self._console))
        self._view: View | None = None
        self._aggregator: Aggregator | None = None
        self._next = 0.0

    def __enter__(self) -> Onlooker:
        return self

    def __exit__(self, *_: object) -> None:
        if self._view is not None:
            self._view.stop()
        if self._aggregator is not None:
            warnings = [*self._aggregator.plan.warnings, *data_warnings(self._aggregator.recorder.progress.table1)]
            for warning in warnings:
                _log.warning("%s", visible(warning, MAX_LINE))

    def round(self, aggregator: Aggregator) -> None:
        """Show the progress of a run in this process, after a round."""
        self._aggregator = aggregator
        if not self._drawing or time.monotonic() < self._next:
            return
        if self._view is None:
            recorder = aggregator.recorder
            live = LiveView(recorder.progress, Waiting, self._console, recorder.history)
            self._view = live if self._cell is None else _NotebookView(live, self._cell)
            self._view.start()
        self._view.tick()
        self._next = time.monotonic() + PERIOD

    def line(self, line: str) -> None:
        """Show a line of a run in other processes."""
        if self._cell is not None:
            self._cell.show(Text(line))
        elif self._drawing:
            self._console.print(Text(line), soft_wrap=True)


class _NotebookView:
    """Draws a live view in a notebook's cell."""

    def __init__(self, live: LiveView, cell: _Cell) -> None:
        self._live, self._cell = live, cell

    def start(self) -> None:
        self.tick()

    def tick(self) -> None:
        self._cell.show(self._live.drawn())

    def stop(self) -> None:
        self.tick()


class _Cell:
    """A part of a notebook's cell that can be updated without widgets."""

    def __init__(self) -> None:
        self._display = importlib.import_module("IPython.display")
        self._handle: Any = None

    def show(self, drawn: RenderableType) -> None:
        console = Console(file=io.StringIO(), record=True, width=NOTEBOOK_WIDTH, force_jupyter=False)
        console.print(drawn)
        page = console.export_html(inline_styles=True, code_format="<pre>{code}</pre>")
        html: Any = self._display.HTML(page)
        if self._handle is None:
            self._handle = self._display.display(html, display_id=True)
        else:
            self._handle.update(html)
