"""Start, logs and end of a simulation's processes."""

from __future__ import annotations

import io
import os
import signal
import sys
import time
import traceback
from collections.abc import Callable, Iterable
from multiprocessing.connection import wait
from multiprocessing.context import BaseContext
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import TextIO, cast

from rankdad.common.errors import RankdadError
from rankdad.common.files import cannot_write, naming_the_disk
from rankdad.common.logs import LogFile, ended_with, error_line

ENDING = 4.0  # seconds for processes to end after one has ended
LAST_LINES = 5


def start(context: BaseContext, name: str, target: Callable[[], None]) -> BaseProcess:
    """Start a process that ends with its parent."""
    process = context.Process(target=target, name=name, daemon=True)  # type: ignore[attr-defined]
    process.start()
    return process  # type: ignore[no-any-return]


def redirect(log: LogFile) -> None:
    """Let a process print into its log."""
    os.dup2(log.fileno(), 1)
    os.dup2(log.fileno(), 2)
    sys.stdout = sys.stderr = cast(TextIO, log)


def open_log(path: Path) -> LogFile:
    """Open this process's log; where the disk does not take it, say so and end the process."""
    log = LogFile(path, anew=True)
    if log.problem is not None:
        error = cannot_write(path, log.problem)
        print(error_line(str(error), error.code), file=sys.stderr, flush=True)
        os._exit(error.exit_code)
    return log


def run(work: Callable[[], object], log: io.TextIOBase) -> None:
    """Run a process's work; a known error becomes a line in its log, any other a traceback."""
    code = 0
    try:
        with naming_the_disk():
            work()
    except RankdadError as error:
        print(error_line(str(error), error.code), file=log)
        code = error.exit_code
    except BaseException:
        traceback.print_exc(file=log)
        code = 1
    log.flush()
    sys.stdout.flush()
    os._exit(code)


def stop(processes: Iterable[BaseProcess], acts: Iterable[str]) -> None:
    """Apply actions in turn until all processes have ended."""
    processes = list(processes)
    for act in acts:
        living = [process for process in processes if process.is_alive()]
        if act == "wait":
            _wait_all([process.sentinel for process in living], ENDING / 2)
            continue
        for process in living:
            getattr(process, act)()
    for process in processes:
        process.join(ENDING)  # sets the exit status


def _wait_all(sentinels: list[int], seconds: float) -> None:
    deadline = time.monotonic() + seconds
    while sentinels and (left := deadline - time.monotonic()) > 0:
        for sentinel in wait(sentinels, left):
            sentinels.remove(sentinel)  # type: ignore[arg-type]


def how_it_ended(process: BaseProcess) -> str:
    """Describe the signal or status that ended a process."""
    code = process.exitcode
    if code is not None and code < 0:
        return f"killed by {signal.Signals(-code).name}"
    return f"ended with status {code}"


def last_error(log: Path) -> tuple[str, str]:
    """Return the last error in a process's log and its code; "" without one."""
    _, found, error = last_lines(log).rpartition("error: ")
    sentence, code = ended_with(error)
    return (sentence, code) if found else ("", "")


def last_lines(path: Path) -> str:
    """Return the last lines of a log; "" if unreadable."""
    try:
        lines = path.read_text(encoding="utf-8", errors="replace").strip().splitlines()
    except OSError:
        return ""
    return "\n".join(lines[-LAST_LINES:])
