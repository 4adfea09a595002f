"""A trained model on disk: best and final weights as safetensors, and what `rankdad predict` needs beside them."""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Literal

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

from common import __version__
from common.documents import load_json, validate
from common.errors import DataError, UserError
from common.models import build_model
from common.spec import RunSpec

Which = Literal["best", "final"]


def save_model(directory: Path, spec: RunSpec, best: Mapping[str, Tensor], final: Mapping[str, Tensor]) -> None:
    """Write both weights, and `model.json`: the spec, which holds schema, scaling and classes, and the versions.

    Raises:
        UserError: the disk is full or broken.
    """
    try:
        _write_model(directory, spec, best, final)
    except (OSError, SafetensorError) as error:
        raise UserError(f"{directory}: the model cannot be written: {error}") from None


def _write_model(directory: Path, spec: RunSpec, best: Mapping[str, Tensor], final: Mapping[str, Tensor]) -> None:
    directory.mkdir(parents=True, exist_ok=True)
    for name, weights in (("best", best), ("final", final)):
        if weights:
            save_file({key: value.contiguous() for key, value in weights.items()}, directory / f"{name}.safetensors")
    document = {
        "run": spec.model_dump(mode="json"),
        "versions": {"rankdad": __version__, "torch": torch.__version__},
    }
    (directory / "model.json").write_text(json.dumps(document, indent=2) + "\n", encoding="utf-8")


def load_model(directory: Path, which: Which, allowed_factories: Collection[str]) -> tuple[RunSpec, nn.Module]:
    """Return a saved model, in evaluation mode, and its run's spec.

    Raises:
        UserError: there is no readable model in the directory.
    """
    path = directory / "model.json"
    document = load_json(path)
    spec = validate(RunSpec, document.get("run") if isinstance(document, dict) else None, file=path)
    model = build_model(spec, allowed_factories)
    weights_path = directory / f"{which}.safetensors"
    try:
        model.load_state_dict(load_file(weights_path))
    except (OSError, SafetensorError, RuntimeError) as error:
        raise DataError(weights_path, f"cannot be loaded into the model: {error}") from None
    return spec, model.eval()
