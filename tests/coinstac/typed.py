"""What both sides of the platform's form have in common: how values are typed, chosen and sent."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from enum import Enum
from typing import Any

Input = Mapping[str, Any]  # a compspec's description of one input
NOTHING: Any = object()  # what an emptied field sends


class AppError(Exception):
    """What the platform refuses, does not show or fails at, or what nobody can do in its form."""


class Tick(Enum):
    """The box below a member's field."""

    USE_DEFAULT = "Use Default"


def same(one: Any, other: Any) -> bool:
    """JavaScript's === of what a form holds."""
    return bool(one == other) and isinstance(one, bool) == isinstance(other, bool)


def offered(choice: Any, choices: Sequence[Any]) -> Any:
    """Only what is offered can be chosen."""
    if not any(same(choice, one) for one in choices):
        raise AppError(f"{choice!r} is not offered")
    return choice


def number_field(typed: Any) -> str:
    """A browser's number field holds text that is a number, or nothing."""
    text = str(typed)
    return text if re.fullmatch(r"-?(\d+|\d*\.\d+)([eE][-+]?\d+)?", text) else ""


def as_sent(value: Any) -> Any:
    """What JSON makes of a value: a whole number loses its point, what is no number becomes null."""
    return json.loads(json.dumps(value), parse_float=lambda text: int(n) if (n := float(text)).is_integer() else n)
