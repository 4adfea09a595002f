"""An agent's processes: each is a `rankdad site` of its own, and ends with the agent."""

from __future__ import annotations

import os
import signal
import sys
from contextlib import ExitStack, suppress
from subprocess import PIPE, Popen
from tempfile import TemporaryFile
from typing import Literal

from pydantic import ValidationError

from rankdad.common.documents import Part
from rankdad.common.errors import RankdadError
from rankdad.common.logs import LogOptions
from rankdad.local.config import SiteConfig

Task = Literal["consider", "train", "answer"]
Kind = Literal["done", "refused", "again", "replaced", "ended", "crashed"]
MAX_OUTCOME = 1 << 16  # bytes


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

    Raises:
        RankdadError: no process can be started.
    """

    def __init__(self, config: SiteConfig, logs: LogOptions, task: Task, name: str, number: str) -> None:
        apart = "-I" if sys.flags.isolated else "-P"  # packages in the current folder are not ours
        words = [sys.executable, apart, "-m", "rankdad", "site", "-", "--task", task, name, number, *logs.flags]
        try:
            with ExitStack() as opened:
                self._printed = opened.enter_context(TemporaryFile())  # unlike a pipe, it never blocks
                # Ctrl-C reaches all processes of a terminal; only the agent handles it.
                self._process = Popen(words, stdin=PIPE, stdout=self._printed, start_new_session=True)
                opened.pop_all()
        except OSError as error:
            raise RankdadError(f"no process can be started: {error.strerror or error}", code="no-process") from None
        assert self._process.stdin is not None
        with suppress(BrokenPipeError):  # it was killed
            self._process.stdin.write(f"{config.model_dump_json()}\n".encode())
            self._process.stdin.flush()  # and is not closed: the process ends when it is

    def outcome(self) -> Outcome | None:
        """Return the outcome; None while the process runs."""
        code = self._process.poll()
        if code is None:
            return None
        size = self._printed.seek(0, os.SEEK_END)
        self._printed.seek(max(0, size - MAX_OUTCOME))
        *_, last = self._printed.read().splitlines() or [b""]  # packages of the site's own may print before
        self.kill()
        if code == 0:
            with suppress(ValidationError):
                return Outcome.model_validate_json(last)
        how = f"was killed by {signal.Signals(-code).name}" if code < 0 else f"ended with status {code}"
        return Outcome(kind="crashed", reason=f"the run's process {how}", told=f"its process {how}")

    def stop(self) -> None:
        """Ask it to finish its step, write a checkpoint and end."""
        self._process.terminate()

    def kill(self) -> None:
        """Kill it."""
        self._process.kill()
        self._process.wait()
        assert self._process.stdin is not None
        with suppress(BrokenPipeError):  # it has not read all
            self._process.stdin.close()
        self._printed.close()
