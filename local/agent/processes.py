"""An agent's processes: each is a `rankdad site` of its own, and ends with the agent."""

from __future__ import annotations

import os
import signal
import sys
from contextlib import suppress
from subprocess import PIPE, Popen
from typing import Literal

from rankdad.common.documents import Part
from rankdad.common.logs import LogOptions
from rankdad.local.config import SiteConfig

Task = Literal["consider", "train", "answer"]
Kind = Literal["done", "refused", "again", "ended", "crashed"]


class Outcome(Part):
    """The end of an agent's process."""

    kind: Kind
    reason: str = ""
    """For the site's staff."""
    told: str = ""
    """For the owner."""


class Worker:
    """A running process.

    Args:
        config: of the site; by standard input, since it may name a proxy's password.
        logs: log options.
        task: what the process does.
        name: of the run; "" for a question.
        number: of the run or the question.
    """

    def __init__(self, config: SiteConfig, logs: LogOptions, task: Task, name: str, number: str) -> None:
        apart = "-I" if sys.flags.isolated else "-P"  # packages in the current folder are not ours
        words = [sys.executable, apart, "-m", "rankdad", "site", "-", "--task", task, name, number, *logs.flags]
        # Ctrl-C reaches all processes of a terminal; only the agent handles it.
        self._process = Popen(words, stdin=PIPE, stdout=PIPE, start_new_session=True)
        assert self._process.stdin is not None
        with suppress(BrokenPipeError):  # it was killed
            self._process.stdin.write(f"{config.model_dump_json()}\n".encode())
            self._process.stdin.flush()  # and is not closed: the process ends when it is

    def outcome(self) -> Outcome | None:
        """Return the outcome; None while the process runs."""
        code = self._process.poll()
        if code is None:
            return None
        assert self._process.stdout is not None
        text = os.read(self._process.stdout.fileno(), 1 << 16) if code == 0 else b""  # others may hold the pipe
        self.kill()
        if text:
            return Outcome.model_validate_json(text)
        how = f"was killed by {signal.Signals(-code).name}" if code < 0 else f"ended with status {code}"
        return Outcome(kind="crashed", reason=f"the run's process {how}", told=f"its process {how}")

    def stop(self) -> None:
        """Ask it to finish its step, write a checkpoint and end."""
        self._process.terminate()

    def kill(self) -> None:
        """Kill it."""
        self._process.kill()
        self._process.wait()
        for end in (self._process.stdin, self._process.stdout):
            assert end is not None
            end.close()
