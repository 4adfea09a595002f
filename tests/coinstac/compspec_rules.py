"""What the platform and its form ask of a compspec, as sentences about what is wrong with a document.

`refused` is what the upload says no to, `problems` adds what the form could not show, and `losses` what the platform
would lose without a word. Types of fields that our form does not have are not imitated.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from typing import Any

META = ("id", "name", "description", "repository", "version")
META_FURTHER = {"compspecVersion": int, "controller": str, "preprocess": bool, "testData": str}
IMAGE = {"type", "dockerImage", "command"}
COMPUTATION = IMAGE | {"input", "output", "display"}
DISPLAYS = {"string", "table", "iframe", "images", "box_plot", "scatter_plot"}
TYPES = {"string", "number", "select", "object", "files", "directory"}
MEMBER_TYPES = {"number", "files", "directory"}  # the platform shows members more, and loses what they give there
TEXTS = ("label", "tooltip", "group")
KEYS = {"type", "source", "default", "order", "conditional", "description", "items", "extensions", "required"}
RANGE = ("min", "max", "step")


def refused(document: Any) -> list[str]:
    """Return why the upload refuses a document: its validator's reasons and those of the server's types."""
    if not isinstance(document, dict):
        return ["the document must be an object"]
    return [
        *unknown("the document", document, {"meta", "computation"}),
        *of_meta(document.get("meta")),
        *of_computation(document.get("computation")),
    ]


def problems(document: Any) -> list[str]:
    """Return what is wrong with a compspec; nothing if the platform would take it and its form could show it."""
    reasons = refused(document)
    if not isinstance(document, dict) or not isinstance(computation := document.get("computation"), dict):
        return reasons
    return [*reasons, *of_service(document), *of_form(computation)]


def unknown(where: str, found: Mapping[str, Any], known: set[str]) -> Iterator[str]:
    """Name the keys that are not known."""
    for key in sorted(found.keys() - known):
        yield f"{where}: `{key}` is not allowed"


def is_text(value: Any) -> bool:
    """Tell whether it is a string with something in it."""
    return isinstance(value, str) and value != ""


def is_number(value: Any) -> bool:
    """Tell whether it is a finite number."""
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)


def has_type(found: Mapping[str, Any], types: set[str]) -> bool:
    """Tell whether its type is one of these."""
    return isinstance(found.get("type"), str) and found["type"] in types


def of_meta(meta: Any) -> Iterator[str]:
    """Check `meta`: the validator lets further keys pass, but the server knows only its own."""
    if not isinstance(meta, dict):
        yield "meta must be an object"
        return
    yield from unknown("meta", meta, {*META, *META_FURTHER, "tags"})
    for key in META:
        if not is_text(meta.get(key)):
            yield f"meta.{key} must be a string"
    for key, kind in META_FURTHER.items():
        found = meta.get(key)
        if found is not None and (not isinstance(found, kind) or (kind is int and isinstance(found, bool))):
            yield f"meta.{key} must be of the type {kind.__name__}"
    tags = meta.get("tags")
    if not all(isinstance(tag, str | None) for tag in (tags if isinstance(tags, list) else [tags])):
        yield "meta.tags must be a list of strings"


def of_computation(computation: Any) -> Iterator[str]:
    """Check `computation`, of whose form the upload knows nothing."""
    if not isinstance(computation, dict):
        yield "computation must be an object"
        return
    yield from unknown("computation", computation, COMPUTATION | {"remote"})
    yield from of_image("computation", computation)
    if "remote" in computation:
        remote = computation["remote"]
        if isinstance(remote, dict):
            yield from unknown("computation.remote", remote, IMAGE)
            yield from of_image("computation.remote", remote)
        else:
            yield "computation.remote must be an object"
    for key in ("input", "output", "display"):
        if key not in computation:
            yield f"computation.{key} is missing"


def of_image(where: str, found: Mapping[str, Any]) -> Iterator[str]:
    """Check what names an image and its command."""
    for key in ("type", "dockerImage"):
        if not is_text(found.get(key)):
            yield f"{where}.{key} must be a string"
    command = found.get("command")
    if not isinstance(command, list) or not command or not all(is_text(word) for word in command):
        yield f"{where}.command must be a list of at least one string"


def of_service(document: Mapping[str, Any]) -> Iterator[str]:
    """Check what makes it a service of version 2 in a container."""
    meta, computation = document.get("meta"), document["computation"]
    if isinstance(meta, dict) and meta.get("compspecVersion") != 2:
        yield "meta.compspecVersion must be 2, or the platform looks for another kind of service"
    remote = computation.get("remote")
    for where, found in (("computation", computation), ("computation.remote", remote)):
        if isinstance(found, dict) and is_text(found.get("type")) and found["type"] != "docker":
            yield f'{where}.type must be "docker"'


def of_form(computation: Mapping[str, Any]) -> Iterator[str]:
    """Check what people fill in and what they are shown."""
    for key in ("input", "output"):
        if key in computation and not isinstance(computation[key], dict):
            yield f"computation.{key} must be an object"
    if "display" in computation:
        yield from of_display(computation["display"])
    if isinstance(computation.get("input"), dict):
        yield from of_inputs(computation["input"])


def of_display(display: Any) -> Iterator[str]:
    """Check `display`: an object or several."""
    displays = display if isinstance(display, list) else [display]
    for one in displays:
        if not isinstance(one, dict) or not has_type(one, DISPLAYS):
            yield f"computation.display must be objects whose type is one of {', '.join(sorted(DISPLAYS))}"


def of_inputs(inputs: Mapping[str, Any]) -> Iterator[str]:
    """Check every input and what they say of each other."""
    orders: dict[Any, str] = {}
    for name, one in inputs.items():
        where = f"input {name}"
        if not isinstance(one, dict):
            yield f"{where} must be an object"
            continue
        yield from of_input(where, one)
        if "conditional" in one:
            yield from of_conditional(where, name, one["conditional"], inputs)
        order = one.get("order")
        if not is_number(order):
            yield f"{where}: `order` must be a number"
        elif order in orders:
            yield f"{where}: `order` {order} is that of {orders[order]}"
        else:
            orders[order] = name


def of_input(where: str, one: Mapping[str, Any]) -> Iterator[str]:
    """Check one input by itself."""
    if "defaultValue" in one:
        yield f"{where}: `defaultValue` is ignored, it must be `default`"
    yield from unknown(where, one, KEYS | {*TEXTS, *RANGE, "values", "defaultValue"})
    for key in TEXTS:
        if not is_text(one.get(key)):
            yield f"{where}: `{key}` must be a string"
    if one.get("source") not in ("owner", "member"):
        yield f'{where}: `source` must be "owner" or "member"'
    if not has_type(one, TYPES):
        yield f"{where}: no type {one.get('type')!r} is known here"
        return
    yield from of_values(where, one)
    yield from of_range(where, one)
    if "default" in one and sound(one) and not possible(one, one["default"]):
        yield f"{where}: the default {one['default']!r} is not possible for its type, range or values"


def of_values(where: str, one: Mapping[str, Any]) -> Iterator[str]:
    """Check the values to choose from."""
    values = one.get("values")
    if one["type"] == "select":
        if not isinstance(values, list) or not values or not all(is_text(v) or is_number(v) for v in values):
            yield f"{where}: `values` must be a list of strings or numbers to choose from"
        elif len(set(values)) < len(values):
            yield f"{where}: `values` has something twice"
    elif "values" in one:
        yield f"{where}: `values` means nothing for the type {one['type']}"


def of_range(where: str, one: Mapping[str, Any]) -> Iterator[str]:
    """Check the range of a number."""
    given = {key: one[key] for key in RANGE if key in one}
    if given and one["type"] != "number":
        yield f"{where}: `{next(iter(given))}` means nothing for the type {one['type']}"
    elif not all(is_number(value) for value in given.values()):
        yield f"{where}: `min`, `max` and `step` must be numbers"
    elif given.get("min", -math.inf) > given.get("max", math.inf):
        yield f"{where}: `min` is larger than `max`"
    elif given.get("step", 1) <= 0:
        yield f"{where}: `step` must be larger than 0"


def of_conditional(where: str, name: str, conditional: Any, inputs: Mapping[str, Any]) -> Iterator[str]:
    """Check that a conditional can be met: it is an equality with a value of another input."""
    if not isinstance(conditional, dict) or conditional.keys() != {"variable", "value"}:
        yield f"{where}: `conditional` must have `variable` and `value` alone"
        return
    variable, value = conditional["variable"], conditional["value"]
    other = inputs.get(variable) if isinstance(variable, str) else None
    if variable == name or not isinstance(other, dict):
        yield f"{where}: `conditional` names no other input: {variable!r}"
    elif sound(other) and (isinstance(value, list | dict) or not possible(other, value)):
        yield f"{where}: `conditional` waits for {value!r}, which {variable} cannot be"


def sound(one: Mapping[str, Any]) -> bool:
    """Tell whether an input's type, values and range have nothing wrong."""
    return has_type(one, TYPES) and not [*of_values("", one), *of_range("", one)]


