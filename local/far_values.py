"""Values of a table that are far from those in training, or did not occur there."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from rankdad.common.data.file_samples import FileSamples
from rankdad.common.data.reading import Array
from rankdad.common.run.artifacts import SavedModel
from rankdad.common.spec.data import TableData

FAR = 4.0  # standard deviations from training's mean: about one of ten thousand values by chance
ALIKE = 1e-6  # relative: rounding of single precision
MOST_FAR = 10  # columns named


@dataclass(frozen=True, eq=False)
class Far:
    """A column with values far from those of training.

    Args:
        column: its name.
        rows: with such a value, bool [rows].
        said: the rest of the sentence about them.
    """

    column: str
    rows: Array
    said: str


def far_values(saved: SavedModel, inputs: Array | FileSamples) -> list[Far]:
    """Return the table's columns with values far from those in training, in order.

    Sites do not send smallest and largest values, so the mean and the deviation define the range.
    """
    data = saved.spec.data
    known = saved.site_fit if saved.spec.preparation.standardise == "site" else saved.fit
    if known is None or known.mean is None or known.scale is None:
        return []
    if not isinstance(data, TableData) or isinstance(inputs, FileSamples):
        return []
    found = list[Far]()
    for place in data.places:
        column, mean, scale = place.column, known.mean[place.values].numpy(), known.scale[place.values].numpy()
        apart, alike = np.abs(inputs[:, place.values] - mean), np.isinf(scale)
        rows = (apart[:, alike] > ALIKE * np.maximum(1, np.abs(mean[alike]))).any(1)
        if rows.any():
            only = "" if place.levels else f", which was {mean[0]:.4g}"
            found.append(Far(column, rows, f"do not occur in training{only}: the model has learned nothing about them"))
        elif not place.levels and not alike[0]:
            rows = apart[:, 0] > FAR * scale[0]
            of_log = " of its logarithm" if data.is_logarithm(column) else ""
            text = f"lie more than {FAR:g} standard deviations from training's mean{of_log}"
            text += f" ({mean[0]:.4g} ± {scale[0]:.2g}): is the unit the same?"
            found += [Far(column, rows, text)] if rows.any() else []
    return found


def far_sentences(found: Sequence[Far]) -> list[str]:
    """Return a sentence for each column with far values, worst first."""
    worst = sorted(found, key=lambda one: -int(one.rows.sum()))
    more = [f"{len(found) - MOST_FAR} more columns have such values"] if len(found) > MOST_FAR else []
    told = [f"column {one.column}: {one.rows.sum()} of {len(one.rows)} values {one.said}" for one in worst[:MOST_FAR]]
    return told + more
