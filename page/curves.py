"""Curves of long runs in constant memory: bins double in width when they are full."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import numpy as np
from numpy.typing import NDArray

MAX_BINS = 400  # of a curve; about a screen's resolution

Numbers = NDArray[np.float64]


class Bins:
    """Binned means of several curves with common points.

    Args:
        columns: names of the curves.
        bins: maximum number of bins; even.

    Attributes:
        width: points in a full bin.
        points: added so far.
    """

    def __init__(self, columns: Sequence[str], bins: int = MAX_BINS) -> None:
        self.columns = tuple(columns)
        self.width, self.points = 1, 0
        self._sums = np.zeros((bins, len(self.columns)))
        self._counts = np.zeros((bins, len(self.columns)), np.float32)

    def __len__(self) -> int:
        return -(-self.points // self.width)

    def add(self, values: Sequence[float] | Numbers) -> None:
        """Add a point: a value for each curve; NaN and infinity are ignored."""
        bins = len(self._sums)
        if self.points == bins * self.width:
            for array in (self._sums, self._counts):
                array[: bins // 2] = array[::2] + array[1::2]
                array[bins // 2 :] = 0
            self.width *= 2
        own, place = np.asarray(values, np.float64), self.points // self.width
        finite = np.isfinite(own)
        self._sums[place] += np.where(finite, own, 0.0)
        self._counts[place] += finite
        self.points += 1

    def means(self, first: int = 0) -> Numbers:
        """Return the bins' means from `first` on, [bins, curves]; NaN for empty bins."""
        counts = self._counts[first : len(self)]
        with np.errstate(invalid="ignore", divide="ignore"):
            return self._sums[first : len(self)] / counts

    def ends(self, first: int = 0) -> list[int]:
        """Return the number of the last point in each bin from `first` on, counted from 1."""
        return [min((place + 1) * self.width, self.points) for place in range(first, len(self))]


def texts(values: Iterable[float]) -> str:
    """Format numbers as a JSON list of five digits each; NaN and infinity become null."""
    return "[" + ",".join("null" if value - value else f"{value:.5g}" for value in values) + "]"
