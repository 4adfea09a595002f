"""Predictions of a trained model on new samples."""

from __future__ import annotations

import sys
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pandas as pd
import torch
from torch import Tensor

from rankdad.common.data import SiteData, lazy_or_whole, read_samples
from rankdad.common.data.files import Fact
from rankdad.common.data.reading import PLACE, AllRows, Array, Reading
from rankdad.common.data.spreadsheets import inert_cell
from rankdad.common.documents import load_json
from rankdad.common.errors import DataError, UserError, visible
from rankdad.common.files import cannot_write, open_private
from rankdad.common.loading import Loading
from rankdad.common.logs import MAX_LINE
from rankdad.common.metrics.smoothing import smooth
from rankdad.common.metrics.summary import exact_auc, summarise
from rankdad.common.metrics.sums import Tally, tally
from rankdad.common.preparation import Preparing
from rankdad.common.run.artifacts import SavedModel, Which
from rankdad.common.run.saved import saved_model
from rankdad.common.spec import RunSpec
from rankdad.common.spec.data import TableData
from rankdad.common.spec.tasks import LanguageModel, MultiLabel, Regression, shown
from rankdad.common.spec.written import Tabular
from rankdad.local.evaluation import task_outputs
from rankdad.local.far_values import far_sentences, far_values
from rankdad.local.losses import losses
from rankdad.local.threads import use_threads
from rankdad.local.trained_rows import seen_rows

ROW = "row"  # what its number is called where a sample has no name
UNKNOWN_SITE = (
    "the run prepares samples by statistics of their own site, which are not known here: they are not prepared; "
    "to predict a site's samples, use that site's directory"
)


def write_predictions(folder: Path, spec: RunSpec, data: SiteData, fold: int, outputs: Tensor) -> None:
    """Write a fold's predictions of the site's test samples, with keys, groups and labels, for the site alone.

    Raises:
        UserError: the table cannot be written.
    """
    if not len(outputs):  # nothing to test, or too few samples for the site's policy
        return
    rows = data.splits[fold].test
    table = predictions(spec, outputs)
    label_columns(spec, table, data.samples.labels[rows].numpy())
    if data.group_names:
        name = str(getattr(spec.data, "group", "group"))
        table.insert(0, f"data_{name}" if name in table else name, [data.group_names[row] for row in rows.tolist()])
    table.index = pd.Index([data.keys[row] for row in rows.tolist()])
    path = folder / f"fold-{spec.place(fold)[0] + 1}.csv"
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        with open_private(path) as file:
            inert(table).to_csv(file, index_label=inert_cell(key_name(spec)), float_format="%.9g")
    except OSError as error:
        raise cannot_write(path, error) from None


def predictions(spec: RunSpec, outputs: Tensor) -> pd.DataFrame:
    """Return a row per sample: the likeliest class and all probabilities, the probabilities of labels, or a number.

    For a language model the number of predicted tokens, and the mean loss of one.
    """
    if isinstance(spec.task, Regression):
        return pd.DataFrame({"predicted": outputs.squeeze(1).double().numpy()})
    if isinstance(spec.task, LanguageModel):
        lost, tokens = outputs.double().numpy().T
        return pd.DataFrame({"tokens": tokens.astype(int), "loss": lost / np.maximum(tokens, 1)})
    names = class_names(spec)
    if isinstance(spec.task, MultiLabel):
        return pd.DataFrame(torch.sigmoid(outputs.double()).numpy(), columns=[f"probability_{name}" for name in names])
    probabilities = torch.softmax(outputs.double(), dim=1)
    table = pd.DataFrame(probabilities.numpy(), columns=[f"probability_{name}" for name in names])
    table.insert(0, "predicted", names[probabilities.argmax(dim=1).numpy()])
    return table


def inert(table: pd.DataFrame) -> pd.DataFrame:
    """Return a table whose names and texts no spreadsheet takes for formulas; see `inert_cell`."""
    written = table.rename(index=inert_cell, columns=inert_cell)
    for place, kind in enumerate(written.dtypes):
        if not pd.api.types.is_numeric_dtype(kind):
            written.isetitem(place, [inert_cell(cell) for cell in written.iloc[:, place]])
    return written


