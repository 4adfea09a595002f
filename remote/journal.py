"""Damage to the write-ahead log of a run's file, from which SQLite drops all later transactions without a word."""

from __future__ import annotations

from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from rankdad.remote.records import LEFT, DamageError

PAGE = 16384  # bytes; bodies are large: half as many writes take two thirds of the time
HEAD, FRAME = 32, 24  # bytes before the frames, and of a frame before its page
MAGIC = b"\x37\x7f\x06"
_END = slice(4, 8)  # of a frame's head: not 0 in a transaction's last one
_SALTS, _SUM = slice(8, 16), slice(16, 24)  # further parts of it; eight bytes later in the log's head


def dropped(path: Path) -> int:
    """Return how many transactions in the log of a run's file are dropped, 2 for more, as the first is not whole.

    A power failure leaves one at most, not yet answered: the next one is written once it is synced.
    """
    log = path.with_name(f"{path.name}-wal")  # not the file itself: closing that would end SQLite's locks
    return min(_dropped(log), _dropped(log))  # the run may be writing there


def check_log(path: Path) -> None:
    """Check that the log of a run's file has lost no committed round.

    Raises:
        DamageError: it has.
    """
    if dropped(path) > 1:
        raise DamageError(path, f"has lost its last rounds, as {path.name}-wal is damaged; {LEFT}")


def _dropped(log: Path) -> int:
    try:
        file = log.open("rb")
    except OSError:
        return 0
    with file:
        head = file.read(HEAD)
        if len(head) < HEAD:
            return 0
        weights, order, found = _weights(), ">u4" if head[3] & 1 else "<u4", 0
        salts, before = head[16:24], head[24:32]
        is_whole = head[:3] == MAGIC and _checksum(weights, bytes(8), head[:24], order) == before
        if not is_whole:
            salts = file.read(FRAME)[_SALTS]
            file.seek(HEAD)
        while len(frame := file.read(FRAME + PAGE)) == FRAME + PAGE:
            if frame[_SALTS] != salts:  # of an earlier log, or damaged
                is_whole = False
                continue
            is_whole = is_whole and _checksum(weights, before, frame[:8] + frame[FRAME:], order) == frame[_SUM]
            before = frame[_SUM]
            found += not is_whole and any(frame[_END])
            if found > 1:
                break
        return found


def _weights() -> NDArray[np.uint32]:
    """Return Fibonacci numbers: SQLite's sums are the words times these, the last word times the first number."""
    numbers = [0, 1]
    for _ in range(PAGE // 4 + 4):
        numbers.append((numbers[-2] + numbers[-1]) % (1 << 32))
    return np.array(numbers, np.uint32)


def _checksum(weights: NDArray[np.uint32], before: bytes, data: bytes, order: str) -> bytes:
    """Return a log's two running sums after some data, given those before it."""
    first, second = (int(one) for one in np.frombuffer(before, ">u4"))
    start = np.array([first, (second - first) % (1 << 32)], np.uint32)
    words = np.concatenate([start, np.frombuffer(data, order).astype(np.uint32)])[::-1]
    return np.array([weights[: len(words)] @ words, weights[1 : len(words) + 1] @ words], ">u4").tobytes()
