"""What is told beside a site's training: who keeps time, files or checkpoints."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from torch import Tensor

from rankdad.common.protocol.messages import Body


def _nothing(*_: object) -> None:
    """Do nothing."""


@dataclass(frozen=True)
class Observer:
    """What hears of a site's training; nobody by default.

    Args:
        lap: told the name of each stretch of work when it ends, for timings.
        between_steps: called before every step: the site's state is then all that it needs to go on.
        tested: given every fold's outputs for its test samples, [n, outputs], numbers in the label's unit; of a site
            that comes back from a crash maybe twice.
        notice: told what a person at the site should know.
        answered: given every round's update, as bytes, before the site follows it.
        followed: given every update's body when the state is beyond it.
    """

    lap: Callable[[str], None] = _nothing
    between_steps: Callable[[], None] = _nothing
    tested: Callable[[int, Tensor], None] = _nothing
    notice: Callable[[str], None] = _nothing
    answered: Callable[[int, bytes], None] = _nothing
    followed: Callable[[Body], None] = _nothing
