"""Lazily read inputs: torch's DataLoader over samples with a file each."""

from __future__ import annotations

import ctypes
import multiprocessing
import re
import signal
import threading
import warnings
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.utils.data import DataLoader, Dataset

from rankdad.common.data.file_samples import FileSamples, joined
from rankdad.common.errors import RankdadError, UserError
from rankdad.common.loading import Loading
from rankdad.common.preparation import Inputs

KILLED = (
    "loading.workers: a worker process was killed, probably for lack of memory: set fewer workers, a smaller "
    "loading.cache_mib or loading.prefetch, or give the container more memory (and more /dev/shm)"
)
LARGE = 1 << 20  # bytes: larger arrays are mapped individually
M_MMAP_THRESHOLD = -3  # glibc's malloc.h
Change = Callable[[Tensor], Tensor]
Augment = Callable[[Tensor, Tensor], Tensor]  # samples and their positions → samples


class Lazy:
    """Inputs [n, *shape] that are read when they are used; see `common.preparation.inputs.LazyInputs`.

    Args:
        files: all samples of a site.
        loading: workers and cache.
        rows: the samples to use, int64 [n]; None for all.
        changes: applied to each batch, in order.
        dtype: of the result; None for that of the files.
    """

    def __init__(
        self,
        files: FileSamples,
        loading: Loading = Loading(),  # noqa: B008
        rows: Tensor | None = None,
        changes: tuple[Change, ...] = (),
        dtype: torch.dtype | None = None,
    ) -> None:
        self.files, self._loading, self._changes = files, loading, changes
        self._rows = torch.arange(len(files)) if rows is None else rows
        self.dtype = dtype or getattr(torch, files.dtype.name)
        if loading.workers and "fork" not in multiprocessing.get_all_start_methods():
            raise UserError(
                "loading.workers: this system cannot fork processes that read ahead, expected 0",
                code="workers-impossible",
                field="loading.workers",
            )

    @property
    def shape(self) -> torch.Size:
        """[n, *shape]."""
        return torch.Size((len(self._rows), *self.files.shape[1:]))

    @property
    def ndim(self) -> int:
        """Number of axes."""
        return len(self.files.shape)

    def __len__(self) -> int:
        return len(self._rows)

    def __getitem__(self, rows: Tensor | slice) -> Lazy:
        return Lazy(self.files, self._loading, self._rows[rows], self._changes, self.dtype)

    def map(self, change: Change, dtype: torch.dtype) -> Lazy:
        """Return the inputs with `change` applied to each batch."""
        return Lazy(self.files, self._loading, self._rows, (*self._changes, change), dtype)

    def split(self, size: int) -> Iterator[Tensor]:
        """Yield all samples in order, in batches of this size."""
        return self.batches(torch.arange(len(self)).split(size))

    def batches(
        self, parts: Iterable[Tensor], change: Augment | None = None, *, pinned: bool = False
    ) -> Iterator[Tensor]:
        """Yield the samples of each part, in the parts' order, also with several workers.

        Args:
            parts: positions of samples, int64.
            change: applied to each batch and its positions.
            pinned: whether to put batches in pinned memory for a GPU.

        Raises:
            DataError: a file can no longer be read; names it.
            RankdadError: a worker process was killed.
            RankdadError: a process that reads ahead was killed.
        """
        order = [rows.tolist() for rows in parts]
        workers = min(self._loading.workers, len(order))
        none = torch.empty(0, *self.shape[1:], dtype=self.dtype)
        found = _begun(
            batch_sampler=order,
            dataset=_Batches(self.files, self._rows, self._changes, change, none),
            num_workers=workers,
            collate_fn=_as_it_is,
            pin_memory=pinned,
            generator=torch.Generator(),  # the default one is used for dropout
            prefetch_factor=self._loading.prefetch if workers else None,
            multiprocessing_context="fork" if workers else None,
            worker_init_fn=_begin,
        )
        while True:
            try:
                batch = next(found)
            except StopIteration:
                return
            except (RuntimeError, EOFError, ConnectionError) as error:  # the last two if it died during a transfer
                if isinstance(error, RuntimeError) and not re.search(
                    "exited unexpectedly|killed by signal", str(error)
                ):
                    raise
                raise RankdadError(KILLED, code="worker-killed") from None
            if isinstance(batch, RankdadError):
                raise batch
            yield batch


def concatenated(inputs: Sequence[Inputs]) -> Inputs:
    """Concatenate the inputs of several sites."""
    lazy = [one for one in inputs if isinstance(one, Lazy)]
    if not lazy:
        return torch.cat([one for one in inputs if isinstance(one, Tensor)])
    return Lazy(joined([one.files for one in lazy]))


class _Batches(Dataset[Any]):
    """The dataset, used in this process or in workers."""

    def __init__(
        self, files: FileSamples, rows: Tensor, changes: tuple[Change, ...], augment: Augment | None, none: Tensor
    ) -> None:
        self._files, self._rows, self._changes, self._augment, self._none = files, rows.tolist(), changes, augment, none

    def __getitems__(self, places: list[int]) -> Tensor | RankdadError:
        """Return a batch, or our error about a file; torch would convert a raised one to text."""
        if not places:
            return self._none
        try:
            batch = torch.stack([torch.from_numpy(self._files[self._rows[place]]) for place in places])
            for change in self._changes:
                batch = change(batch)
            return batch if self._augment is None else self._augment(batch, torch.tensor(places))
        except RankdadError as error:
            return error


def _as_it_is(batch: Any) -> Any:
    return batch


def _begin(_: int) -> None:
    """Ignore Ctrl-C in a worker; the training process ends it."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)


def _begun(**options: Any) -> Iterator[Any]:
    """Start a DataLoader with these options.

    torch raises an error in the training process when a worker is killed; it also notices at the next batch.
    """
    main = threading.current_thread() is threading.main_thread()
    before = signal.getsignal(signal.SIGCHLD)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)  # about more workers than cores: they may wait for a disk
        found = iter(DataLoader(**options))
    if main:
        signal.signal(signal.SIGCHLD, before or signal.SIG_DFL)
    return found


def give_back_what_is_freed() -> None:
    """Make the C library map each large array individually, so that its memory is returned when it is freed.

    glibc raises this limit up to 32 MiB by itself, and keeps smaller arrays in a heap, which small objects fragment:
    preparing 1.2 GiB of volumes left 1.5 GiB of unused memory. Other C libraries do not have this call.
    """
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is not None:
        mallopt(M_MMAP_THRESHOLD, LARGE)
