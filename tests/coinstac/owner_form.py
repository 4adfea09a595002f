"""The owner's side of the form: a rule takes a field, what is typed into it and the value before, and returns the next.

Every rule is what the platform does, faults included.
"""

from __future__ import annotations

import copy
import json
from collections.abc import Callable, Mapping
from typing import Any

from tests.coinstac.compspec_losses import is_members
from tests.coinstac.compspec_rules import TYPES
from tests.coinstac.typed import NOTHING, AppError, Input, listed, number_field, offered, rows, same

Map = dict[str, dict[str, Any]]  # by variable: `fulfilled`, and `value` if there is one
ROWS = ("csv", "files", "freesurfer")  # what the owner adds rows to, a field of either source


def defaults(inputs: Mapping[str, Input]) -> Map:
    """Every `default` is in the form from the start, be it shown or not; a field without one is not in it at all."""
    return {
        name: {"fulfilled": not is_members(one), "value": copy.deepcopy(one["default"])}
        for name, one in inputs.items()
        if "default" in one
    }


def draw_directories(inputs: Mapping[str, Input], filled: Map) -> None:
    """A directory gets into the form by being drawn; of several without a default only the last one drawn does."""
    order = sorted(inputs, key=lambda name: float(inputs[name].get("order", 0)))
    groups = list(dict.fromkeys([None, *(inputs[name].get("group") for name in order)]))
    order.sort(key=lambda name: groups.index(inputs[name].get("group")))
    for name in [name for name in order if inputs[name]["type"] == "directory"][-1:]:
        members = is_members(inputs[name])
        filled.setdefault(name, {"fulfilled": False, "value": []} if members else {"fulfilled": True})


def hidden(one: Input, filled: Map) -> str:
    """Say why the owner does not see a field, of whichever source: an unequal `conditional`, or nothing to draw."""
    condition, kind = one.get("conditional") or {}, one["type"]
    variable, awaited = condition.get("variable"), condition.get("value")
    if variable and not same(filled.get(variable, {}).get("value", NOTHING), awaited):
        return f"it waits for {variable} to be {awaited!r}"
    needed = {"array": ["values"], "select": ["values"], "range": ["min", "max", "step"]}.get(kind, [])
    lacking = [f"its {key} is missing or 0" for key in needed if not one.get(key)]
    return "" if kind in TYPES and not lacking else [*lacking, f"there is no type {kind}"][0]


def type_as_owner(name: str, one: Input, typed: Any, filled: Map) -> None:
    """Rows are for members too; whatever else the owner types into a member's field is lost."""
    kind, members = one["type"], is_members(one)
    if members and kind not in ROWS:
        raise AppError(f"{name}: it is the members' field, what the owner types is lost")
    if kind == "directory" or (kind == "csv" and not members):
        raise AppError(f"{name}: an owner's {kind} takes nothing")
    before = filled.get(name, {}).get("value", NOTHING)
    try:
        value = OWNER[kind](one, typed, before)
    except AppError as error:
        raise AppError(f"{name}: {error}") from error
    if value is NOTHING:
        filled.pop(name, None)
    else:
        filled[name] = {"fulfilled": not members, "value": value}


def owner_string(one: Input, typed: Any, before: Any) -> Any:
    """Text is taken as it is; an emptied field shows its default again, and sends nothing."""
    return str(typed) or NOTHING


def owner_number(one: Input, typed: Any, before: Any) -> Any:
    """A number is any number, whatever `min`, `max` and `step` say; an emptied field sends nothing."""
    text = number_field(typed)
    return float(text) if text else NOTHING


def owner_boolean(one: Input, typed: Any, before: Any) -> Any:
    """A box is checked or not."""
    return offered(typed, [True, False])


def owner_choice(one: Input, typed: Any, before: Any) -> Any:
    """One of the values; 0 and the empty text send nothing."""
    return offered(typed, one["values"]) or NOTHING


def owner_radio(one: Input, typed: Any, before: Any) -> Any:
    """Whichever button is pressed, the value is true."""
    offered(typed, one["values"])
    return True


def owner_range(one: Input, typed: Any, before: Any) -> Any:
    """One number from `min` to `max`, by `step`; 0 sends nothing."""
    count = int((one["max"] - one["min"]) / one["step"] + 1e-9) + 1
    return offered(typed, [one["min"] + i * one["step"] for i in range(count)]) or NOTHING


def owner_array(one: Input, typed: Any, before: Any) -> Any:
    """A click adds to the list a list: all that was chosen before, and the choice."""
    offered(typed, one["values"])
    if not isinstance(before, list):
        raise AppError("an array breaks without a list to begin with")
    return [*before, [item for item in before if item != typed] + [typed] * (typed not in before)]


def owner_items(one: Input, typed: Any, before: Any) -> Any:
    """The items of a set's default, or of a matrix's, can be written over, with text; none can be added."""
    items = copy.deepcopy(before)
    for place, text in typed.items():
        *row, last = place if isinstance(place, tuple) else (place,)
        try:
            (items[row[0]] if row else items)[last] = str(text)
        except (IndexError, TypeError) as error:
            raise AppError(f"there is no item {place}") from error
    return items


def owner_object(one: Input, typed: Any, before: Any) -> Any:
    """Any JSON is taken; text that is none changes nothing; null, false, 0 and "" send nothing."""
    try:
        value = json.loads(typed) if isinstance(typed, str) and typed else typed
    except ValueError:
        return before
    return NOTHING if value is None or value in (False, 0, "") else value


def owner_users(one: Input, typed: Any, before: Any) -> Any:
    """One user's id; where several may be chosen, nothing is sent."""
    return NOTHING if one.get("multi") else typed


def owner_csv(one: Input, typed: Any, before: Any) -> Any:
    """A row for each of the members' columns: its name and one of the types in `items`."""
    return rows(before) + [{"type": offered(kind, listed(one)), "name": name} for name, kind in typed]


def owner_files(one: Input, typed: Any, before: Any) -> Any:
    """A row for each data type, one of `items`; no row means anything to members, but the first one shows the field."""
    return rows(before) + [{"type": offered(kind, listed(one))} for kind in typed]


def owner_freesurfer(one: Input, typed: Any, before: Any) -> Any:
    """A row with the list of regions."""
    return rows(before) + [{"type": offered("FreeSurfer", listed(one)), "value": list(typed)}]


Rule = Callable[[Input, Any, Any], Any]
OWNER: dict[str, Rule] = {
    "string": owner_string,
    "number": owner_number,
    "boolean": owner_boolean,
    "select": owner_choice,
    "radio": owner_radio,
    "range": owner_range,
    "array": owner_array,
    "set": owner_items,
    "matrix": owner_items,
    "object": owner_object,
    "users": owner_users,
    "csv": owner_csv,
    "files": owner_files,
    "freesurfer": owner_freesurfer,
}