def possible(one: Mapping[str, Any], value: Any) -> bool:
    """Tell whether an input of a known type, with sound values and range, can have this value."""
    match one["type"]:
        case "string":
            return isinstance(value, str)
        case "number":
            return in_range(one, value)
        case "select":
            return value in one["values"] and not isinstance(value, bool)
        case "object":
            return isinstance(value, dict)
        case "files":
            return bool(value == [])  # which shows the field to members; what it holds is chosen, never given
        case "directory":
            return bool(value == "")
    return False


def in_range(one: Mapping[str, Any], value: Any) -> bool:
    """Tell whether a number is within the range and on a step from its start."""
    if not is_number(value) or not one.get("min", -math.inf) <= value <= one.get("max", math.inf):
        return False
    steps = (value - one.get("min", 0)) / one["step"] if "step" in one else 0
    return math.isclose(steps, round(steps), rel_tol=1e-9, abs_tol=1e-9)


def pulled(name: str) -> str:
    """Name the image that is pulled for a `dockerImage`: `:latest` is appended, and of two tags the last one counts.

    With a digest the pull fails: `sha256:…:latest` is no valid tag.
    """
    return f"{name}:latest" if "@" in name else f"{untagged(name)}:latest"


def started(name: str) -> str:
    """Name the image that a container is started from for a `dockerImage`: that very one."""
    return name if "@" in name or name != untagged(name) else f"{name}:latest"


