"""Pretrained weights from a safetensors file, and layers that are not trained."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Sequence
from fnmatch import fnmatchcase
from pathlib import Path

import safetensors.torch
import torch
from safetensors import SafetensorError
from torch import Tensor, nn

from rankdad.common.errors import DataError, SpecError
from rankdad.common.files import open_file
from rankdad.common.spec.model import Pretrained

SHOWN = 8  # names in an error


def freeze(model: nn.Module, patterns: Sequence[str]) -> None:
    """Exclude the parameters that match a pattern from training.

    Raises:
        SpecError: a pattern matches none, or nothing is left to train.
    """
    parameters = dict(model.named_parameters())
    for pattern in patterns:
        matching = [parameter for name, parameter in parameters.items() if fnmatchcase(name, pattern)]
        if not matching:
            raise SpecError(
                "model.frozen", f"{pattern} matches no parameter of {_some(parameters)}", code="pattern-matches-nothing"
            )
        for parameter in matching:
            parameter.requires_grad_(False)
    if not any(parameter.requires_grad for parameter in parameters.values()):
        raise SpecError("model.frozen", "leaves no parameter to train, expected at least one", code="nothing-to-train")


def load_pretrained(model: nn.Module, spec: Pretrained, folder: Path | None) -> None:
    """Load weights and buffers by their names.

    Args:
        model: to load into, in its own precision.
        spec: of the file.
        folder: with the file.

    Raises:
        SpecError: no folder is given, or names or shapes do not match the model; names the parameter.
        DataError: the file cannot be read, or is not the one in the spec.
    """
    if folder is None:
        raise SpecError(
            "model.pretrained.file",
            f"{spec.file} is needed here: pass --weights with the folder that holds it, or name the folder under "
            "weights in a site's file",
            code="weights-missing",
        )
    ours = {name: value for name, value in model.state_dict().items() if isinstance(value, Tensor)}
    prefix = getattr(model, "weights_prefix", "")
    theirs = {prefix + name: value for name, value in _read(folder / spec.file, spec.sha256).items()}
    for pattern in spec.skip:
        if not any(fnmatchcase(name, pattern) for name in (*ours, *theirs)):
            raise SpecError(
                "model.pretrained.skip",
                f"{pattern} matches no parameter of the network or of {spec.file}",
                code="pattern-matches-nothing",
            )
    ours, theirs = (
        {name: value for name, value in values.items() if not any(fnmatchcase(name, p) for p in spec.skip)}
        for values in (ours, theirs)
    )
    _check(ours, theirs, spec.file)
    model.load_state_dict(theirs, strict=False)


def _read(path: Path, sha256: str) -> dict[str, Tensor]:
    try:
        with open_file(path) as file:
            content = file.read()
    except OSError as error:
        raise DataError(path, f"cannot be read: {error.strerror}", code="cannot-read") from None
    digest = hashlib.sha256(content).hexdigest()
    if digest != sha256:
        raise DataError(
            path,
            f"has the sha256 {digest}, expected {sha256} (model.pretrained.sha256)",
            code="digest-differs",
            field="model.pretrained.sha256",
        )
    try:
        tensors: dict[str, Tensor] = safetensors.torch.load(content)
    except (SafetensorError, KeyError, ValueError, RuntimeError) as error:
        raise DataError(path, f"is no safetensors file that torch can read: {error}", code="not-safetensors") from None
    return tensors


def _check(ours: dict[str, Tensor], theirs: dict[str, Tensor], file: str) -> None:
    missing, unknown = ours.keys() - theirs.keys(), theirs.keys() - ours.keys()
    if missing or unknown:
        problem = f"has no {_some(missing)}" if missing else f"has {_some(unknown)}, which the network has not"
        raise SpecError(
            "model.pretrained.file",
            f"{file} {problem}: correct the names, or list them under skip",
            code="weights-do-not-fit",
        )
    for name, value in theirs.items():
        if value.shape != ours[name].shape:
            got, expected = list(value.shape), list(ours[name].shape)
            problem = f"has {name} of shape {got}, expected {expected}: list it under skip to begin with random weights"
        else:
            alike = value.is_floating_point() == ours[name].is_floating_point() and not value.is_complex()
            value = value.to(ours[name].dtype) if alike else value
            problem = wrong_numbers(name, value, ours[name].dtype)
            if not problem:
                continue
        raise SpecError("model.pretrained.file", f"{file} {problem}", code="weights-do-not-fit")


def wrong_numbers(name: str, value: Tensor, dtype: torch.dtype) -> str:
    """Describe wrong dtypes or values of a parameter or buffer; "" if there are none."""
    if value.dtype != dtype:
        return f"has {name} in {value.dtype}, expected {dtype}"
    return "" if value.isfinite().all() else f"has NaN or infinity in {name}, expected numbers"


def _some(names: Iterable[str]) -> str:
    chosen = sorted(names)
    more = f" and {len(chosen) - SHOWN} more" if len(chosen) > SHOWN else ""
    return ", ".join(chosen[:SHOWN]) + more
