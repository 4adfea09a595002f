"""A trained model on disk: best and final weights as safetensors, and what `rankdad predict` needs beside them."""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

from rankdad.common import __version__
from rankdad.common.documents import load_json, validate
from rankdad.common.errors import DataError, UserError, one_line
from rankdad.common.models import build_network
from rankdad.common.preparation import Fit, OwnFit
from rankdad.common.run.snapshot import under
from rankdad.common.spec import RunSpec

Which = Literal["best", "final"]
PREPARATION = "preparation.safetensors"


def save_model(
    directory: Path,
    spec: RunSpec,
    best: Mapping[str, Tensor],
    final: Mapping[str, Tensor],
    fit: Fit | None = None,
    site_fit: OwnFit | None = None,
) -> None:
    """Write both weights, what prepares their inputs, and `model.json`: the spec, with schema and classes, versions.

    Args:
        directory: of the model.
        spec: of the run.
        best: weights of the best epoch; empty where there was none.
        final: weights after the last step.
        fit: what preparation has found in all sites' training rows; None before it has.
        site_fit: what it has found in this site's alone; None at the aggregator.

    Raises:
        UserError: the disk is full or broken.
    """
    try:
        directory.mkdir(parents=True, exist_ok=True)
        _write_model(directory, spec, best, final)
        tensors = {f"fit/{name}": value for name, value in (fit.tensors() if fit else {}).items()}
        tensors |= {f"own/{name}": value for name, value in (site_fit.tensors() if site_fit else {}).items()}
        if tensors:
            save_file({name: value.contiguous() for name, value in tensors.items()}, directory / PREPARATION)
    except (OSError, SafetensorError) as error:
        raise UserError(f"{directory}: the model cannot be written: {error}") from None


def _write_model(directory: Path, spec: RunSpec, best: Mapping[str, Tensor], final: Mapping[str, Tensor]) -> None:
    for name, weights in (("best", best), ("final", final)):
        if weights:
            save_file({key: value.contiguous() for key, value in weights.items()}, directory / f"{name}.safetensors")
    document = {
        "run": spec.model_dump(mode="json"),
        "versions": {"rankdad": __version__, "torch": torch.__version__},
    }
    (directory / "model.json").write_text(json.dumps(document, indent=2) + "\n", encoding="utf-8")


@dataclass(frozen=True, eq=False)
class SavedModel:
    """A trained model, in evaluation mode, with all that it needs to predict."""

    spec: RunSpec
    network: nn.Module
    fit: Fit
    site_fit: OwnFit | None


def load_model(directory: Path, which: Which, allowed_factories: Collection[str]) -> SavedModel:
    """Return a saved model.

    Raises:
        UserError: there is no readable model in the directory.
    """
    path = directory / "model.json"
    document = load_json(path)
    spec = validate(RunSpec, document.get("run") if isinstance(document, dict) else None, file=path)
    model = build_network(spec, allowed_factories)
    weights_path = directory / f"{which}.safetensors"
    try:
        model.load_state_dict(load_file(weights_path))
    except (OSError, SafetensorError, RuntimeError) as error:
        raise DataError(weights_path, f"cannot be loaded into the model: {error}") from None
    preparation_path = directory / PREPARATION
    try:
        tensors = load_file(preparation_path) if preparation_path.exists() else {}
        fit, kept = Fit.of(spec, under("fit", tensors)), under("own", tensors)
        return SavedModel(spec, model.eval(), fit, OwnFit.of(spec, kept) if kept else None)
    except (OSError, SafetensorError, KeyError, ValueError, RuntimeError) as error:
        raise DataError(preparation_path, f"is not what the model was trained with: {one_line(error)}") from None
