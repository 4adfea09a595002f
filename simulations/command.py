"""`rankdad simulate` in a process of its own, as a person would start it."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from rankdad.common.errors import RankdadError, UserError


def command(file: Path, directory: Path, assignments: Sequence[str] = (), data: Path | None = None) -> list[str]:
    """Return the command that runs a simulation.

    Args:
        file: run and simulation.
        directory: of the run.
        assignments: as `--set` takes them.
        data: the source's data, in place of the file's own path.
    """
    words = [sys.executable, "-m", "rankdad", "simulate", str(file), "--output", str(directory)]
    words += [word for assignment in assignments for word in ("--set", assignment)]
    return words + (["--data", str(data)] if data else [])


def summary_of(simulation: Sequence[str]) -> dict[str, Any]:
    """Run a simulation's command to its end, and return its summary.

    Raises:
        UserError: the file is wrong, or its data cannot be used.
        RankdadError: the run could not go on.
    """
    done = subprocess.run([*simulation, "--json"], capture_output=True, text=True, check=False)
    if done.returncode == UserError.exit_code:
        raise UserError(done.stderr.strip().removeprefix("error: "))
    if done.returncode:
        raise RankdadError(done.stderr.strip())
    summary: dict[str, Any] = json.loads(done.stdout)
    return summary
