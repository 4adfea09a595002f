"""The process group of a site's ranks, and how all of them end when one fails.

A failing rank leaves its reason in torchrun's store, which outlives every rank. Then it closes its connections: ranks
that wait for it notice at once, and read the reason.
"""

from __future__ import annotations

import json
import logging
import os
import signal
import socket
import stat
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from datetime import timedelta
from types import TracebackType
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.distributed_c10d import PrefixStore, _set_pg_timeout
from torch.distributed.rendezvous import rendezvous

from rankdad.common.collectives import JOINING, not_joined
from rankdad.common.devices import device_here
from rankdad.common.errors import RankdadError
from rankdad.local.config import Parallel
from rankdad.local.shutdown_signals import ShutdownError

PATIENCE = timedelta(minutes=10)  # for ranks that read their data or evaluate
IN_STEP = timedelta(minutes=1)  # for the other ranks' part of a step, after this one's
ENDLESS = timedelta(days=365)  # for rank 0, which waits for other sites
FAREWELL = 10.0  # seconds for which a rank that is cut off waits for rank 0's reason
SIGN_OF_LIFE = 3.0  # seconds in which ranks that are cut off report that they are alive
DIMENSIONS = ("data", "shard", "pipeline", "tensor")  # of a mesh of ranks, the fastest last
REASON, HEARD, LIVES = "reason", "heard", "lives"  # keys of the store

_log = logging.getLogger(__name__)


class RankError(RankdadError):
    """Another rank of this site failed.

    Args:
        rank: its number.
        sentence: the reason.
        public: the part of it that other sites may read.
        exit_code: of the command.
        code: of the error there.
        field: of the error there.
    """

    def __init__(self, rank: int, sentence: str, public: str, exit_code: int, code: str, field: str) -> None:
        self.exit_code, self._public = exit_code, public
        super().__init__(f"rank {rank}: {sentence}", code=code, field=field)

    @property
    def public_message(self) -> str:
        """Return the part of the reason that other sites may read."""
        return self._public


class LostRankError(RankdadError):
    """A rank of this site has died; the site ends, and continues when it is started again.

    Args:
        ranks: that do not answer.
        size: how many there were.
    """

    def __init__(self, ranks: list[int], size: int) -> None:
        which = f"rank {ranks[0]}" if len(ranks) == 1 else f"ranks {', '.join(map(str, ranks))}"
        super().__init__(
            f"{which} of 0 to {size - 1} no longer answers: killed, stopped, out of memory, or starved by other "
            "processes? Start the site again, with as many ranks or another number that fits its file: it continues "
            "from its checkpoint",
            code="rank-lost",
        )


