"""Restores the settings of the caller's process after a run."""

from __future__ import annotations

import os
import shutil
import tempfile
import weakref
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from pathlib import Path

import torch


@contextmanager
def settings_kept() -> Iterator[None]:
    """Compute with PyTorch's default settings within a `with`, and restore the caller's.

    Settings are threads, random numbers, dtype and device of new tensors, and whether gradients are recorded.
    """
    threads, dtype = torch.get_num_threads(), torch.get_default_dtype()
    devices = range(torch.cuda.device_count()) if torch.cuda.is_initialized() else ()
    elsewhere = torch.get_default_device().type != "cpu"
    torch.set_default_dtype(torch.float32)
    try:
        with (
            torch.random.fork_rng(devices=devices),
            torch.inference_mode(False),
            torch.enable_grad(),
            torch.device("cpu") if elsewhere else nullcontext(),  # only if needed: it slows every call down
        ):
            yield
    finally:
        torch.set_default_dtype(dtype)
        torch.set_num_threads(threads)


class TemporaryFolder:
    """A folder that is removed when this object is garbage-collected, or when the process ends."""

    def __init__(self) -> None:
        self.path = Path(tempfile.mkdtemp(prefix="rankdad-"))
        weakref.finalize(self, _remove, self.path, os.getpid())


def _remove(path: Path, owner: int) -> None:
    if os.getpid() == owner:  # not in a forked process
        shutil.rmtree(path, ignore_errors=True)
