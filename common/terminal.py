"""Progress displays on a terminal, and lines of limited length."""

from __future__ import annotations

import math
import sys
from collections.abc import Callable, Iterable, Sequence
from itertools import pairwise

from rich.console import Console, RenderableType
from rich.live import Live
from rich.segment import Segment, SegmentLines

from rankdad.common.errors import visible
from rankdad.common.logs import MAX_PROGRESS

BARS = "▁▂▃▄▅▆▇█"


def console_here(*, stderr: bool = False, quiet: bool = False) -> Console:
    """Return a console for real terminals only, ignoring the environment's settings of colours."""
    stream = sys.stderr if stderr else sys.stdout
    terminal = stream is not None and stream.isatty()
    return Console(stderr=stderr, quiet=quiet, force_terminal=None if terminal else False)


def can_draw(console: Console) -> bool:
    """Return whether a terminal supports repeated drawing."""
    return console.is_terminal and not console.is_dumb_terminal and not console.quiet


def sparkline(values: Sequence[float], width: int) -> str:
    """Return a curve in one line, with the lowest value as the lowest bar; NaN and infinity are gaps.

    Args:
        values: of the curve.
        width: largest number of characters; a longer curve is averaged over equal parts.
    """
    count = min(width, len(values))
    ends = [len(values) * place // max(1, count) for place in range(count + 1)]
    means = [_mean([v for v in values[first:last] if math.isfinite(v)]) for first, last in pairwise(ends)]
    known = [value for value in means if math.isfinite(value)]
    low, high = min(known, default=0.0), max(known, default=0.0)
    # Halves, because the difference of two large numbers may overflow.
    shares = (0.5 if high == low else (value / 2 - low / 2) / (high / 2 - low / 2) for value in means)
    return "".join(BARS[round((len(BARS) - 1) * share)] if math.isfinite(share) else " " for share in shares)


def _mean(values: Sequence[float]) -> float:
    return math.fsum(value / len(values) for value in values) if values else math.nan


def fitted(parts: Iterable[str], most: int = MAX_PROGRESS) -> str:
    """Join the parts of a line that fit, most important ones first; the first is truncated if necessary."""
    line = ""
    for part in filter(None, parts):
        longer = f"{line} · {part}" if line else part
        line = longer if len(longer) <= most else line or visible(part, most)
    return line


def listed(names: Sequence[str], most: int) -> str:
    """Join names within a width: `alpha, beta and 3 more`."""
    for count in range(len(names), 0, -1):
        more = f" and {len(names) - count:,} more" if count < len(names) else ""
        line = ", ".join(names[:count]) + more
        if len(line) <= most:
            return line
    more = f" and {len(names) - 1:,} more" if len(names) > 1 else ""
    return visible(names[0], max(2, most - len(more))) + more if names else ""


class Drawing:
    """A repeated drawing at the end of a terminal's output; log lines appear above it.

    Args:
        console: to draw on.
        drawn: returns the current content.
    """

    def __init__(self, console: Console, drawn: Callable[[], RenderableType]) -> None:
        self._console, self._drawn = console, drawn
        self._seen: list[list[Segment]] = []
        # A redirected stream is not changed.
        self._live = Live(
            console=console,
            auto_refresh=False,
            redirect_stdout=sys.stdout.isatty(),
            redirect_stderr=sys.stderr.isatty(),
        )

    def start(self) -> None:
        """Start to draw."""
        self._live.start()

    def draw(self) -> None:
        """Draw if something has changed."""
        lines = self._console.render_lines(self._drawn(), pad=False)
        if lines != self._seen:
            self._seen = lines
            self._live.update(SegmentLines(lines, new_lines=True), refresh=True)

    def stop(self) -> None:
        """Draw the last state, which stays visible."""
        self._live.update(SegmentLines(self._console.render_lines(self._drawn(), pad=False), new_lines=True))
        self._live.stop()
