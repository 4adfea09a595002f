"""What the platform loses of a compspec that it takes: images that are not pulled, values that do not arrive."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from tests.coinstac.compspec_rules import MEMBER_TYPES, RANGE, is_number, possible, sound


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
    folders = [one for one in members if one["type"] == "directory"]
    if folders and any(one["type"] in ("csv", "files") for one in members):
        found.append("a member's directory beside files: what lies outside of it is not linked")
    if len(folders) > 1 and not all("default" in one for one in folders):
        found.append("of several directories without a default members see one")
    return found


def is_members(one: Mapping[str, Any]) -> bool:
    """Tell whether each member fills it in: whatever is not the owner's."""
    return one.get("source") != "owner"


def lost_of_anybody(name: str, one: Mapping[str, Any]) -> Iterator[str]:
    """Check what breaks or deceives whoever fills in a form."""
    if name == "fromCache":
        yield "an input of this name is deleted when the owner types anything"
    if one["type"] in ("csv", "files", "freesurfer") and not one.get("items"):
        yield "without `items` the form breaks when a row is added"
    extensions = one.get("extensions", [])
    if not all(isinstance(ending, str) and not ending.startswith(".") for ending in extensions):
        yield f"the file dialog cannot read the extensions {extensions}, they must be a list of endings without dots"


def lost_of_member(one: Mapping[str, Any]) -> Iterator[str]:
    """Check what a member does not see, or gives in vain."""
    kind = one["type"]
    if kind not in MEMBER_TYPES:
        yield f"members do not see a {kind}" + (", and as it has a default none can save" if "default" in one else "")
    elif kind != "directory" and "default" not in one:
        yield "without a default members do not see it until the owner has clicked or typed there"
    if kind == "string":
        yield "what a member types into a string is lost, its default arrives"
    if kind == "object":
        yield "a member cannot edit an object, its default arrives"
    if kind == "number":
        parts = [key for key in (*RANGE, "default") if is_number(one.get(key)) and one[key] % 1]
        if parts:
            yield f"a member's number is cut to a whole one: `{parts[0]}` is {one[parts[0]]}"
    if "conditional" in one:
        yield "`conditional` hides it from the owner alone, every member must fill it"


def lost_of_owner(one: Mapping[str, Any]) -> Iterator[str]:
    """Check what the owner cannot give, or what arrives in another shape."""
    kind = one["type"]
    if kind in ("csv", "files", "directory"):
        yield f"nobody can pick anything in an owner's {kind}"
    if kind == "radio":
        yield "whatever the owner chooses, true arrives"
    if kind == "array":
        yield "what the owner chooses arrives as a list within the list"
    if kind == "users" and one.get("multi"):
        yield "several users arrive as nothing"
    if kind in ("set", "matrix") and "default" not in one:
        yield "without a default there is nothing to type into"
    nothing = one.get("values", []) if kind == "select" else [0] if kind == "range" and possible(one, 0) else []
    for choice in nothing:
        if not choice:
            yield f"the choice {choice!r} sends nothing"
