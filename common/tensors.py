"""Tensors as bytes, digests and files."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from pathlib import Path

import torch
from safetensors import safe_open
from torch import Tensor, nn

from rankdad.common.files import link_to, open_file


def read_tensors(path: Path) -> tuple[dict[str, str], dict[str, Tensor]]:
    """Return the metadata and the tensors of a file, by name.

    Raises:
        OSError: it cannot be read, or is no file.
        SafetensorError: it is damaged.
    """
    with open_file(path) as file, safe_open(link_to(file), framework="pt") as content:
        return content.metadata() or {}, {name: content.get_tensor(name) for name in content.keys()}  # noqa: SIM118


def raw_bytes(numbers: Tensor) -> bytes:
    """Return a tensor's numbers as bytes."""
    return numbers.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy().tobytes()


def saved_buffers(model: nn.Module) -> dict[str, Tensor]:
    """Return the persistent buffers of a model, such as BatchNorm's running statistics."""
    saved = model.state_dict()
    return {name: saved[name] for name, _ in model.named_buffers() if name in saved}


def weights_sha256(weights: Mapping[str, Tensor]) -> str:
    """Return the sha256 of named tensors: names, dtypes, shapes and raw bytes, in order of name."""
    digest = hashlib.sha256()
    for name in sorted(weights):
        value = weights[name].detach().cpu().contiguous()
        digest.update(f"{name} {value.dtype} {tuple(value.shape)};".encode())
        digest.update(value.reshape(-1).view(torch.uint8).numpy().data)
    return digest.hexdigest()