class Ranks:
    """The ranks of a site, within a `with`; an error at one of them ends all.

    Args:
        joining: time for all ranks to join.
        in_step: for which rank 0 waits for the others in a step.

    Attributes:
        rank: of this process.
        size: number of ranks.
        group: of the ranks with other parts of a batch; None for all.
        has_own_gpu: whether no other rank computes on this one's device.
    """

    def __init__(self, joining: timedelta = JOINING, in_step: timedelta = IN_STEP) -> None:
        self._in_step = in_step
        one_machine = os.environ.get("LOCAL_WORLD_SIZE") == os.environ.get("WORLD_SIZE")
        if one_machine and "lo" in dict(socket.if_nameindex()).values():
            os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")  # ranks communicate within this machine
        try:
            store, self.rank, self.size = next(rendezvous("env://", timeout=joining))
            gloo, before = PrefixStore("gloo", store), _sockets()
            dist.init_process_group("gloo", store=gloo, rank=self.rank, world_size=self.size, timeout=joining)
            gloo.set(f"joined/{self.rank}", "1")  # a rank that ends before the others have joined would block them
            gloo.wait([f"joined/{rank}" for rank in range(self.size)], joining)
        except (RuntimeError, ValueError, OSError) as error:
            raise not_joined(error) from None
        self._connections = _sockets() - before
        self._store = PrefixStore("rankdad", store)
        self._wait_for_others(PATIENCE)
        self.group: dist.ProcessGroup | None = None
        self.has_own_gpu = False

    def __enter__(self) -> Ranks:
        if self.rank:  # rank 0 finishes its step, for which it needs the others, and then ends them
            for number in (signal.SIGINT, signal.SIGTERM):
                signal.signal(number, signal.SIG_IGN)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if error is None:
            dist.destroy_process_group()
        elif not self.rank:
            explained = self.explain(error)
            self._set(HEARD)
            if explained is not error:
                raise explained from None
        else:
            self._end(error)

    def _end(self, error: BaseException) -> None:
        """End a rank other than 0, after reporting why."""
        cut_off, stopped = _is_cut_off(error), isinstance(error, ShutdownError)
        if not isinstance(error, RankdadError) and not cut_off:
            _log.error("rank %d: an unexpected error", self.rank, exc_info=error)
        if not stopped:  # else rank 0 stops, too, and must not take this one for one that has died
            self._break(None if cut_off else error)
        code = getattr(error, "exit_code", 1)
        until = time.monotonic() + (FAREWELL if cut_off or stopped else PATIENCE.total_seconds())
        while not self._store.check([HEARD]) and time.monotonic() < until:
            time.sleep(0.05)
        if stopped:
            self._break(None)
        missing = self._missing()
        if 0 in missing and self.rank == min(set(range(self.size)) - set(missing)):
            raise LostRankError(missing, self.size) from None
        time.sleep(0.5)  # torchrun ends all others with the first
        raise SystemExit(code) from None

    def device(self, asked: str) -> str:
        """Return this rank's device.

        Args:
            asked: as in the site's file: `cuda` is a GPU for each rank, `cuda:0` one for all.

        Raises:
            UserError: this machine has fewer GPUs than ranks, or none.
        """
        if asked != "cuda":
            return asked
        found = device_here(asked, shared=False)
        torch.cuda.set_device(found)
        self.has_own_gpu = True
        return found

    def connect(self, mesh: Parallel | None = None) -> DeviceMesh | None:
        """Switch to steps, with gradients between GPUs if each rank has its own; called by all ranks, or none.

        Args:
            mesh: of all ranks; those of `tensor` have neighbouring numbers.

        Returns:
            Its dimensions of more than one rank, if they divide weights.
        """
        self._wait_for_others(self._in_step)
        if mesh is None or not mesh.is_divided:
            self.group = dist.new_group(backend="nccl") if self.has_own_gpu else None
            return None
        before = _sockets()
        sizes = {name: size for name in DIMENSIONS if (size := getattr(mesh, name)) > 1}
        grid = torch.arange(self.size).view(*sizes.values())
        groups = [self._new_group(grid.movedim(dim, -1).reshape(-1, size)) for dim, size in enumerate(sizes.values())]
        if mesh.batches > 1:
            self.group = self._new_group(grid.view(mesh.batches, -1).T)
        self._connections |= _sockets() - before
        device = "cuda" if self.has_own_gpu else "cpu"
        return DeviceMesh.from_group(groups, device, grid, mesh_dim_names=tuple(sizes))

    def _new_group(self, rows: Tensor) -> dist.ProcessGroup:
        """Return this rank's group, for ranks that are a row each.

        Rank 0 waits for others as in the default group.
        """
        most = PATIENCE if self.rank else self._in_step
        backend = "nccl" if self.has_own_gpu else "gloo"
        own: dist.ProcessGroup
        own, _ = dist.new_subgroups_by_enumeration(rows.tolist(), timeout=most, backend=backend)
        return own

    def barrier(self) -> None:
        """Wait, maybe for minutes, until all ranks have finished reading or computing."""
        with self.patient():
            dist.barrier()

    @contextmanager
    def patient(self) -> Iterator[None]:
        """Let rank 0 wait for the others for minutes."""
        self._wait_for_others(PATIENCE)
        yield
        self._wait_for_others(self._in_step)

    def _wait_for_others(self, most: timedelta) -> None:
        """Set how long rank 0 waits for the others; they wait for it without limit, as it waits for other sites."""
        _set_pg_timeout(most if not self.rank else ENDLESS, dist.group.WORLD)

    @contextmanager
    def together(self) -> Iterator[None]:
        """Report at rank 0 which rank has failed, if joint work fails.

        Raises:
            RankError: another rank failed.
            LostRankError: another rank has died.
        """
        try:
            yield
        except Exception as error:
            explained = error if self.rank else self.explain(error)
            if explained is error:
                raise
            raise explained from None

    def explain(self, error: BaseException) -> BaseException:
        """Cut this rank off, so that all others end, and return the cause: its own error or another rank's."""
        cut_off = _is_cut_off(error)
        if not dist.is_initialized():  # it is cut off
            return error
        others_left = bool(self._connections - _sockets())  # gloo closes what the other end has closed
        self._break(None if cut_off else error)
        if not cut_off and not (isinstance(error, ShutdownError) and others_left):
            return error
        until = time.monotonic() + SIGN_OF_LIFE
        while time.monotonic() < until:
            if (failure := self._reported()) is not None:
                return failure
            if not cut_off and not self._missing():  # stopped by a signal
                return error
            time.sleep(0.02)
        missing = self._missing()
        return LostRankError(missing, self.size) if missing else error

    def look(self) -> None:
        """Check whether another rank has failed, while this one waits for something else.

        Raises:
            RankError: one has.
        """
        failure = None
        with suppress(dist.DistError):  # torchrun is gone, and with it the store
            failure = self._reported()
        if failure is not None:
            raise failure

    def leave(self) -> None:
        """Let the others end without calling this rank lost; the process ends at once."""
        self._set(f"{LIVES}/{self.rank}")
        self._set(HEARD)

    def _reported(self) -> RankError | None:
        """Return another rank's error; None if there is none."""
        report = json.loads(self._store.get(REASON)) if self._store.check([REASON]) else {"rank": self.rank}
        return None if report["rank"] == self.rank else RankError(**report)

    def _break(self, reason: BaseException | None) -> None:
        """Close this rank's connections, and store the reason, unless an earlier one is stored."""
        if reason is not None:
            report: dict[str, Any] = {"rank": self.rank, "exit_code": getattr(reason, "exit_code", 1)}
            if isinstance(reason, RankdadError):
                report |= {"sentence": str(reason), "public": reason.public_message}
                report |= {"code": reason.code, "field": reason.public_field}
            else:
                sentence = f"an unexpected error ({type(reason).__name__})"
                report |= {"sentence": sentence, "public": sentence, "code": "unexpected-error", "field": ""}
            with suppress(dist.DistError):
                self._store.compare_set(REASON, "", json.dumps(report))
        for number, _ in self._connections & _sockets():
            # Sharded tensors hold the group and so its connections: torch's own abort leaves gloo's open.
            with suppress(OSError), socket.socket(fileno=os.dup(number)) as connection:
                connection.getpeername()  # fails for the listener, which must stay: gloo ends the process with it
                if connection.getsockname()[1] != int(os.environ["MASTER_PORT"]):  # the store, at rank 0
                    connection.shutdown(socket.SHUT_RDWR)
        dist.destroy_process_group()
        self._set(f"{LIVES}/{self.rank}")

    def _missing(self) -> list[int]:
        """Return the ranks that have not reported to be alive since connections were closed."""
        return [rank for rank in range(self.size) if not self._store.check([f"{LIVES}/{rank}"])]

    def _set(self, key: str) -> None:
        with suppress(dist.DistError):  # torchrun is gone, and with it the store
            self._store.set(key, "1")


def _sockets() -> set[tuple[int, int]]:
    """Return the file numbers and inodes of this process's open sockets; empty where the system lists none."""
    found = set[tuple[int, int]]()
    with suppress(OSError):
        for number in map(int, os.listdir("/proc/self/fd")):  # noqa: PTH208
            with suppress(OSError):
                if stat.S_ISSOCK((file := os.fstat(number)).st_mode):
                    found.add((number, file.st_ino))
    return found


def _is_cut_off(error: BaseException) -> bool:
    """Return whether an error comes from a connection to another rank, maybe within a model's forward pass."""
    cause = error.__cause__ or error
    return isinstance(cause, dist.DistError) or (isinstance(cause, RuntimeError) and "gloo" in str(cause))
