"""Checkpoints in parts, by torch.distributed.checkpoint: each rank writes its own, and reads what it needs of all.

Parts of tensors are DTensors, which torch divides again for another mesh. Files are safetensors: torch's own format has
pickled metadata, which a file from elsewhere could abuse.
"""

from __future__ import annotations

import tempfile
import warnings
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from errno import ENOENT
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from torch import Tensor
from torch.distributed.checkpoint.api import CheckpointException
from torch.distributed.checkpoint.metadata import TensorStorageMetadata
from torch.distributed.checkpoint.state_dict_loader import load
from torch.distributed.checkpoint.state_dict_saver import save

from rankdad.common.errors import UserError, one_line
from rankdad.common.files import link_to, open_file

UNREADABLE = (
    OSError,
    SafetensorError,
    ValueError,
    LookupError,
    TypeError,
    AttributeError,
    RecursionError,
)  # of any file


def write(folder: Path, tensors: Mapping[str, Tensor]) -> None:
    """Write tensors into a folder; called at all ranks, and a tensor of several is written by one.

    Raises:
        OSError: a rank cannot write; the same at all.
    """
    try:
        save(dict(tensors), storage_writer=_storage().HuggingFaceStorageWriter(str(folder), save_distributed=True))
    except CheckpointException as error:
        raise next(iter(error.failures.values()))[0] from None


def sizes(folder: Path) -> dict[str, TensorStorageMetadata]:
    """Return shapes and dtypes of the tensors in a folder, by key.

    Raises:
        Exception: one of `UNREADABLE`.
    """
    with _reader(folder) as reader:
        found = reader.read_metadata().state_dict_metadata
    return {key: each for key, each in found.items() if isinstance(each, TensorStorageMetadata)}


def read(folder: Path, tensors: dict[str, Tensor], *, alone: bool = False) -> None:
    """Fill tensors from a folder, in place.

    Args:
        folder: with the parts of all ranks.
        tensors: by key; of DTensors this rank's part is filled.
        alone: whether other ranks read on their own, or not at all; otherwise an error is raised at all.

    Raises:
        Exception: one of `UNREADABLE`.
    """
    try:
        with _reader(folder) as reader, warnings.catch_warnings():
            warnings.filterwarnings("ignore", "torch.distributed is disabled")  # which is meant
            load(tensors, storage_reader=reader, no_dist=alone)
    except CheckpointException as error:
        raise ValueError(one_line(next(iter(error.failures.values()))[0])) from None


@contextmanager
def _reader(folder: Path) -> Iterator[Any]:
    """Yield torch's reader of a folder, through links to files that are open, so that nothing takes their place."""
    reader = _storage().HuggingFaceStorageReader(str(folder))
    with ExitStack() as files:

        def ls(_: str) -> list[str]:
            links = Path(files.enter_context(tempfile.TemporaryDirectory()))
            if not folder.is_dir():
                raise FileNotFoundError(ENOENT, "there is no such folder", str(folder))
            for path in folder.glob("*.safetensors"):
                (links / path.name).symlink_to(link_to(files.enter_context(open_file(path))))
            return list(map(str, links.iterdir()))

        reader.fs.ls = ls  # called where an error is one at all ranks
        yield reader


def _storage() -> Any:
    """Return torch's storage in safetensors.

    Raises:
        UserError: this PyTorch has none.
    """
    try:
        from torch.distributed.checkpoint import hf_storage
    except ImportError:
        problem = f"checkpoints in parts: PyTorch {torch.__version__} writes none in safetensors: expected 2.13"
        raise UserError(problem, code="not-installed") from None
    return hf_storage
