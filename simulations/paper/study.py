"""From the name of a figure to its files: jobs, tables, pictures and the page."""

from __future__ import annotations

import importlib.util
from collections.abc import Sequence
from pathlib import Path

from rich.console import Console

from common.errors import UserError
from simulations.paper.parts import check_data, jobs, tables
from simulations.paper.queue import do
from simulations.paper.settings import Setting


def make(parts: Sequence[str], setting: Setting, output: Path, data: Path, processes: int, console: Console) -> None:
    """Make figures and tables, and the page of all that the folder holds.

    Args:
        parts: names of figures and tables.
        setting: how much is trained.
        output: folder of results, CSV files, pictures and the page.
        data: folder of the data sets' files.
        processes: trainings at a time.
        console: where progress and verdicts are shown.

    Raises:
        UserError: matplotlib or data are missing, or the folder cannot be written.
    """
    if importlib.util.find_spec("matplotlib") is None:
        raise UserError("figures need matplotlib: pip install 'rankdad[plots]'")
    check_data(parts, setting, data)
    do(jobs(parts, setting), output, data, processes, console)
    for name, table in tables(setting, output).items():
        table.to_csv(output / f"{name}.csv", index=False)
