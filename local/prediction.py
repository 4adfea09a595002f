"""Predictions of a trained model on new samples."""

from __future__ import annotations

import sys
from collections.abc import Collection
from pathlib import Path

import pandas as pd
import torch

from common.artifacts import Which, load_model
from common.errors import DataError, UserError
from common.metrics import summarise, tally
from local.data import read_npz
from local.training import EVALUATION_BATCH


def predict_file(
    directory: Path, data: Path, output: Path | None, which: Which, allowed_factories: Collection[str] = ()
) -> None:
    """Write a table with a row per sample: predicted class, probability of each class, and the label if it is known.

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
    inputs, labels, _ = read_npz(data, spec)
    if not len(inputs):
        raise DataError(data, "has no samples")
    with torch.no_grad():
        logits = torch.cat([model(batch) for batch in inputs.split(EVALUATION_BATCH)])
    probabilities = torch.softmax(logits.double(), dim=1)
    table = pd.DataFrame(probabilities.numpy(), columns=[f"probability_{c}" for c in range(spec.task.classes)])
    table.insert(0, "predicted", probabilities.argmax(dim=1).numpy())
    if labels is not None:
        table.insert(0, "label", labels.numpy())
        metrics = summarise(tally(logits, labels))
        auc = "–" if metrics.auc is None else f"{metrics.auc:.5f} (± {metrics.auc_error:.0e})"
        print(
            f"{metrics.samples} samples: accuracy {metrics.accuracy:.4f}, AUC {auc}, loss {metrics.loss:.4f}",
            file=sys.stderr,
        )
    try:
        table.to_csv(output or sys.stdout, index_label="row", float_format="%.6g")
    except OSError as error:
        raise UserError(f"--output: {output} cannot be written: {error.strerror or error}") from None
