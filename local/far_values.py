"""Values of a table that lie far from those that a model was trained on: predictions of them are extrapolated."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from rankdad.common.run.artifacts import SavedModel
from rankdad.common.spec.data import TableData
from rankdad.local.data.file_samples import FileSamples
from rankdad.local.data.reading import Array

FAR = 4.0  # standard deviations from the mean of training: of ten thousand values about one lies there by chance
MOST_FAR = 10  # columns with such values that are named


@dataclass(frozen=True, eq=False)
class Far:
    """A column with values far from those of training.

    Args:
        column: its name.
        rows: which rows have such a value, bool [rows].
        where: what is far, in words.
    """

    column: str
    rows: Array
    where: str


def far_values(saved: SavedModel, inputs: Array | FileSamples) -> list[Far]:
    """Return the table's columns with values far from those of training, in its order.

    Sites send no least and largest values, so that the range is what lies near the mean.
    """
    data = saved.spec.data
    known = saved.site_fit if saved.spec.preparation.standardise == "site" else saved.fit
    if known is None or known.mean is None or known.scale is None:
        return []
    if not isinstance(data, TableData) or isinstance(inputs, FileSamples):
        return []
    found, place = list[Far](), 0
    for column in data.inputs:
        if not data.levels(column):
            mean, scale = float(known.mean[place]), float(known.scale[place])
            rows = np.abs(inputs[:, place] - mean) > FAR * scale
            of_log = " of its logarithm" if data.is_logarithm(column) else ""
            where = f"{FAR:g} standard deviations from training's mean{of_log} ({mean:.4g} ± {scale:.2g})"
            found += [Far(column, rows, where)] if rows.any() else []
        place += (data.levels(column) or 1) + data.is_indicated(column)
    return found


def far_sentences(found: Sequence[Far]) -> list[str]:
    """Return a sentence for each column with far values, the worst first."""
    worst = sorted(found, key=lambda one: -int(one.rows.sum()))
    more = [f"{len(found) - MOST_FAR} more columns have such values"] if len(found) > MOST_FAR else []
    return [
        f"column {one.column}: {one.rows.sum()} of {len(one.rows)} values lie more than {one.where}: "
        "is the unit the same?"
        for one in worst[:MOST_FAR]
    ] + more
