"""Star topology of torchrun's processes, with rank 0 in the centre.

Other ranks communicate only with rank 0, which therefore knows which one has ended and can inform the others.
Collective operations do not allow that.
"""

from __future__ import annotations

import os
import signal
import socket
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any, TypeVar

import msgpack
import torch.distributed as dist

from rankdad.common.collectives import JOINING, not_joined, receive_bytes, send_bytes
from rankdad.common.errors import INTERRUPTED, RankdadError, visible
from rankdad.common.logs import end_with

T = TypeVar("T")
PATIENCE = 1800.0  # seconds to wait for a living process
ENDING = 3.0  # seconds after SIGTERM to receive the reason: torchrun ends all processes after one


class RankEndedError(RankdadError):
    """The process of another rank has ended or does not answer.

    Args:
        name: name of the rank.
        what: predicate for the message.
    """

    def __init__(self, name: str, what: str) -> None:
        self.name, self.what = name, what
        super().__init__(f"{name} {what}", code="rank-ended")


class RefusedError(RankdadError):
    """An error of one rank that ends the command on all."""

    def __init__(self, sentence: str, exit_code: int, code: str, field: str = "") -> None:
        self.exit_code = exit_code
        super().__init__(sentence, code=code, field=field)


class Star:
    """Rank 0 and the others.

    Attributes:
        rank: rank of this process.
        others: all ranks but 0.
        names: names by rank, with the machine; only rank 0 knows others' machines.
        patience: timeout of rank 0 in seconds; others wait longer.
        ended: ranks known to have ended.
    """

    def __init__(self) -> None:
        self.rank, self.others, self.patience = dist.get_rank(), range(1, dist.get_world_size()), PATIENCE
        self.names, self.ended = {0: "rank 0", **{rank: f"rank {rank}" for rank in self.others}}, set[int]()
        own = f"rank {self.rank} on {socket.gethostname()}"
        if self.rank:
            self.send(0, own)
        else:
            self.names = {0: own, **{rank: visible(self.receive(rank, str)) for rank in self.others}}

    @property
    def _seconds(self) -> float:
        return 2 * self.patience + 60 if self.rank else self.patience

    def send(self, rank: int, document: object) -> None:
        """Send a document by msgpack.

        Raises:
            RankEndedError: the process has ended.
        """
        message = msgpack.packb(document)
        with self._naming(rank):
            send_bytes(message, rank, self._seconds)

    def receive(self, rank: int, kind: type[T]) -> T:
        """Receive a document from a rank.

        Args:
            rank: the sender.
            kind: required type of the document.

        Raises:
            RankEndedError: the process has ended, does not answer, or sent another type.
        """
        with self._naming(rank):
            message = receive_bytes(rank, self._seconds)
        try:
            document = msgpack.unpackb(message, strict_map_key=False)
        except ValueError:
            document = None
        if not isinstance(document, kind):
            raise self.misunderstood(rank)
        return document

    def misunderstood(self, rank: int) -> RankEndedError:
        """Return the error for an unexpected message; the rank is then ignored."""
        self.ended.add(rank)
        return RankEndedError(self.names[rank], "sent an unexpected message: does it run another version?")

    @property
    def living(self) -> list[int]:
        """Other ranks that have not ended."""
        return [rank for rank in self.others if rank not in self.ended]

    @contextmanager
    def _naming(self, rank: int) -> Iterator[None]:
        try:
            yield
        except RuntimeError as error:
            self.ended.add(rank)
            silent = "Timed out" in str(error)
            what = f"has not answered for {self._seconds:g} s" if silent else "has ended; its own output may say why"
            raise RankEndedError(self.names[rank], what) from None

    def agree(self, work: Callable[[], T]) -> T:
        """Run work on every rank and return this rank's result, if it succeeded everywhere.

        Raises:
            RefusedError: the first failed rank's error, at all ranks.
        """
        refusal: list[Any] = []
        try:
            made = work()
        except RankdadError as error:
            refusal = [str(error), error.exit_code, error.code, error.field]
        if self.rank:
            self.send(0, refusal)
            verdict = self.receive(0, list)
        else:
            refusals = {0: refusal} | {rank: self._refusal(rank) for rank in self.living}
            verdict = self._verdict(refusals)
            for rank in self.living:
                self.send(rank, verdict)
        if verdict:
            raise RefusedError(*verdict)
        return made

    def _refusal(self, rank: int) -> list[Any]:
        try:
            return self.receive(rank, list)
        except RankEndedError as error:
            return [error.what, error.exit_code, error.code, error.field]

    def _verdict(self, refusals: dict[int, list[Any]]) -> list[Any]:
        refused = {rank: refusal for rank, refusal in refusals.items() if refusal}
        if not refused or all(refusal == refusals[0] for refusal in refusals.values()):
            return refusals[0]
        rank, (sentence, *others) = next(iter(refused.items()))
        return [f"{self.names[rank]}: {sentence}", *others]

    def share(self, document: T, kind: type[T]) -> T:
        """Return rank 0's document on all ranks."""
        if self.rank:
            return self.receive(0, kind)
        for rank in self.living:
            self.send(rank, document)
        return document


@contextmanager
def joined() -> Iterator[Star]:
    """Join torchrun's processes.

    Raises:
        UserError: they cannot connect.
        SystemExit: on SIGTERM.
    """
    previous = signal.signal(signal.SIGTERM, _stop_soon)
    try:
        dist.init_process_group("gloo", timeout=JOINING)
    except (RuntimeError, ValueError) as error:
        raise not_joined(error) from None
    try:
        yield Star()
    finally:
        dist.destroy_process_group()
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGTERM, previous)


def _stop_soon(_number: int, _frame: FrameType | None) -> None:
    """Delay the end after SIGTERM, so that rank 0 can report which rank ended first."""
    signal.signal(signal.SIGALRM, _stop)
    signal.setitimer(signal.ITIMER_REAL, ENDING)


def _stop(_number: int, _frame: FrameType | None) -> None:
    """End this process with an exception that handlers of errors do not catch."""
    end_with(RankdadError(f"rank {os.environ.get('RANK', '?')}: stopped by SIGTERM", code="stopped"))
    raise SystemExit(INTERRUPTED + signal.SIGTERM)
