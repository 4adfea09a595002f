"""Predictions of a trained model on new samples."""

from __future__ import annotations

import sys
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pandas as pd
import torch
from torch import Tensor

from rankdad.common.errors import DataError, UserError, visible
from rankdad.common.logs import MAX_LINE
from rankdad.common.metrics import summarise, tally
from rankdad.common.preparation import Preparing
from rankdad.common.run.artifacts import SavedModel, Which
from rankdad.common.run.saved import saved_model
from rankdad.common.spec import RunSpec
from rankdad.common.spec.data import TableData
from rankdad.common.spec.table_schema import Labelled
from rankdad.common.spec.tasks import MultiLabel, Regression, shown
from rankdad.common.spec.written import chosen
from rankdad.local.data import SiteData, read_samples
from rankdad.local.data.files import Fact
from rankdad.local.data.reading import AllRows, Array
from rankdad.local.evaluation import outputs_of
from rankdad.local.losses import losses
from rankdad.local.threads import use_threads
from rankdad.local.trained_rows import seen_rows

FAR = 4.0  # standard deviations from the mean of training: of ten thousand values about one lies there by chance
MOST_FAR = 10  # columns with such values that are named
UNKNOWN_SITE = (
    "its run prepares samples by what their own site has found, which is not known here: these are taken as they are; "
    "a site predicts its own samples with its own directory"
)


def write_predictions(folder: Path, spec: RunSpec, data: SiteData, fold: int, outputs: Tensor) -> None:
    """Write a fold's predictions of the site's test samples, with keys, groups and labels, for the site's own eyes.

    Raises:
        UserError: the table cannot be written.
    """
    rows = data.splits[fold].test
    if not len(rows):
        return
    table = predictions(spec, outputs)
    label_columns(spec, table, data.samples.labels[rows].numpy())
    if data.group_names:
        name = str(getattr(spec.data, "group", "group"))
        table.insert(0, f"data_{name}" if name in table else name, [data.group_names[row] for row in rows.tolist()])
    table.index = pd.Index([data.keys[row] for row in rows.tolist()])
    path = folder / f"fold-{spec.place(fold)[0] + 1}.csv"
    try:
        folder.mkdir(parents=True, exist_ok=True)
        table.to_csv(path, index_label=key_name(spec), float_format="%.9g")
    except OSError as error:
        raise UserError(f"{path}: cannot be written: {error.strerror or error}") from None


def predictions(spec: RunSpec, outputs: Tensor) -> pd.DataFrame:
    """Return a row per sample: of classes the likeliest and all probabilities, of labels all, else the number."""
    if isinstance(spec.task, Regression):
        return pd.DataFrame({"predicted": outputs.squeeze(1).double().numpy()})
    names = class_names(spec)
    if isinstance(spec.task, MultiLabel):
        return pd.DataFrame(torch.sigmoid(outputs.double()).numpy(), columns=[f"probability_{name}" for name in names])
    probabilities = torch.softmax(outputs.double(), dim=1)
    table = pd.DataFrame(probabilities.numpy(), columns=[f"probability_{name}" for name in names])
    table.insert(0, "predicted", names[probabilities.argmax(dim=1).numpy()])
    return table


def class_names(spec: RunSpec) -> Array:
    """Return the names of classes or labels, as the schema has them."""
    if isinstance(spec.task, MultiLabel):
        return np.array(spec.data.targets if isinstance(spec.data, Labelled) else range(spec.task.labels))
    if isinstance(spec.data, Labelled) and spec.data.values:
        return np.array(spec.data.values)
    return np.arange(spec.task.outputs)


def key_name(spec: RunSpec) -> str:
    """Return the name of the column that names the samples."""
    return getattr(spec.data, "key", None) or "row"


def label_columns(spec: RunSpec, table: pd.DataFrame, labels: Array, known: Array | None = None) -> None:
    """Put the true labels before the predictions, as far as they are known."""
    columns = {"label": labels if isinstance(spec.task, Regression) else class_names(spec)[labels.astype(int)]}
    if isinstance(spec.task, MultiLabel):
        columns = {f"label_{name}": labels[:, place].astype(int) for place, name in enumerate(class_names(spec))}
    for place, (name, held) in enumerate(columns.items()):
        found = pd.Series(held, table.index)
        table.insert(place, name, found if known is None or known.all() else found.astype(object).where(known, ""))


def _number(value: float | None) -> str:
    return "–" if value is None else f"{value:.4f}"


