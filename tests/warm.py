"""Commands in processes forked from one that has imported everything, so that seconds of imports are paid once.

They are processes like any other: killed, told to stop, with an output of their own. That a command starts by itself
is shown by the tests that run `python -m rankdad`.
"""

from __future__ import annotations

import multiprocessing
import os
import signal
import subprocess
import sys
import tempfile
import threading
from collections.abc import Mapping, Sequence
from multiprocessing import forkserver
from multiprocessing.connection import Connection
from pathlib import Path
from typing import IO

from rankdad.local.agent import processes

CONTEXT = multiprocessing.get_context("forkserver")
CONTEXT.set_forkserver_preload(
    [
        *(
            "rankdad.__main__",
            "rankdad.local.prediction",
            "rankdad.remote.process",
            "rankdad.remote.report.run_report",
            "rankdad.remote.service.process",
            "rankdad.local.agent.agent",
            "rankdad.local.agent.tasks",
            "rankdad.simulations.simulator",
        ),
        *(
            "rankdad.simulations.lockstep",
            "rankdad.platforms.coinstac.service",
            "tests.e2e.failpoints",
        ),
    ]
)


class Warm:
    """A command that runs, with what tests use of `subprocess.Popen`.

    Args:
        words: of the command, after `rankdad`.
        environment: its variables; this process's without it.
        folder: it works in.
        new_session: whether it leads a session, so that it and its children can be sent one signal.
        log: file that takes what it says; else `stdout` and `communicate` give that.
        stdin: of it; else it has none.
        stderr: file that takes its errors; else that is `log`, or `communicate` gives them.
    """

    def __init__(
        self,
        *words: object,
        environment: Mapping[str, str] | None = None,
        folder: Path | None = None,
        new_session: bool = False,
        log: IO[bytes] | None = None,
        stdin: int | None = None,
        stderr: IO[bytes] | None = None,
    ) -> None:
        self.args = [*map(str, words)]
        reading, writing = os.pipe() if log is None else (os.open(os.devnull, os.O_RDONLY), os.dup(log.fileno()))
        self.stdout = os.fdopen(reading, encoding="utf-8")
        if log is not None:
            self.stdout.close()
        self._stderr = stderr or log or tempfile.TemporaryFile()  # noqa: SIM115
        with (
            Connection(os.open(os.devnull, os.O_RDONLY) if stdin is None else stdin, writable=False) as given,
            Connection(writing, readable=False) as out,
            Connection(os.dup(self._stderr.fileno()), readable=False) as err,
        ):
            ends = given, out, err
            arguments = (self.args, ends, dict(environment or os.environ), folder or Path.cwd(), new_session)
            self._process = CONTEXT.Process(target=_run, args=arguments)
            self._process.start()
        assert self._process.pid is not None
        self.pid = self._process.pid

    @property
    def returncode(self) -> int | None:
        """The exit status; negative if a signal ended it."""
        return self._process.exitcode

    def poll(self) -> int | None:
        """Return the exit status, or None while it runs."""
        return self.returncode

    def send_signal(self, number: int) -> None:
        """Send a signal to a process that still runs."""
        if self.poll() is None:
            os.kill(self.pid, number)

    def terminate(self) -> None:
        """End it by SIGTERM."""
        self.send_signal(signal.SIGTERM)

    def kill(self) -> None:
        """End it by SIGKILL."""
        self.send_signal(signal.SIGKILL)

    def wait(self, timeout: float | None = None) -> int:
        """Return the exit status once it has ended."""
        self._process.join(timeout)
        if self.returncode is None:
            raise subprocess.TimeoutExpired(self.args, timeout or 0.0)
        return self.returncode

    def communicate(self, timeout: float | None = None) -> tuple[str, str]:
        """Return what was not yet read of its output, and its errors, once it has ended."""
        said: list[str] = []
        reader = threading.Thread(target=lambda: said.append(self.stdout.read()), daemon=True)
        if not self.stdout.closed:
            reader.start()
        self.wait(timeout)
        if reader.ident is not None:
            reader.join()
            self.stdout.close()
        if self._stderr.closed:
            return "", ""
        with self._stderr:
            self._stderr.seek(0)
            return "".join(said), self._stderr.read().decode()


class WarmWorker(Warm):
    """A process of an agent that is itself a `Warm`, in place of `subprocess.Popen`."""

    def __init__(self, words: Sequence[str], *, stdout: IO[bytes], **_: object) -> None:
        reading, writing = os.pipe()
        self.stdin = os.fdopen(writing, "wb")
        own = words[words.index("rankdad") + 1 :]
        with os.fdopen(os.dup(2), "wb") as errors:
            super().__init__(*own, new_session=True, stdin=reading, log=stdout, stderr=errors)


def _run(
    words: list[str], ends: Sequence[Connection], environment: dict[str, str], folder: Path, new_session: bool
) -> None:
    """Become the command."""
    if new_session:
        os.setsid()
    for number, end in enumerate(ends):
        os.dup2(end.fileno(), number)
        end.close()
    sys.stdin = os.fdopen(0, encoding="utf-8", closefd=False)
    sys.stdout = os.fdopen(1, "w", encoding="utf-8", closefd=False)
    sys.stderr = os.fdopen(2, "w", encoding="utf-8", closefd=False, buffering=1)
    os.chdir(folder)
    os.environ.clear()
    os.environ.update(environment)
    sys.argv = ["rankdad", *words]
    processes.Popen = WarmWorker  # type: ignore[assignment, attr-defined]
    # Its own processes come from where it came from: else each agent starts a server, and imports everything again.
    setattr(forkserver._forkserver, "ensure_running", lambda: None)  # noqa: B010
    from rankdad.__main__ import main

    main()
