"""A field of the form that a consortium's owner and its members fill in, and how what they fill in is read."""

from __future__ import annotations

import csv
import json
import math
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, Field

from rankdad.common.documents import Part
from rankdad.common.errors import UserError, visible

Source = Literal["owner", "member"]
Line = Annotated[str, AfterValidator(visible)]
NAMED_VALUES = re.compile(r"^(.+?)\s*=\s*(.+\|.+)$")  # column = value | value


class Problem(Part):
    """What is wrong with a field."""

    source: Source
    """Who fills it in."""
    text: Line
    """Its label, its variable, and a sentence."""
    details: str = Field(default="", exclude=True)
    """What its own member may read besides; other members must not."""
    code: Annotated[str, Field(pattern=r"^[a-z-]{1,60}$")] = "invalid"
    """What kind of error it is; see `common.errors`."""
    field: Annotated[str, Field(max_length=200)] = ""
    """Variable of the form's field, or path in the spec."""

    def withheld(self) -> Problem:
        """Return it with what it says in the details, since that comes from a member's table."""
        details = f"{self.text} ({self.details})" if self.details else self.text
        text = f"{self.field}: {self.code} (see the site's log)"
        return self.model_copy(update={"source": "member", "text": text, "details": details})

    def named(self, member: str = "") -> str:
        """Return it as a line that says whose field it is.

        Args:
            member: what a member is called in it; its own log does not name it.
        """
        who = "owner" if self.source == "owner" else member
        return f"{who}: {self.text}" if who else self.text


class FormError(UserError):
    """What people have filled in cannot be run.

    Args:
        problems: all that are known.
    """

    def __init__(self, *problems: Problem) -> None:
        self.problems = problems
        first = problems[0]
        super().__init__("\n".join(problem.named() for problem in problems), code=first.code, field=first.field)


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
    values: Mapping[str, tuple[str, ...]] = field(default_factory=dict)


@dataclass(frozen=True)
class FormField:
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
        minimum: of a whole number.
        step: by which arrows change a number that need not be whole.
        extensions: of files.
    """

    variable: str
    label: str
    kind: str
    default: Any
    tooltip: str
    read: Callable[[Any], Any] = lambda given: given
    source: Source = "owner"
    choices: tuple[str, ...] = ()
    minimum: int | None = None
    step: float | None = None
    extensions: tuple[str, ...] = ()

    def value(self, given: Any) -> Any:
        """Return the value of what was filled in; of nothing, of the default.

        Raises:
            ValueError: saying what was expected.
        """
        given = given.strip() if isinstance(given, str) else given
        given = self.default if given is None or given == "" else given
        if self.choices and given not in self.choices:
            raise ValueError(f"expected one of {', '.join(self.choices)}")
        return self.read(given) if self.minimum is None else whole_number(given, self.minimum)

    def problem(self, said: str, details: str = "", *, member: bool = False, code: str = "invalid") -> Problem:
        """Return what is wrong with it, or with a member's table in the light of it."""
        source, text = "member" if member else self.source, f"{self.label} ({self.variable}): {said}"
        return Problem(source=source, text=text, details=details, code=code, field=self.variable)


def whole_number(given: Any, minimum: int) -> int:
    """Return a whole number.

    Raises:
        ValueError: something else stands there, or a smaller one.
    """
    number = _number(given)
    if not number.is_integer() or not minimum <= number < 2**53:
        raise ValueError(f"expected a whole number of at least {minimum}")
    return int(number)


def rate(given: Any) -> float:
    """Return a learning rate.

    Raises:
        ValueError: something else stands there.
    """
    number = _number(given)
    if not 0 < number <= 1:
        raise ValueError("expected a number above 0, and at most 1")
    return number


def _number(given: Any) -> float:
    """Return a number; NaN where something else stands there."""
    try:
        return float("nan" if isinstance(given, bool) else given)
    except (TypeError, ValueError, OverflowError):
        return math.nan


def columns(given: Any) -> Columns:
    """Return the columns in a list, or in text with commas between them; quotes keep a comma in a name.

    Some may stand after a minus sign, and some be followed by their values.

    Raises:
        ValueError: something else stands there.
    """
    cells = given if isinstance(given, list) else [given]
    if not all(isinstance(cell, str) for cell in cells):
        raise ValueError("expected names of columns with commas between them")
    if not isinstance(given, list):
        cells = [cell for row in csv.reader(given.splitlines(), skipinitialspace=True) for cell in row]
    names: list[str] = []
    excluded: list[str] = []
    values: dict[str, tuple[str, ...]] = {}
    for cell in filter(None, map(str.strip, cells)):
        named = NAMED_VALUES.match(cell)
        if cell.startswith("-") and len(cell) > 1:
            excluded.append(cell[1:].strip())
        elif named:
            names.append(named[1])
            values[named[1]] = tuple(filter(None, map(str.strip, named[2].split("|"))))
        else:
            names.append(cell)
    return Columns(tuple(names), tuple(excluded), values)


def label(given: Any) -> Columns:
    """Return the one column of what is predicted.

    Raises:
        ValueError: none stands there, or several.
    """
    one = columns(given)
    if len(one.names) != 1 or one.excluded:
        raise ValueError("expected the name of one column, such as diagnosis, or diagnosis = benign | malignant")
    return one


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
        parsed = json.loads(given) if isinstance(given, str) else given
    except json.JSONDecodeError as error:
        raise ValueError(f"is not JSON: {error.msg} in line {error.lineno}, column {error.colno}") from None
    except (RecursionError, ValueError):
        raise ValueError("is not JSON that can be read: it is nested too deeply, or holds too long a number") from None
    if not isinstance(parsed, dict):
        raise ValueError("expected a JSON object, such as one of the examples in docs/how-to/coinstac.md")
    run = parsed.get("run")
    return run if isinstance(run, dict) and "task" not in parsed else parsed
