"""A field of the form that a consortium's owner and its members fill in.

Types, bounds, choices and tooltips come from the spec model: a field says only where in the spec it stands.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Literal

from common.documents import Part

Source = Literal["owner", "member"]


@dataclass(frozen=True)
class Problem:
    """What is wrong with a field.

    Args:
        source: who fills it in.
        text: its label, its variable, and a sentence.
    """

    source: Source
    text: str


@dataclass(frozen=True)
class Field:
    """One field of the form.

    Args:
        variable: its key.
        label: what people read beside it.
        group: the part of the form that it stands in.
        path: where in the run's spec its value goes; empty if it goes nowhere.
        part: the model that holds the value; with the last name of `path`, type, bounds and choices follow from it.
        default: what stands in the form; the model's own without it.
        source: who fills it in.
        when: another variable, and with which of its values this field counts.
        type: the platform's name of its type, where that does not follow from the model.
        tooltip: help, where the model has none.
        parse: from what was filled in to the value, where that is no single number, choice or text.
        values: choices, where they are fewer than the model's.
        more: further keys of the form's description.
        own: the value's JSON schema, where no model holds it.
        fixed: whether nobody fills it in: it always has its default.
    """

    variable: str
    label: str
    group: str
    path: str = ""
    part: type[Part] | None = None
    default: Any = None
    source: Source = "owner"
    when: tuple[str, tuple[Any, ...]] | None = None
    type: str = ""
    tooltip: str = ""
    parse: Callable[[Any], Any] | None = None
    values: tuple[str, ...] = ()
    more: Mapping[str, Any] | None = None
    own: Mapping[str, Any] | None = None
    fixed: bool = False

    @cached_property
    def schema(self) -> dict[str, Any]:
        """The value's JSON schema, of the alternative that is not null."""
        if self.part is None:
            return dict(self.own or {})
        document = self.part.model_json_schema()
        found: dict[str, Any] = document["properties"][self.path.rpartition(".")[2]]
        for alternative in found.get("anyOf", ()):
            if alternative.get("type") != "null":
                found = alternative | {key: value for key, value in found.items() if key != "anyOf"}
        return found

    @property
    def initial(self) -> Any:
        """What stands in the form before anybody has touched it."""
        return self.schema.get("default") if self.default is None else self.default

    @property
    def choices(self) -> tuple[str, ...]:
        """Values to choose from; none if any may be given."""
        return self.values or tuple(self.schema.get("enum", ()))

    @property
    def kind(self) -> str:
        """The platform's name of its type."""
        if self.type:
            return self.type
        if self.choices:
            return "select"
        numbers = {"integer": "number", "number": "number", "boolean": "boolean"}
        return numbers.get(self.schema.get("type", ""), "string")

    @property
    def help(self) -> str:
        """Its tooltip."""
        words = self.tooltip or self.schema.get("description", "")
        return " ".join(words.split())

    def applies(self, values: Mapping[str, Any]) -> bool:
        """Tell whether the field counts, given the values of the others."""
        return self.when is None or values.get(self.when[0]) in self.when[1]

    def read(self, given: Any) -> Any:
        """Return the value of what was filled in.

        Raises:
            ValueError: saying what was expected.
        """
        if given is None or given == "":
            given = self.initial
        if isinstance(given, str):
            given = given.strip()
        if self.parse is not None:
            return self.parse(given)
        readers = {"number": self._number, "boolean": _boolean, "select": self._choice, "string": _text}
        return readers.get(self.kind, lambda value: value)(given)

    def _number(self, given: Any) -> Any:
        whole = self.schema.get("type") == "integer"
        least = self.schema.get("minimum") if self.part is None else None  # a model checks its own bounds
        expected = "expected a whole number" if whole else "expected a number"
        expected += "" if least is None else f" of at least {least}"
        if given is None:
            return None
        if isinstance(given, bool):
            raise ValueError(expected)
        try:
            number = float(given)
        except (TypeError, ValueError, OverflowError):
            raise ValueError(expected) from None
        if not math.isfinite(number):
            raise ValueError(expected.replace("a number", "a finite number"))
        if not whole:
            return number
        if not number.is_integer() or not (-(2**53) if least is None else least) <= number < 2**53:
            raise ValueError(expected)
        return int(number)

    def _choice(self, given: Any) -> Any:
        if given not in self.choices:
            raise ValueError(f"expected one of {', '.join(self.choices)}")
        return given

    def problem(self, said: str) -> Problem:
        """Return what is wrong with it."""
        return Problem(self.source, f"{self.label} ({self.variable}): {said}")


def _text(given: Any) -> str:
    if not isinstance(given, str | int | float) or isinstance(given, bool):
        raise ValueError("expected text")
    return str(given)


def _boolean(given: Any) -> bool:
    if isinstance(given, str) and given.lower() in ("true", "false"):
        return given.lower() == "true"
    if not isinstance(given, bool):
        raise ValueError("expected yes or no")
    return given
