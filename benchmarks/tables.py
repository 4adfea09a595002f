"""How long a table takes to be read as samples, beside pandas, which reads it as it is: pairs in one process."""

from __future__ import annotations

import statistics
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pandas as pd
from rich.console import Console
from rich.table import Table

from rankdad.common.data.csv import read_csv
from rankdad.common.documents import validate
from rankdad.common.spec.data import CsvData

MOST = {"numbers": 3.0, "mixed": 3.0}  # times pandas' time
LEVELS = ("low", "middle", "high")


@dataclass(frozen=True)
class Measured:
    """One table.

    Args:
        ours: seconds until there are samples, by repetition.
        pandas: of `pandas.read_csv` right before.
        cells: seconds until there is also what all cells hold as text, for a site's log; once.
    """

    ours: tuple[float, ...]
    pandas: tuple[float, ...]
    cells: float

    @property
    def ratio(self) -> float:
        """Median of the pairs' ratios."""
        return statistics.median(one / other for one, other in zip(self.ours, self.pandas, strict=True))


def bench_tables(rows: int, columns: int, pairs: int, console: Console) -> dict[str, Measured]:
    """Measure a table of numbers, and one of which a part are levels and dates, and some cells missing; print both.

    Args:
        rows: of each.
        columns: of each.
        pairs: of readings.
        console: to print on.
    """
    grid = Table("table", "pandas, s", "ours, s", "ratio", "at most", "with texts, s")
    found = {kind: measure_table(kind, rows, columns, pairs) for kind in MOST}
    for kind, own in found.items():
        times = (f"{statistics.median(one):.3f}" for one in (own.pandas, own.ours))
        grid.add_row(kind, *times, f"{own.ratio:.1f}", f"{MOST[kind]:g}", f"{own.cells:.3f}")
    console.print(grid)
    return found


def holds(found: dict[str, Measured]) -> bool:
    """Tell whether all tables are read fast enough."""
    return all(own.ratio <= MOST[kind] for kind, own in found.items())


def measure_table(kind: str, rows: int, columns: int, pairs: int) -> Measured:
    """Write a table of a kind, "numbers" or "mixed", and read it in pairs."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        data = written(folder, kind, rows, columns)
        read_csv(folder, data, "float32")  # imports
        ours, pandas = [], []
        for _ in range(pairs):
            pandas.append(_seconds(lambda: pd.read_csv(folder / "table.csv")))
            ours.append(_seconds(lambda: read_csv(folder, data, "float32")))
        cells = _seconds(lambda: read_csv(folder, data, "float32").stands())
    return Measured(tuple(ours), tuple(pandas), cells)


def written(folder: Path, kind: str, rows: int, columns: int) -> CsvData:
    """Write table.csv into a folder, and return its schema."""
    random = np.random.default_rng(0)
    names = [f"x{number}" for number in range(columns - 1)]
    table = pd.DataFrame(random.normal(size=(rows, len(names))).round(6), columns=names, dtype=object)
    levels, dates = ([], []) if kind == "numbers" else (names[: columns // 5], names[columns // 5 : columns * 3 // 10])
    for column in levels:
        table[column] = random.choice(LEVELS, rows)
    for column in dates:
        days = pd.Timestamp("2000-01-01") + pd.to_timedelta(random.integers(0, 8000, rows), unit="D")
        table[column] = days.strftime("%Y-%m-%d")
    if kind == "mixed":
        for column in names[columns // 2 :]:
            table.loc[random.random(rows) < 0.1, column] = None
    table.assign(y=random.integers(0, 2, rows)).to_csv(folder / "table.csv", index=False)
    return validate(
        CsvData,
        {
            **{"reader": "csv", "file": "table.csv", "features": names, "label": "y", "values": ["0", "1"]},
            "missing": "impute",
            "categorical": dict.fromkeys(levels, LEVELS),
            "dates": {column: {"since": "2000-01-01"} for column in dates},
        },
    )


def _seconds(work: Callable[[], object]) -> float:
    began = time.perf_counter()
    work()
    return time.perf_counter() - began
