"""A site's computing times, step by step."""

from __future__ import annotations

import csv
from pathlib import Path
from time import perf_counter

STRETCHES = ("compute", "reduce", "pack", "wait")


class Timings:
    """A stopwatch for optimizer steps: the lap "begin" starts one, and "end", which counts as "compute", ends it.

    Args:
        path: CSV file with the seconds of each phase, a row per step.
        again: whether to append to existing rows; repeated steps appear twice.
    """

    def __init__(self, path: Path, *, again: bool = False) -> None:
        goes_on = again and path.exists()
        self._file = path.open("a" if goes_on else "w", newline="", encoding="utf-8", buffering=1)
        self._rows = csv.writer(self._file, lineterminator="\n")
        if not goes_on:
            self._rows.writerow(STRETCHES)
        self._sums = dict.fromkeys(STRETCHES, 0.0)
        self._last = perf_counter()

    def lap(self, name: str) -> None:
        """End a phase."""
        now = perf_counter()
        if name == "begin":
            self._sums = dict.fromkeys(STRETCHES, 0.0)
            self._last = now
            return
        self._sums["compute" if name == "end" else name] += now - self._last
        if name == "end":
            self._rows.writerow([f"{self._sums[stretch]:.6f}" for stretch in STRETCHES])
        self._last = now

    def close(self) -> None:
        """Close the file."""
        self._file.close()
