"""Tensors in safetensors files."""

from __future__ import annotations

from pathlib import Path

from safetensors import safe_open
from torch import Tensor

from rankdad.common.files import link_to, open_file


def read_tensors(path: Path) -> tuple[dict[str, str], dict[str, Tensor]]:
    """Return the metadata and the tensors of a file, by name.

    Raises:
        OSError: it cannot be read, or is no file.
        SafetensorError: it is damaged.
    """
    with open_file(path) as file, safe_open(link_to(file), framework="pt") as content:
        return content.metadata() or {}, {name: content.get_tensor(name) for name in content.keys()}  # noqa: SIM118
