"""Fields of the form for a consortium's owner and members, and parsing of their values."""

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
    """A problem with a field."""

    source: Source
    """Who fills in the field."""
    text: Line
    """Its label, its variable, and a sentence."""
    details: str = Field(default="", exclude=True)
    """Details for the member itself, hidden from other members."""
    code: Annotated[str, Field(pattern=r"^[a-z-]{1,60}$")] = "invalid"
    """Code of the error; see `common.errors`."""
    field: Annotated[str, Field(max_length=200)] = ""
    """Variable of the form's field, or path in the spec."""

    def withheld(self) -> Problem:
        """Hide its text, which comes from a member's table, in the details."""
        details = f"{self.text} ({self.details})" if self.details else self.text
        text = f"{self.field}: {self.code} (see the site's log)"
        return self.model_copy(update={"source": "member", "text": text, "details": details})

    def named(self, member: str = "") -> str:
        """Format it with the owner's or member's name.

        Args:
            member: the member's name; omitted in its own log.
        """
        who = "owner" if self.source == "owner" else member
        return f"{who}: {self.text}" if who else self.text


class FormError(UserError):
    """The form cannot be run.

    Args:
        problems: all known problems.
    """

    def __init__(self, *problems: Problem) -> None:
        self.problems = problems
        first = problems[0]
        super().__init__("\n".join(problem.named() for problem in problems), code=first.code, field=first.field)


@dataclass(frozen=True)
class Columns:
    """Columns of a table, with values named by the owner.

    Args:
        names: column names or patterns with * or ?, in order.
        excluded: names after a minus sign.
        values: values by column, where named.
    """

    names: tuple[str, ...] = ()
    excluded: tuple[str, ...] = ()
    values: Mapping[str, tuple[str, ...]] = field(default_factory=dict)


@dataclass(frozen=True)
class FormField:
    """One field of the form.

    Args:
        variable: its key.
        label: its label.
        kind: the platform's name of its type.
        default: its initial value.
        tooltip: its help text.
        read: parses the input, or raises a ValueError that names the expected input.
        source: who fills it in.
        choices: permitted values.
        minimum: minimum of a whole number.
        step: increment of a number that is not whole.
        extensions: extensions of files.
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
        """Parse an input; an empty one gives the default.

        Raises:
            ValueError: the input is invalid.
        """
        given = given.strip() if isinstance(given, str) else given
        given = self.default if given is None or given == "" else given
        if self.choices and given not in self.choices:
            raise ValueError(f"expected one of {', '.join(self.choices)}")
        return self.read(given) if self.minimum is None else whole_number(given, self.minimum)

    def problem(self, said: str, details: str = "", *, member: bool = False, code: str = "invalid") -> Problem:
        """Create a problem with this field, or with a member's table because of it."""
        source, text = "member" if member else self.source, f"{self.label} ({self.variable}): {said}"
        return Problem(source=source, text=text, details=details, code=code, field=self.variable)


def whole_number(given: Any, minimum: int) -> int:
    """Parse a whole number.

    Raises:
        ValueError: it is not a whole number, or below the minimum.
    """
    number = _number(given)
    if not number.is_integer() or not minimum <= number < 2**53:
        raise ValueError(f"expected a whole number of at least {minimum}")
    return int(number)


def rate(given: Any) -> float:
    """Parse a learning rate.

    Raises:
        ValueError: the input is invalid.
    """
    number = _number(given)
    if not 0 < number <= 1:
        raise ValueError("expected a number above 0, and at most 1")
    return number


def _number(given: Any) -> float:
    """Parse a number; NaN if it is not one."""
    try:
        return float("nan" if isinstance(given, bool) else given)
    except (TypeError, ValueError, OverflowError):
        return math.nan


def columns(given: Any) -> Columns:
    """Parse columns from a list, or from text with commas; quotes protect a comma in a name.

    A minus sign excludes a column; `name = a | b` names its values.

    Raises:
        ValueError: the input is invalid.
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
    """Parse the single column of the label.

    Raises:
        ValueError: there is none, or several.
    """
    one = columns(given)
    if len(one.names) != 1 or one.excluded:
        raise ValueError("expected the name of one column, such as diagnosis, or diagnosis = benign | malignant")
    return one


def network(given: Any) -> dict[str, Any]:
    """Parse the spec's model: `linear`, or `mlp-64-32` with the widths of its hidden layers."""
    widths = [int(width) for width in str(given).split("-")[1:]]
    return {"name": "mlp", "hidden": widths} if widths else {"name": "linear"}


def document(given: Any) -> dict[str, Any]:
    """Parse a JSON object, or text of one; for a file of `rankdad simulate`, return its run.

    Raises:
        ValueError: it is not a JSON object.
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