def class_names(spec: RunSpec) -> Array:
    """Return the names of classes or labels, as the schema has them."""
    if isinstance(spec.task, MultiLabel):
        return np.array(spec.data.targets if isinstance(spec.data, Tabular) else range(spec.task.labels))
    if isinstance(spec.data, Tabular) and spec.data.values:
        return np.array(spec.data.values)
    return np.arange(spec.task.outputs)


def key_name(spec: RunSpec) -> str:
    """Return the name of the column that identifies the samples."""
    return getattr(spec.data, "key", None) or ROW


def label_columns(spec: RunSpec, table: pd.DataFrame, labels: Array, known: Array | None = None) -> None:
    """Insert the known labels before the predictions; a language model has none."""
    if isinstance(spec.task, LanguageModel):
        return
    columns = {"label": labels if isinstance(spec.task, Regression) else class_names(spec)[labels.astype(int)]}
    if isinstance(spec.task, MultiLabel):
        columns = {f"label_{name}": labels[:, place].astype(int) for place, name in enumerate(class_names(spec))}
    for place, (name, held) in enumerate(columns.items()):
        found = pd.Series(held, table.index)
        table.insert(place, name, found if known is None or known.all() else found.astype(object).where(known, ""))


def _is_unsolved(run: Path) -> bool:
    """Return whether the run's summary says that the final model is not an exact solution."""
    summary = run / "summary.json"
    solver = load_json(summary).get("solver", {}) if summary.is_file() else {}
    return "final model" in solver.get("unsolved", ())


def _number(value: float | None) -> str:
    return "–" if value is None else f"{value:.4f}"


def predict_file(
    path: Path,
    data: Path,
    output: Path | None,
    which: Which,
    allowed_factories: Collection[str] = (),
    keep: Sequence[str] = (),
    loading: Loading = Loading(),  # noqa: B008
) -> int:
    """Write a table with a row per sample: key, kept columns, label if known, prediction.

    A row that cannot be used has a reason instead of a prediction.

    Args:
        path: of weights, see `common.run.saved`.
        data: the first file of the run's schema, or its folder.
        output: CSV file to write; None prints it.
        which: the weights to use.
        allowed_factories: model factories that the caller permits.
        keep: columns to copy next to the predictions, in addition to the schema's key and group.
        loading: of volumes and pictures.

    Returns:
        Number of refused rows.

    Raises:
        UserError: there is no model at the path, or no row of the data fits it.
    """
    if output is not None and not output.parent.is_dir():
        raise UserError(f"--output: {output.parent} is not a directory", code="not-a-folder", field="--output")
    saved = saved_model(path, which, allowed_factories)
    _say(f"weights: {saved.source}")
    if _is_unsolved(path):
        _say("warning: the model has not reached its exact solution: do not use its predictions")
    reading = read_samples(saved.spec, data, beside=tuple(keep), allowed=allowed_factories, loading=loading)
    if output is not None and output.exists() and Path(reading.source).exists() and output.samefile(reading.source):
        raise UserError(
            f"--output: {output} is the data file and would be overwritten: name another file",
            code="would-overwrite-data",
            field="--output",
        )
    found = predict_samples(saved, reading, path, loading)
    for note in found.notes:
        _say(note if isinstance(note, Fact) else f"warning: {note}")
    try:
        whole = inert(found.table.set_axis(pd.Index(found.names)))
        label = inert_cell(key_name(saved.spec)) if reading.named_by != PLACE else ROW
        whole.to_csv(output or sys.stdout, index_label=label, float_format="%.6g")
    except BrokenPipeError:  # the reader of standard output has stopped
        raise
    except OSError as error:
        raise cannot_write(output or "standard output", error, "--output") from None
    if found.refused:
        first = found.refused[min(found.refused)].problem
        _say(f"{len(found.refused)} of {len(found.names)} rows refused, the first: {first}")
    return len(found.refused)