def untagged(name: str) -> str:
    """Take the tag off an image's name; a colon before a slash is a registry's port."""
    folder, slash, last = name.rpartition("/")
    return folder + slash + last.partition(":")[0]


def losses(document: Mapping[str, Any]) -> list[str]:
    """Return what the platform would lose or fail at without saying so, of a document that is not refused."""
    computation = document["computation"]
    image, inputs = computation["dockerImage"], computation["input"] if isinstance(computation["input"], dict) else {}
    found = []
    for where in ("computation", "computation.remote"):
        wanted = (computation if where == "computation" else computation.get("remote", computation))["dockerImage"]
        if started(wanted) != pulled(image):
            found.append(f"{where}.dockerImage {wanted} is not what is pulled for {image}: {pulled(image)}")
    inputs = {name: one for name, one in inputs.items() if isinstance(one, dict) and sound(one)}
    for name, one in inputs.items():
        lost = [*lost_of_anybody(name, one), *(lost_of_member if is_members(one) else lost_of_owner)(one)]
        found += [f"input {name}: {sentence}" for sentence in lost]
    members = [one for one in inputs.values() if is_members(one)]
    if {"directory", "files"} <= {one["type"] for one in members}:
        found.append("a member's directory beside files: what lies outside of it is not linked")
    return found


def is_members(one: Mapping[str, Any]) -> bool:
    """Tell whether each member fills it in: whatever is not the owner's."""
    return one.get("source") != "owner"


def lost_of_anybody(name: str, one: Mapping[str, Any]) -> Iterator[str]:
    """Check what breaks or deceives whoever fills in a form."""
    if name == "fromCache":
        yield "an input of this name is deleted when the owner types anything"
    if one["type"] == "files" and not one.get("items"):
        yield "without `items` the form breaks when a row is added"
    extensions = one.get("extensions", [])
    if not all(isinstance(ending, str) and not ending.startswith(".") for ending in extensions):
        yield f"the file dialog cannot read the extensions {extensions}, they must be a list of endings without dots"


def lost_of_member(one: Mapping[str, Any]) -> Iterator[str]:
    """Check what a member does not see, or gives in vain."""
    kind = one["type"]
    if kind not in MEMBER_TYPES:
        yield f"of what a member gives in a field of type {kind} nothing arrives"
    elif "default" not in one:
        yield "without a default members do not see it until the owner has clicked or typed there"
    if kind == "number":
        parts = [key for key in (*RANGE, "default") if is_number(one.get(key)) and one[key] % 1]
        if parts:
            yield f"a member's number is cut to a whole one: `{parts[0]}` is {one[parts[0]]}"
    if "conditional" in one:
        yield "`conditional` hides it from the owner alone, every member must fill it"


def lost_of_owner(one: Mapping[str, Any]) -> Iterator[str]:
    """Check what the owner cannot give, or what arrives in another shape."""
    if one["type"] in ("files", "directory"):
        yield f"nobody can pick anything in an owner's {one['type']}"
    if one["type"] == "select" and not all(one["values"]):
        yield "the choice 0 sends nothing"
