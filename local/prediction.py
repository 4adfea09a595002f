"""Predictions of a trained model on new samples."""

from __future__ import annotations

import sys
from collections.abc import Collection
from pathlib import Path

import numpy as np
import pandas as pd
import torch

from common.artifacts import Which, load_model
from common.data import NpzData
from common.errors import DataError, UserError
from common.metrics import summarise, tally
from local.data import read_samples
from local.training import EVALUATION_BATCH


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
    spec, model = load_model(folder, which, allowed_factories)
    torch.set_num_threads(spec.training.threads)
    reading = read_samples(spec, data / spec.data.file if data.is_dir() else data, training=False)
    for note in reading.notes:
        print(f"warning: {note}", file=sys.stderr)
    inputs, labels = torch.from_numpy(reading.inputs), reading.labels
    if not len(inputs):
        raise DataError(reading.source, "has no samples")
    classes, key = np.arange(spec.task.classes), "row"
    if not isinstance(spec.data, NpzData):
        classes, key = np.array(spec.data.values), spec.data.key or key
    with torch.no_grad():
        logits = torch.cat([model(batch) for batch in inputs.split(EVALUATION_BATCH)])
    probabilities = torch.softmax(logits.double(), dim=1)
    table = pd.DataFrame(probabilities.numpy(), columns=[f"probability_{name}" for name in classes])
    if reading.keys is not None:
        table.index = pd.Index(reading.keys)
    table.insert(0, "predicted", classes[probabilities.argmax(dim=1).numpy()])
    if labels is not None:
        table.insert(0, "label", classes[labels])
        metrics = summarise(tally(logits, torch.from_numpy(labels)))
        auc = "–" if metrics.auc is None else f"{metrics.auc:.5f} (± {metrics.auc_error:.0e})"
        print(
            f"{metrics.samples} samples: accuracy {metrics.accuracy:.4f}, AUC {auc}, loss {metrics.loss:.4f}",
            file=sys.stderr,
        )
    try:
        table.to_csv(output or sys.stdout, index_label=key, float_format="%.6g")
    except OSError as error:
        raise UserError(f"--output: {output} cannot be written: {error.strerror or error}") from None
