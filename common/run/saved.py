"""Loads trained weights from the path of a run, a site, a checkpoint or an exported file."""

from __future__ import annotations

from collections.abc import Collection
from pathlib import Path

from rankdad.common.errors import UserError
from rankdad.common.run.artifacts import SavedModel, Which, load_checkpoint, load_model
from rankdad.common.run.checkpoints import is_checkpoint, newest
from rankdad.common.run.standalone import ONNX, TORCH, load_standalone

EXPECTED = (
    "expected a run's or a site's directory, its model/ or checkpoints/, a checkpoint, best.safetensors or "
    "final.safetensors beside its model.json, or a .pt2 file of `rankdad export --torch`"
)


def saved_model(path: Path, which: Which, allowed_factories: Collection[str] = ()) -> SavedModel:
    """Load the model at a path; for a run without a finished model, that of its newest checkpoint.

    Args:
        path: a directory or a file.
        which: weights to use, if there are several.
        allowed_factories: model factories that the caller allows.

    Raises:
        UserError: there is none, or it cannot be read.
    """
    if path.is_dir():
        for folder in (path / "model", path):
            if (folder / "model.json").exists():
                return load_model(folder, which, allowed_factories)
        checkpoint = newest(path / "checkpoints") or newest(path)
        if checkpoint is None:
            raise UserError(f"{path}: holds no trained model; {EXPECTED}", code="no-model-there")
        return load_checkpoint(checkpoint, which, allowed_factories)
    if not path.exists():
        raise UserError(f"{path}: does not exist; {EXPECTED}", code="file-missing")
    if is_checkpoint(path):
        return load_checkpoint(path, which, allowed_factories)
    if (path.parent / "model.json").exists() and path.name in ("best.safetensors", "final.safetensors", "model.json"):
        stems: dict[str, Which] = {"best": "best", "final": "final"}
        return load_model(path.parent, stems.get(path.stem, which), allowed_factories)
    if path.suffix == TORCH:
        return load_standalone(path, allowed_factories)
    if path.suffix == ONNX:
        raise UserError(
            f"{path}: is for other programs, such as onnxruntime; predict from what it was exported from",
            code="not-for-prediction",
        )
    raise UserError(f"{path}: holds no weights that can be predicted with; {EXPECTED}", code="no-model-there")
