"""Inputs that are read while they are trained on: torch's DataLoader over samples of a file each."""

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
from rankdad.common.data.loading import Loading
from rankdad.common.errors import RankdadError, UserError
from rankdad.common.preparation import Inputs

KILLED = (
    "loading.workers: a process that reads samples was killed, as the system does where memory is short: set fewer "
    "workers, a smaller loading.cache_mib or loading.prefetch, or give the container more memory (and more /dev/shm)"
)
LARGE = 1 << 20  # bytes of an array that is mapped by itself
M_MMAP_THRESHOLD = -3  # glibc's malloc.h
Change = Callable[[Tensor], Tensor]
Augment = Callable[[Tensor, Tensor], Tensor]  # samples and their places → samples


class Lazy:
    """Inputs [n, *shape] that are read when they are asked for; see `common.preparation.inputs.LazyInputs`.

    Args:
        files: all samples of a site.
        loading: how they are read.
        rows: which of them these are, int64 [n]; None for all.
        changes: what is done to each batch that is read, in order.
        dtype: of what comes of that; None for that of the files.
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
        """How many axes there are."""
        return len(self.files.shape)

    def __len__(self) -> int:
        return len(self._rows)

    def __getitem__(self, rows: Tensor | slice) -> Lazy:
        return Lazy(self.files, self._loading, self._rows[rows], self._changes, self.dtype)

    def map(self, change: Change, dtype: torch.dtype) -> Lazy:
        """Return what `change` makes of them, of another dtype."""
        return Lazy(self.files, self._loading, self._rows, (*self._changes, change), dtype)

    def split(self, size: int) -> Iterator[Tensor]:
        """Yield all samples in order, so many at a time."""
        return self.batches(torch.arange(len(self)).split(size))

    def batches(
        self, parts: Iterable[Tensor], change: Augment | None = None, *, pinned: bool = False
    ) -> Iterator[Tensor]:
        """Yield the samples of each part, in the parts' order, however many processes read ahead.

        Args:
            parts: places of samples, int64.
            change: is given each batch and its places.
            pinned: whether batches are put where a GPU fetches them from.

        Raises:
            DataError: a file cannot be read any more; names it.
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
            generator=torch.Generator(),  # torch would draw from the one that dropout draws from
            prefetch_factor=self._loading.prefetch if workers else None,
            multiprocessing_context="fork" if workers else None,
            worker_init_fn=_begin,
        )
        while True:
            try:
                batch = next(found)
            except StopIteration:
                return
            except (RuntimeError, EOFError, ConnectionError) as error:  # the last two where it died while handing over
                if isinstance(error, RuntimeError) and not re.search(
                    "exited unexpectedly|killed by signal", str(error)
                ):
                    raise
                raise RankdadError(KILLED, code="worker-killed") from None
            if isinstance(batch, RankdadError):
                raise batch
            yield batch


def concatenated(inputs: Sequence[Inputs]) -> Inputs:
    """Return the inputs of several sites as those of one."""
    lazy = [one for one in inputs if isinstance(one, Lazy)]
    if not lazy:
        return torch.cat([one for one in inputs if isinstance(one, Tensor)])
    return Lazy(joined([one.files for one in lazy]))


class _Batches(Dataset[Any]):
    """What reads: in this process, or in those that read ahead."""

    def __init__(
        self, files: FileSamples, rows: Tensor, changes: tuple[Change, ...], augment: Augment | None, none: Tensor
    ) -> None:
        self._files, self._rows, self._changes, self._augment, self._none = files, rows.tolist(), changes, augment, none

    def __getitems__(self, places: list[int]) -> Tensor | RankdadError:
        """Return a batch; an error of ours, such as of a file, is returned, too, since torch would make text of it."""
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
    """Leave Ctrl-C to the process that trains, which ends these."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)


def _begun(**options: Any) -> Iterator[Any]:
    """Start what reads ahead: a DataLoader with these options.

    torch has a killed process raise its error wherever training then is; asked for the next batch, it finds out too.
    """
    main = threading.current_thread() is threading.main_thread()
    before = signal.getsignal(signal.SIGCHLD)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)  # of more workers than cores: they may wait for a disk
        found = iter(DataLoader(**options))
    if main:
        signal.signal(signal.SIGCHLD, before or signal.SIG_DFL)
    return found


def give_back_what_is_freed() -> None:
    """Have the C library map each large array by itself from now on, so that it is gone when it is freed.

    glibc raises this bound up to 32 MiB by itself, and keeps arrays below it in a heap. There small objects that stay
    come to lie between them, and it finds no room for the next: preparing 1.2 GiB of volumes left 1.5 GiB behind, of
    which nothing was in use. Other C libraries do not know the call.
    """
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is not None:
        mallopt(M_MMAP_THRESHOLD, LARGE)