def predict_file(
    path: Path,
    data: Path,
    output: Path | None,
    which: Which,
    allowed_factories: Collection[str] = (),
    keep: Sequence[str] = (),
) -> int:
    """Write a table with a row per sample: its key, what is kept, the label if it is known, what is predicted.

    A row that cannot be used is written with the reason, and without a prediction.

    Args:
        path: of weights, see `common.run.saved`.
        data: file with which the run's schema begins, or its folder.
        output: CSV file to write; None prints it.
        which: the weights to use.
        allowed_factories: model factories that the caller permits.
        keep: columns of the data that predictions stand beside, as do the schema's key and group.

    Returns:
        How many rows were refused.

    Raises:
        UserError: no model at the path, or data of which no row fits it.
    """
    if output is not None and not output.parent.is_dir():
        raise UserError(f"--output: {output.parent} is not a directory")
    saved = saved_model(path, which, allowed_factories)
    _say(f"weights: {saved.source}")
    spec, task = saved.spec, saved.spec.task
    use_threads(spec.training.threads)
    reading = read_samples(spec, data, beside=tuple(keep), allowed=allowed_factories)
    for note in reading.notes:
        _say(note if isinstance(note, Fact) else f"warning: {note}")
    if not len(reading.inputs):
        raise DataError(reading.source, "has no samples")
    if saved.site_fit is None and (spec.preparation.standardise == "site" or spec.preparation.harmonise):
        _say(f"warning: {path}: {UNKNOWN_SITE}")
    if seen := seen_rows(path, reading.inputs):
        some = "all rows were" if seen == len(reading.inputs) else f"{seen} of {len(reading.inputs)} rows were"
        _say(f"warning: {some} trained on: their predictions do not say how well the model predicts others")
    far = far_values(saved, reading.inputs)
    for sentence in far_sentences(far):
        _say(f"warning: {sentence}")
    preparing, dtype = Preparing(spec), next(saved.network.parameters()).dtype
    covariates = None if reading.covariates is None else torch.from_numpy(reading.covariates)
    inputs = preparing.apply(saved.fit, saved.site_fit, torch.from_numpy(reading.inputs), covariates, dtype)
    outputs = outputs_of(saved.network, inputs, task.outputs)
    numbers = preparing.invert_labels(saved.fit, outputs.double()) if isinstance(task, Regression) else outputs
    rows = reading.rows
    names = reading.keys or tuple(map(str, range(len(outputs))))
    used = [row for row in range(len(rows.names)) if row not in rows.refused] if rows else list(range(len(outputs)))
    table = predictions(spec, numbers)
    if reading.labels is not None:
        known = np.array([rows is None or row not in rows.unlabelled for row in used])
        label_columns(spec, table, reading.labels, known)
        labels = torch.from_numpy(reading.labels[known])
        learned = preparing.apply_labels(saved.fit, labels) if isinstance(task, Regression) else labels
        lost = losses(task, outputs.double()[known], learned)
        found = summarise(task, tally(task, numbers[known], labels, lost, centre=saved.fit.target_mean))
        words = (f"{shown(name)} {_number(value)}" for name, value in found.values.items())
        _say(f"{found.samples} samples: {', '.join(words)}")
    if isinstance(spec.data, TableData):
        table["outside"] = ["; ".join(one.column for one in far if one.rows[row]) for row in range(len(table))]
    table.index = pd.Index(used)
    if rows is not None:
        table, names = _beside(table, rows), rows.names
    try:
        table.set_axis(pd.Index(names)).to_csv(output or sys.stdout, index_label=key_name(spec), float_format="%.6g")
    except OSError as error:
        raise UserError(f"--output: {output} cannot be written: {error.strerror or error}") from None
    refused = len(rows.refused) if rows else 0
    if rows and refused:
        _say(f"{refused} of {len(rows.names)} rows refused, the first: {rows.refused[min(rows.refused)].problem}")
    return refused


def _beside(table: pd.DataFrame, rows: AllRows) -> pd.DataFrame:
    """Return predictions of all rows, with columns of the data before them; why some are refused stands behind."""
    table = table.reindex(range(len(rows.names)))
    for place, (name, cells) in enumerate(rows.columns.items()):
        table.insert(place, name if name not in table else f"data_{name}", list(cells))
    if rows.refused:
        table["refused"] = [rows.refused[row].problem if row in rows.refused else "" for row in table.index]
    return table


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


def far_values(saved: SavedModel, inputs: Array) -> list[Far]:
    """Return the table's columns with values far from those of training, in its order.

    Sites send no least and largest values, so that the range is what lies near the mean.
    """
    data = saved.spec.data
    known = saved.site_fit if saved.spec.preparation.standardise == "site" else saved.fit
    if not isinstance(data, TableData) or known is None or known.mean is None or known.scale is None:
        return []
    found, place = list[Far](), 0
    for column in data.inputs:
        if not data.levels(column):
            mean, scale = float(known.mean[place]), float(known.scale[place])
            rows = np.abs(inputs[:, place] - mean) > FAR * scale
            of_log = " of its logarithm" if chosen(column, data.log) else ""
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


def _say(line: str) -> None:
    print(visible(line, MAX_LINE), file=sys.stderr)
