"""Predictions of a trained model on new samples."""

from __future__ import annotations

import sys
from collections.abc import Collection
from pathlib import Path

import numpy as np
import pandas as pd
import torch
from torch import Tensor

from rankdad.common.errors import DataError, UserError
from rankdad.common.metrics import summarise, tally
from rankdad.common.preparation import Preparing
from rankdad.common.run.artifacts import Which, load_model
from rankdad.common.spec import RunSpec
from rankdad.common.spec.table_schema import Labelled
from rankdad.common.spec.tasks import MultiLabel, Regression, shown
from rankdad.local.data import SiteData, read_samples
from rankdad.local.data.reading import Array
from rankdad.local.evaluation import outputs_of
from rankdad.local.losses import losses
from rankdad.local.threads import use_threads

UNKNOWN_SITE = (
    "its run prepares samples by what their own site has found, which is not known here: these are taken as they are; "
    "a site predicts its own samples with its own directory"
)


def write_predictions(folder: Path, spec: RunSpec, data: SiteData, fold: int, outputs: Tensor) -> None:
    """Write a fold's predictions of the site's test samples, with their keys and labels, for the site's own eyes.

    Raises:
        UserError: the table cannot be written.
    """
    rows = data.splits[fold].test
    if not len(rows):
        return
    table = predictions(spec, outputs)
    label_columns(spec, table, data.samples.labels[rows].numpy())
    table.index = pd.Index([data.keys[row] for row in rows.tolist()])
    path = folder / f"fold-{fold + 1}.csv"
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


def label_columns(spec: RunSpec, table: pd.DataFrame, labels: Array) -> None:
    """Put the true labels before the predictions."""
    if isinstance(spec.task, MultiLabel):
        for place, name in enumerate(class_names(spec)):
            table.insert(place, f"label_{name}", labels[:, place].astype(int))
    else:
        table.insert(0, "label", labels if isinstance(spec.task, Regression) else class_names(spec)[labels])


def _number(value: float | None) -> str:
    return "–" if value is None else f"{value:.4f}"


def predict_file(
    directory: Path, data: Path, output: Path | None, which: Which, allowed_factories: Collection[str] = ()
) -> None:
    """Write a table with a row per sample: its key, the label if it is known, predicted class, probabilities.

    Args:
        directory: of a run or a site, or its model's.
        data: file with which the run's schema begins, or its folder.
        output: CSV file to write; None prints it.
        which: the weights to use.
        allowed_factories: model factories that the caller permits.

    Raises:
        UserError: no model in the directory, or data that does not fit it.
    """
    folder = directory / "model" if (directory / "model").is_dir() else directory
    if not (folder / "model.json").exists():
        raise UserError(f"{directory}: holds no trained model; give a run's or a site's directory")
    if output is not None and not output.parent.is_dir():
        raise UserError(f"--output: {output.parent} is not a directory")
    saved = load_model(folder, which, allowed_factories)
    spec, task = saved.spec, saved.spec.task
    use_threads(spec.training.threads)
    reading = read_samples(spec, data, training=False, allowed=allowed_factories)
    for note in reading.notes:
        print(f"warning: {note}", file=sys.stderr)
    if not len(reading.inputs):
        raise DataError(reading.source, "has no samples")
    if saved.site_fit is None and (spec.preparation.standardise == "site" or spec.preparation.harmonise):
        print(f"warning: {directory}: {UNKNOWN_SITE}", file=sys.stderr)
    preparing, dtype = Preparing(spec), next(saved.network.parameters()).dtype
    covariates = None if reading.covariates is None else torch.from_numpy(reading.covariates)
    inputs = preparing.apply(saved.fit, saved.site_fit, torch.from_numpy(reading.inputs), covariates, dtype)
    outputs = outputs_of(saved.network, inputs, task.outputs)
    numbers = preparing.invert_labels(saved.fit, outputs) if isinstance(task, Regression) else outputs
    table = predictions(spec, numbers)
    if reading.keys is not None:
        table.index = pd.Index(reading.keys)
    if reading.labels is not None:
        label_columns(spec, table, reading.labels)
        labels = torch.from_numpy(reading.labels)
        known = preparing.apply_labels(saved.fit, labels) if isinstance(task, Regression) else labels
        total = tally(task, numbers, labels, losses(task, outputs.double(), known), centre=saved.fit.target_mean)
        found = summarise(task, total)
        words = (f"{shown(name)} {_number(value)}" for name, value in found.values.items())
        print(f"{found.samples} samples: {', '.join(words)}", file=sys.stderr)
    key = key_name(spec)
    try:
        table.to_csv(output or sys.stdout, index_label=key, float_format="%.6g")
    except OSError as error:
        raise UserError(f"--output: {output} cannot be written: {error.strerror or error}") from None
