"""The form that a consortium's owner and its members fill in, and how a run's spec follows from it.

The platform checks none of what is filled in. Here every field is, and all that are wrong are named at once. Types,
bounds, choices and tooltips come from the spec model: a field says only where in the spec it stands.
"""

from __future__ import annotations

import difflib
import json
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Literal

from common.documents import Part, problems
from common.spec import RunSpec

Source = Literal["owner", "member"]
_SPEC = "Whole specification (spec)"


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
        except (TypeError, ValueError):
            raise ValueError(expected) from None
        if not whole:
            return number
        if not number.is_integer() or not (-(2**53) if least is None else least) <= number < 2**53:
            raise ValueError(expected)
        return int(number)

    def _choice(self, given: Any) -> Any:
        if given not in self.choices:
            raise ValueError(f"expected one of {', '.join(self.choices)}")
        return given


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


def whole_numbers(given: Any) -> list[int]:
    """Return numbers that stand in text with commas, blanks or × between them, or in a list.

    Raises:
        ValueError: something else stands there.
    """
    text = ",".join(map(str, given)) if isinstance(given, list) else str(given)
    parts = [part for part in re.split(r"[\s,;x×]+", text) if part]
    if not all(part.isdecimal() for part in parts):
        raise ValueError("expected whole numbers with commas between them")
    return [int(part) for part in parts]


def site_name(given: Any) -> str:
    """Return a site's name.

    Raises:
        ValueError: results and folders could not use it.
    """
    if not re.fullmatch(r"[a-z0-9][a-z0-9._-]{0,62}", str(given)):
        raise ValueError("expected small letters, digits, dots and hyphens, such as hospital-a")
    return str(given)


def names(given: Any) -> list[str]:
    """Return names that stand in text with commas between them, or in a list.

    Raises:
        ValueError: something else stands there.
    """
    if isinstance(given, list) and all(isinstance(name, str) for name in given):
        return given
    if not isinstance(given, str | int | float) or isinstance(given, bool):
        raise ValueError("expected names with commas between them")
    text = str(given)
    return [part.strip().strip('"') for part in text.split(",") if part.strip()]


def regions(given: Any) -> list[str]:
    """Return the regions that the platform's field for FreeSurfer holds: [{"value": [name, …]}], or the names alone.

    Raises:
        ValueError: it holds something else.
    """
    if isinstance(given, str):
        return names(given)
    found: list[Any] = []
    for one in given if isinstance(given, list) else [given]:
        held = one.get("value") if isinstance(one, Mapping) else one
        found += held if isinstance(held, list) else [held]
    if not all(isinstance(name, str) for name in found):
        raise ValueError("expected names of regions")
    return found


def document(text: Any) -> dict[str, Any]:
    """Return a JSON object that stands in the form as such, or as text.

    Raises:
        ValueError: it is none.
    """
    try:
        found = json.loads(text) if isinstance(text, str) and text.strip() else text or {}
    except json.JSONDecodeError as error:
        raise ValueError(f"is not JSON: {error.msg} in line {error.lineno}, column {error.colno}") from None
    if not isinstance(found, dict):
        raise ValueError("expected a JSON object")
    return found


@dataclass(frozen=True)
class Filled:
    """What has been filled in.

    Args:
        values: by variable, of the fields that count; of one that cannot be read, what stood in the form before.
        run: the run's document, whose sites are this one alone.
        sites: that the owner expects, in their order; none if whoever comes takes part.
        problems: with any field.
    """

    values: dict[str, Any]
    run: dict[str, Any]
    sites: tuple[str, ...]
    problems: tuple[Problem, ...]


def read(fields: Sequence[Field], inputs: Mapping[str, Any]) -> Filled:
    """Return what a member's inputs say, the owner's among them.

    Args:
        fields: of the form; one whose value decides about others comes before them.
        inputs: by variable; one that is missing has its default.
    """
    values: dict[str, Any] = {}
    known = [field.variable for field in fields if not field.fixed]
    wrong = {variable: _unknown(known, variable) for variable in inputs if variable not in known}
    counting: list[Field] = []
    for field in fields:
        if field.applies(values):
            counting.append(field)
            given = None if field.fixed else inputs.get(field.variable)
            try:
                values[field.variable] = field.read(given)
            except ValueError as error:
                wrong[field.variable] = _problem(field, f"got {_shown(given)}, {error}")
                values[field.variable] = field.initial
    expert = values.get("spec") or {}
    run: dict[str, Any] = json.loads(json.dumps(expert)) or _assembled(counting, values)
    federation = run.setdefault("federation", {})
    sites = values.get("sites") or (federation.get("sites") if isinstance(federation, dict) else None) or []
    if isinstance(federation, dict):
        federation["sites"] = [values["site"]]
        if "quorum" in federation:
            said = f"{_SPEC}: federation.quorum: the platform waits for every site in every round: leave it out"
            wrong["spec"] = Problem("owner", said)
    for path, said in problems(RunSpec, run) if "spec" not in wrong else ():
        at = _field_of(counting, path, expert=bool(expert))
        if at is None:
            wrong[path] = Problem("owner", f"{_SPEC}: {path}: {said}" if expert else f"{path}: {said}")
        else:
            wrong.setdefault(at.variable, _problem(at, said))
    return Filled(values, run, tuple(map(str, sites)), tuple(wrong.values()))


def _assembled(fields: Sequence[Field], values: Mapping[str, Any]) -> dict[str, Any]:
    run: dict[str, Any] = {}
    for field in fields:
        if field.path and field.source == "owner":
            *parents, last = field.path.split(".")
            place = run
            for key in parents:
                place = place.setdefault(key, {})
            place[last] = values[field.variable]
    return run


def _field_of(fields: Sequence[Field], path: str, *, expert: bool) -> Field | None:
    """Return the field that a path of the run's document came from."""
    for field in fields:
        if field.path and f"{path}[".startswith((f"{field.path}[", f"{field.path}.")):
            return field if field.source == "member" or not expert else None
    return None


def _problem(field: Field, said: str) -> Problem:
    return Problem(field.source, f"{field.label} ({field.variable}): {said}")


def _unknown(known: Sequence[str], variable: str) -> Problem:
    near = difflib.get_close_matches(variable, known, n=1)
    hint = f"did you mean {near[0]}?" if near else "remove it"
    return Problem("owner", f"{variable[:60]}: is not known here: {hint}")


def _shown(given: Any) -> str:
    text = json.dumps(given)
    return "nothing" if given in (None, "") else text if len(text) <= 60 else text[:57] + "..."
