"""The owner's side of the form: a rule takes a field, what is typed into it and the value before, and returns the next.

Every rule is what the platform does, faults included.
"""

from __future__ import annotations

import copy
import json
from collections.abc import Callable, Mapping
from typing import Any

from tests.coinstac.compspec_rules import is_members
from tests.coinstac.typed import NOTHING, AppError, Input, number_field, offered, same

Map = dict[str, dict[str, Any]]  # by variable: `fulfilled`, and `value` if there is one


def defaults(inputs: Mapping[str, Input]) -> Map:
    """Every `default` is in the form from the start, be it shown or not; a field without one is not in it at all."""
    return {
        name: {"fulfilled": not is_members(one), "value": copy.deepcopy(one["default"])}
        for name, one in inputs.items()
        if "default" in one
    }


def hidden(one: Input, filled: Map) -> str:
    """Say why the owner does not see a field: an unequal `conditional`, or nothing."""
    condition = one.get("conditional") or {}
    variable, awaited = condition.get("variable"), condition.get("value")
    if variable and not same(filled.get(variable, {}).get("value", NOTHING), awaited):
        return f"it waits for {variable} to be {awaited!r}"
    return ""


def type_as_owner(name: str, one: Input, typed: Any, filled: Map) -> None:
    """Put into the form what the owner types into a field; into a member's nobody should."""
    if is_members(one):
        raise AppError(f"{name}: it is the members' field, what the owner types is lost")
    try:
        value = OWNER[one["type"]](one, typed, filled.get(name, {}).get("value", NOTHING))
    except AppError as error:
        raise AppError(f"{name}: {error}") from error
    if value is NOTHING:
        filled.pop(name, None)
    else:
        filled[name] = {"fulfilled": True, "value": value}


def owner_string(one: Input, typed: Any, before: Any) -> Any:
    """Text is taken as it is; an emptied field shows its default again, and sends nothing."""
    return str(typed) or NOTHING


def owner_number(one: Input, typed: Any, before: Any) -> Any:
    """A number is any number, whatever `min`, `max` and `step` say; an emptied field sends nothing."""
    text = number_field(typed)
    return float(text) if text else NOTHING


def owner_choice(one: Input, typed: Any, before: Any) -> Any:
    """One of the values; 0 and the empty text send nothing."""
    return offered(typed, one["values"]) or NOTHING


def owner_object(one: Input, typed: Any, before: Any) -> Any:
    """Any JSON is taken; text that is none changes nothing; null, false, 0 and "" send nothing."""
    try:
        value = json.loads(typed) if isinstance(typed, str) and typed else typed
    except ValueError:
        return before
    return NOTHING if value is None or value in (False, 0, "") else value


Rule = Callable[[Input, Any, Any], Any]
OWNER: dict[str, Rule] = {
    "string": owner_string,
    "number": owner_number,
    "select": owner_choice,
    "object": owner_object,
}
