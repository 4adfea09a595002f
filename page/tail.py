"""The last lines of the log."""

from __future__ import annotations

import json
import logging
from collections import deque

from rankdad.common.errors import visible

MAX_LINES = 100
MAX_LENGTH = 300  # characters of a line
Line = tuple[float | None, str, str]  # time (None if in the text), level, text


class Tail(logging.Handler):
    """Stores the last log lines; the logger's level applies."""

    def __init__(self) -> None:
        super().__init__()
        self._lines = deque[Line](maxlen=MAX_LINES)
        logging.getLogger("rankdad").addHandler(self)

    def emit(self, record: logging.LogRecord) -> None:
        """Store a line."""
        event = vars(record).get("event", {})
        words = [record.getMessage(), *(f"{key}={json.dumps(value)}" for key, value in event.items())]
        line = visible(" ".join(words), MAX_LENGTH)
        self._lines.append((round(record.created, 1), record.levelname.lower(), line))

    def lines(self) -> list[Line]:
        """Return the lines, oldest first."""
        return list(self._lines)

    def stop(self) -> None:
        """Stop storing lines."""
        logging.getLogger("rankdad").removeHandler(self)
