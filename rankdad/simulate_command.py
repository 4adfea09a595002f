"""Runs `rankdad simulate` as a separate process."""

from __future__ import annotations

import json
import subprocess
import sys
from collections import deque
from collections.abc import Callable, Sequence
from pathlib import Path
from tempfile import TemporaryFile
from typing import Any

from rankdad.common.errors import RankdadError, UserError
from rankdad.common.logs import ended_with

LAST_LINES = 20  # shown if a command ends without an error message


def command(file: Path, directory: Path, assignments: Sequence[str] = (), data: Path | None = None) -> list[str]:
    """Return the command that runs a simulation.

    Args:
        file: run and simulation.
        directory: of the run.
        assignments: for `--set`.
        data: for `--data`.
    """
    words = [sys.executable, "-m", "rankdad", "simulate", str(file), "--output", str(directory)]
    words += [word for assignment in assignments for word in ("--set", assignment)]
    return words + (["--data", str(data)] if data else [])


def summary_of(simulation: Sequence[str], say: Callable[[str], None] = lambda line: None) -> dict[str, Any]:
    """Run the command of a simulation, and return its summary.

    Args:
        simulation: the command.
        say: called with every line of its progress.

    Raises:
        UserError: the file is wrong, or its data cannot be used.
        RankdadError: the run failed.
    """
    words, lines = [*simulation, "--json"], deque[str](maxlen=LAST_LINES)
    with (
        TemporaryFile("w+", encoding="utf-8") as printed,
        subprocess.Popen(words, stdout=printed, stderr=subprocess.PIPE, text=True, encoding="utf-8") as process,
    ):
        assert process.stderr is not None
        try:
            for line in process.stderr:
                lines.append(line.rstrip())
                say(lines[-1])
        except BaseException:  # such as Ctrl-C: ends the command and its processes, and waits for them
            process.terminate()
            raise
        if process.wait():
            last = lines[-1] if lines else ""
            found = last.startswith("error: ")
            error, code = ended_with(last.removeprefix("error: ")) if found else ("\n".join(lines), "simulation-ended")
            raise (UserError if process.returncode == UserError.exit_code else RankdadError)(error, code=code)
        printed.seek(0)
        summary: dict[str, Any] = json.load(printed)
        return summary