@dataclass(frozen=True, eq=False)
class Predicted:
    """Samples with a model's predictions.

    Args:
        table: a row for each row of the data: kept columns, the label if known, the prediction.
        names: of the rows: their keys, or their numbers in the file.
        refused: reasons of rows without a prediction, by position.
        notes: sentences for the user; a warning unless it is a `Fact`.
        total: metrics of the labelled rows; None without labels.
    """

    table: pd.DataFrame
    names: tuple[str, ...]
    refused: Mapping[int, DataError]
    notes: tuple[str, ...]
    total: Tally | None = None


def predict_samples(
    saved: SavedModel,
    reading: Reading,
    path: Path,
    loading: Loading = Loading(),  # noqa: B008
    *,
    smoothly: bool = False,
) -> Predicted:
    """Predict samples that were read.

    Args:
        saved: the model.
        reading: the samples.
        path: of the model's directory, to find its training samples.
        loading: of samples with a file each.
        smoothly: whether the tally leaves this machine, so that single scores must be smoothed.

    Raises:
        DataError: there are none.
        SpecError: the run's threads cannot be started here.
    """
    notes, spec, task, total = list(reading.notes), saved.spec, saved.spec.task, None
    use_threads(spec.training.threads)
    if not len(reading.inputs):
        raise DataError(reading.source, "has no samples", code="no-rows")
    if saved.site_fit is None and (spec.preparation.standardise == "site" or spec.preparation.harmonise):
        notes.append(f"{path}: {UNKNOWN_SITE}")
    given = lazy_or_whole(reading.inputs, loading)
    if seen := seen_rows(path, given):
        some = "all rows were" if seen == len(reading.inputs) else f"{seen} of {len(reading.inputs)} rows were"
        notes.append(f"{some} used in training: their predictions do not show how well the model predicts others")
    far = far_values(saved, reading.inputs)
    notes += far_sentences(far)
    transform = Preparing(spec).transform(saved.fit, saved.site_fit)
    covariates = None if reading.covariates is None else torch.from_numpy(reading.covariates)
    inputs = transform.prepared(given, covariates, next(saved.network.parameters()).dtype)
    outputs = task_outputs(task, saved.network, inputs, spec.training.batch_size)
    numbers = transform.in_units(outputs)
    rows = reading.rows
    names = reading.keys or tuple(map(str, range(len(outputs))))
    used = [row for row in range(len(rows.names)) if row not in rows.refused] if rows else list(range(len(outputs)))
    table = predictions(spec, numbers)
    if reading.labels is not None:
        known = np.array([rows is None or row not in rows.unlabelled for row in used])
        label_columns(spec, table, reading.labels, known)
        labels = torch.from_numpy(reading.labels[known])
        lost = losses(task, outputs.double()[known], transform.as_learned(labels))
        fit = saved.fit
        given, scale, base = numbers[known], fit.target_scale, fit.log_odds
        total = tally(task, given, labels, lost, centre=fit.target_mean, scale=scale, base=base)
        found = summarise(task, total)
        values = found.values | exact_auc(task, given, labels)
        if smoothly:
            bent = smooth(task, given, labels, scale=scale, base=base)
            total = bent.order + tally(
                task, given, labels, lost, centre=fit.target_mean, scale=scale, base=base, smooth=bent[:2]
            )
        words = (f"{shown(name)} {_number(value)}" for name, value in values.items())
        notes.append(Fact(f"{found.samples} samples: {', '.join(words)}"))
    if isinstance(spec.data, TableData):
        table["outside"] = ["; ".join(one.column for one in far if one.rows[row]) for row in range(len(table))]
    table.index = pd.Index(used)
    if rows is not None:
        table, names = _beside(table, rows), rows.names
    return Predicted(table, names, rows.refused if rows else {}, tuple(notes), total)


def _beside(table: pd.DataFrame, rows: AllRows) -> pd.DataFrame:
    """Insert columns of the data before the predictions of all rows, and the reasons of refusal after them."""
    table = table.reindex(range(len(rows.names)))
    for place, (name, cells) in enumerate(rows.columns.items()):
        table.insert(place, name if name not in table else f"data_{name}", list(cells))
    if rows.refused:
        table["refused"] = [rows.refused[row].problem if row in rows.refused else "" for row in table.index]
    return table


def _say(line: str) -> None:
    print(visible(line, MAX_LINE), file=sys.stderr)
