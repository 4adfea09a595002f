"""Callbacks of a site's training, for timings, files and checkpoints."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from torch import Tensor

from rankdad.common.protocol.messages import Body, Message


def _nothing(*_: object) -> None: ...


@dataclass(frozen=True)
class Observer:
    """Callbacks of a site's training; by default none.

    Args:
        lap: called with the name of each phase when it ends, for timings.
        between_steps: called before every step, when the site's state can be saved.
        sent: called with every message that was sent, and its size in bytes.
        tested: called with every fold's outputs for its test samples, [n, outputs], numbers in the label's unit; maybe
            twice after a crash.
        notice: called with messages for the site's staff.
        answered: called with every round's update, as bytes, before it is applied.
        followed: called with every update's body after it was applied.
    """

    lap: Callable[[str], None] = _nothing
    between_steps: Callable[[], None] = _nothing
    sent: Callable[[Message, int], None] = _nothing
    tested: Callable[[int, Tensor], None] = _nothing
    notice: Callable[[str], None] = _nothing
    answered: Callable[[int, bytes], None] = _nothing
    followed: Callable[[Body], None] = _nothing
