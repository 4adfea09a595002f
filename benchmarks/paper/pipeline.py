"""Make figures and tables: do the jobs, then write tables, pictures and the page."""

from __future__ import annotations

import importlib.util
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from rich.console import Console

from benchmarks.paper.parts import check_data, jobs, tables, where
from benchmarks.paper.queue import do
from benchmarks.paper.settings import Setting
from rankdad.common.errors import UserError

PAGE = "README.md"


def make(
    parts: Sequence[str],
    setting: Setting,
    output: Path,
    data: Path,
    processes: int,
    console: Console,
    folds: int | None = None,
) -> None:
    """Make figures and tables, and a page about all results in the folder.

    Args:
        parts: names of figures and tables.
        setting: how much is trained.
        output: folder of results, CSV files, pictures and the page.
        data: folder of the data sets' files.
        processes: trainings at a time.
        console: where progress and verdicts are shown.
        folds: that are trained now, in place of the setting's; tables have all that are there.

    Raises:
        UserError: matplotlib or data are missing, or the folder cannot be written.
    """
    if importlib.util.find_spec("matplotlib") is None:
        raise UserError("figures need matplotlib: pip install 'rankdad[plots]'", code="not-installed")
    check_data(parts, setting, data)
    now = setting if folds is None else replace(setting, folds=folds)
    do(jobs(parts, now), output, data, processes, console)
    write(setting, output, console)


def write(setting: Setting, output: Path, console: Console) -> None:
    """Write tables, pictures and the page about all results in a folder, and print the verdicts."""
    from benchmarks.paper import page
    from benchmarks.paper.claims import claims
    from benchmarks.paper.paper_plots import pictures

    found = tables(setting, output)
    for name, table in found.items():
        _write(output / f"{name}.csv", table.to_csv(index=False, lineterminator="\n").encode())
    drawn = pictures(found, setting.panels)
    for stem, picture in drawn.items():
        _write(output / f"{stem}.png", picture)
    meta = page.Meta(setting, f" --setting {setting.key}", where(setting, output), frozenset(drawn))
    _write(output / PAGE, page.write(found, meta).encode())
    judged = Counter(page.VERDICTS[claim.verdict] for claim in claims(found))
    console.print(f"{output / PAGE}: {', '.join(f'{count} claims: {words}' for words, count in judged.items())}")


def _write(path: Path, content: bytes) -> None:
    try:
        path.write_bytes(content)
    except OSError as error:
        raise UserError(f"{path}: cannot be written: {error.strerror}", code="cannot-write") from None
