"""A field of the form that a consortium's owner and its members fill in, and how what they fill in is read."""

from __future__ import annotations

import csv
import json
import math
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Literal

Source = Literal["owner", "member"]
LABEL_VALUES = re.compile(r"^(.+?)\s*=\s*(.+\|.+)$")  # column = value | value


@dataclass(frozen=True)
class Problem:
    """What is wrong with a field.

    Args:
        source: who fills it in.
        text: its label, its variable, and a sentence.
        details: what its own member may read besides; other members must not.
    """

    source: Source
    text: str
    details: str = ""


@dataclass(frozen=True)
class Columns:
    """Columns of a table, with the values that an owner names.

    Args:
        names: of the columns, in order; a pattern with * or ? stands for several.
        excluded: names that stood after a minus sign.
        values: of the columns for which they are named.
    """

    names: tuple[str, ...] = ()
    excluded: tuple[str, ...] = ()
    values: Mapping[str, tuple[str, ...]] | None = None


@dataclass(frozen=True)
class Field:
    """One field of the form.

    Args:
        variable: its key.
        label: what people read beside it.
        kind: the platform's name of its type.
        default: what stands in it before anybody has touched it.
        tooltip: help.
        read: returns the value of what was filled in, or raises a ValueError that says what was expected.
        source: who fills it in.
        choices: values to choose from.
        more: further keys of the form's description.
    """

    variable: str
    label: str
    kind: str
    default: Any
    tooltip: str
    read: Callable[[Any], Any]
    source: Source = "owner"
    choices: tuple[str, ...] = ()
    more: Mapping[str, Any] | None = None

    def value(self, given: Any) -> Any:
        """Return the value of what was filled in; of nothing, of the default.

        Raises:
            ValueError: saying what was expected.
        """
        given = given.strip() if isinstance(given, str) else given
        given = self.default if given is None or given == "" else given
        if self.choices and given not in self.choices:
            raise ValueError(f"expected one of {', '.join(self.choices)}")
        return self.read(given)

    def problem(self, said: str, details: str = "", *, member: bool = False) -> Problem:
        """Return what is wrong with it, or with a member's table in the light of it."""
        source = "member" if member else self.source
        return Problem(source, f"{self.label} ({self.variable}): {said}", details)


def anything(given: Any) -> Any:
    """Return what was filled in as it is."""
    return given


def whole(least: int) -> Callable[[Any], int]:
    """Return what reads a whole number of at least so much."""

    def read(given: Any) -> int:
        expected = ValueError(f"expected a whole number of at least {least}")
        try:
            number = float("nan" if isinstance(given, bool) else given)
        except (TypeError, ValueError, OverflowError):
            raise expected from None
        if not math.isfinite(number) or not number.is_integer() or not least <= number < 2**53:
            raise expected
        return int(number)

    return read


def names(given: Any) -> list[str]:
    """Return names that stand in text with commas between them, or in a list; quotes keep a comma in a name.

    Raises:
        ValueError: something else stands there.
    """
    listed = given if isinstance(given, list) else [given]
    if not all(isinstance(name, str) for name in listed):
        raise ValueError("expected names of columns with commas between them")
    if not isinstance(given, list):
        listed = [cell for row in csv.reader(given.splitlines(), skipinitialspace=True) for cell in row]
    return [name.strip() for name in listed if name.strip()]


def columns(given: Any) -> Columns:
    """Return columns, of which some may stand after a minus sign and some be followed by their values.

    Raises:
        ValueError: something else stands there.
    """
    kept: list[str] = []
    excluded: list[str] = []
    values: dict[str, tuple[str, ...]] = {}
    for name in names(given):
        found = LABEL_VALUES.match(name)
        if name.startswith("-") and len(name) > 1:
            excluded.append(name[1:].strip())
        elif found:
            kept.append(found[1])
            values[found[1]] = tuple(value.strip() for value in found[2].split("|") if value.strip())
        else:
            kept.append(name)
    return Columns(tuple(kept), tuple(excluded), values)


def label(given: Any) -> Columns:
    """Return the one column of what is predicted.

    Raises:
        ValueError: none stands there, or several.
    """
    found = columns(given)
    if len(found.names) != 1 or found.excluded:
        raise ValueError("expected the name of one column, such as diagnosis, or diagnosis = benign | malignant")
    return found


def network(given: Any) -> dict[str, Any]:
    """Return the spec's model: `linear`, or `mlp-64-32` with the widths of its hidden layers."""
    widths = [int(width) for width in str(given).split("-")[1:]]
    return {"name": "mlp", "hidden": widths} if widths else {"name": "linear"}


def document(given: Any) -> dict[str, Any]:
    """Return a JSON object that stands in the form as such, or as text; of a file for `rankdad simulate`, its run.

    Raises:
        ValueError: it is none.
    """
    try:
        found = json.loads(given) if isinstance(given, str) else given
    except json.JSONDecodeError as error:
        raise ValueError(f"is not JSON: {error.msg} in line {error.lineno}, column {error.colno}") from None
    except (RecursionError, ValueError):
        raise ValueError("is not JSON that can be read: it is nested too deeply, or holds too long a number") from None
    if not isinstance(found, dict):
        raise ValueError("expected a JSON object, such as one of the examples in docs/coinstac.md")
    run = found.get("run")
    return run if isinstance(run, dict) and "task" not in found else found
