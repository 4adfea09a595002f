"""A terminal for tests: a real pseudo-terminal with a process on it, and what a person would see there."""

from __future__ import annotations

import codecs
import contextlib
import fcntl
import os
import pty
import re
import struct
import subprocess
import sys
import termios
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence

UNFINISHED = re.compile(r"\x1b(\[[?\d;]*)?\Z")
SEQUENCE = re.compile(r"\x1b\[(\?)?([\d;]*)([A-Za-z])")


class Screen:
    """The lines of a terminal of so many columns and rows, and those that have left it at the top.

    It knows what is needed to draw over and over; anything else that acts on a terminal fails.
    """

    def __init__(self, columns: int = 80, rows: int = 24) -> None:
        self.columns, self.rows = columns, rows
        self.above: list[str] = []
        self.lines: list[str] = [""] * rows
        self.row = self.column = 0
        self.cursor = True
        self.colours: set[str] = set()
        self.moves = 0

    def feed(self, text: str) -> None:
        while text:
            if text[0] == "\x1b":
                found = SEQUENCE.match(text)
                assert found is not None, repr(text[:20])
                self._act(*found.groups())
                text = text[found.end() :]
                continue
            one, text = text[0], text[1:]
            if one == "\n":
                self._down()
            elif one == "\r":
                self.column = 0
            else:
                assert one.isprintable(), repr(one)
                if self.column == self.columns:
                    self.column = 0
                    self._down()
                line = self.lines[self.row].ljust(self.column)
                self.lines[self.row] = line[: self.column] + one + line[self.column + 1 :]
                self.column += 1

    def _down(self) -> None:
        if self.row == self.rows - 1:
            self.above.append(self.lines.pop(0))
            self.lines.append("")
        else:
            self.row += 1

    def _act(self, private: str | None, numbers: str, letter: str) -> None:
        if letter == "m":
            self.colours |= {number for number in numbers.split(";") if len(number) == 2 and number[0] in "34"}
        elif letter == "A":
            self.row = max(0, self.row - int(numbers or 1))
            self.moves += 1
        elif letter == "K" and numbers == "2":
            self.lines[self.row] = ""
        elif private and numbers == "25":
            self.cursor = letter == "h"
        else:
            raise AssertionError(f"{private}{numbers}{letter}")

    @property
    def text(self) -> str:
        return "\n".join(line.rstrip() for line in self.lines).rstrip()


class OnTerminal:
    """A process on a pseudo-terminal; every screen that could be seen between two writes of it is kept."""

    def __init__(self, command: Sequence[str], columns: int, rows: int, environment: Mapping[str, str]) -> None:
        master, slave = pty.openpty()
        fcntl.ioctl(slave, termios.TIOCSWINSZ, struct.pack("HHHH", rows, columns, 0, 0))
        kept = {name: value for name, value in os.environ.items() if name not in ("NO_COLOR", "FORCE_COLOR", "COLUMNS")}
        self.process = subprocess.Popen(
            command,
            stdin=slave,
            stdout=slave,
            stderr=slave,
            env={**kept, "TERM": "xterm-256color", "OMP_NUM_THREADS": "1", **environment},
            start_new_session=True,
        )
        os.close(slave)
        self.screen, self.seen, self._master = Screen(columns, rows), list[str](), master
        self.error: BaseException | None = None
        self._thread = threading.Thread(target=self._read, daemon=True)
        self._thread.start()

    def _read(self) -> None:
        decoder, rest = codecs.getincrementaldecoder("utf-8")(), ""
        with contextlib.suppress(OSError):  # the process has ended
            while new := os.read(self._master, 1 << 16):
                text = rest + decoder.decode(new)
                whole = UNFINISHED.sub("", text)
                rest = text[len(whole) :]
                try:
                    self.screen.feed(whole)
                except BaseException as error:  # told to the test
                    self.error = error
                    return
                if self.screen.text:
                    self.seen.append(self.screen.text)

    def close(self) -> None:
        self._thread.join(10)
        os.close(self._master)

    def wait_for(self, told: Callable[[str], object], seconds: float = 60.0) -> str:
        """Return the first screen for which something holds."""
        end, looked = time.monotonic() + seconds, 0
        while True:
            ended = self.process.poll() is not None and not self._thread.is_alive()
            for text in self.seen[looked:]:
                looked += 1
                if told(text):
                    return text
            if ended or time.monotonic() > end:
                raise AssertionError(f"not seen; the last screen:\n{self.screen.text}\n{self.error}")
            time.sleep(0.02)

    def end(self, seconds: float = 120.0) -> str:
        """Wait for the process's end; return all that stands on the terminal, and what has left it at the top."""
        self.process.wait(seconds)
        self._thread.join(10)
        assert self.error is None, self.error
        return "\n".join([*(line.rstrip() for line in self.screen.above), self.screen.text])


@contextlib.contextmanager
def on_terminal(
    *arguments: object, columns: int = 80, rows: int = 24, environment: Mapping[str, str] | None = None
) -> Iterator[OnTerminal]:
    """Run `rankdad` on a terminal."""
    command = [sys.executable, "-m", "rankdad", *map(str, arguments)]
    shown = OnTerminal(command, columns, rows, environment or {})
    try:
        yield shown
    finally:
        if shown.process.poll() is None:
            shown.process.kill()
        shown.process.wait()
        shown.close()
