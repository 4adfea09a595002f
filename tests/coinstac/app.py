"""The platform's own path: an upload, an owner's form, a member's form, and what a site's container is started with.

Every rule is what the platform does, faults included. What it refuses, does not show or fails at is an `AppError`; what
it drops without a word is told by `Mapped.lost`.
"""

from __future__ import annotations

import copy
import csv
import errno
import json
import os
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum
from pathlib import Path
from typing import Any

from tests.coinstac.compspec_rules import (
    MEMBER_TYPES,
    TYPES,
    is_members,
    losses,
    problems,
    pulled,
    refused,
    started,
)

Input = Mapping[str, Any]  # a compspec's description of one input
Map = dict[str, dict[str, Any]]  # by variable: `fulfilled`, and `value` if there is one
RUN = "65f0c0ffee0000000000cafe"
ROWS = ("csv", "files", "freesurfer")  # what the owner adds rows to, a field of either source
NOTHING: Any = object()  # what an emptied field sends


class AppError(Exception):
    """What the platform refuses, does not show or fails at, or what nobody can do in its form."""


class Tick(Enum):
    """The box below a member's field."""

    USE_DEFAULT = "Use Default"


class App:
    """The platform with one computation.

    Args:
        compspec: The document that is uploaded.

    Raises:
        AppError: The upload refuses it.
    """

    def __init__(self, compspec: Any) -> None:
        if reasons := refused(compspec):
            raise AppError(f"the upload refuses it: {'; '.join(reasons)}")
        self.compspec = copy.deepcopy(compspec)
        self.inputs: dict[str, Input] = self.compspec["computation"]["input"]

    def problems(self) -> list[str]:
        """Return all that is wrong with the compspec, and all that its form would lose."""
        return [*problems(self.compspec), *losses(self.compspec)]

    def image(self, mode: str = "local") -> str:
        """Return the image that a node's container is started from; only `computation.dockerImage` is ever pulled.

        Raises:
            AppError: It is not the one that was pulled.
        """
        computation = self.compspec["computation"]
        there = pulled(computation["dockerImage"])
        wanted = started((computation["remote"] if mode == "remote" else computation)["dockerImage"])
        if wanted != there:
            raise AppError(f"No such image: {wanted}; what is pulled for {computation['dockerImage']} is {there}")
        return wanted

    def consortium(self, typed: Mapping[str, Any] | None = None, owner: str | None = "owner") -> Form:
        """Return the form as the owner saves it.

        Args:
            typed: What is typed and chosen, in order. Of csv the columns as (name, type), of files the data types
                to add, of freesurfer the regions, of an array one choice, of set and matrix text by place.
            owner: The owner's id; None leaves it out of the state.

        Raises:
            AppError: A field is unknown or not shown, or what is typed into it is lost.
        """
        filled = defaults(self.inputs)
        draw_directories(self.inputs, filled)
        for name, value in (typed or {}).items():
            if name not in self.inputs:
                raise AppError(f"the compspec has no input {name}")
            if why := hidden(self.inputs[name], filled):
                raise AppError(f"{name} is not shown to the owner: {why}")
            type_as_owner(name, self.inputs[name], value, filled)
        return Form(self.inputs, filled, owner)


@dataclass(frozen=True)
class Form:
    """A consortium's form; `filled` is what its owner saved."""

    inputs: Mapping[str, Input]
    filled: Map
    owner: str | None

    def required(self) -> list[str]:
        """Name what a member has to give: all that the form holds and the owner cannot fulfil, seen or not."""
        return [name for name, entry in self.filled.items() if not entry["fulfilled"]]

    def shown(self) -> list[str]:
        """Name what members see; `conditional` hides nothing from them."""
        return [name for name in self.required() if self.inputs[name]["type"] in MEMBER_TYPES]

    def member(self, client_id: str, given: Mapping[str, Any] | None = None, *, all_files: bool = False) -> Mapped:
        """Return what is saved for a member.

        Args:
            client_id: The member's.
            given: By variable: text or a number as it is typed, a boolean, `Tick.USE_DEFAULT`, one or several
                paths of the member's own files, or a folder.
            all_files: The file dialog shows all files, no longer only those of the field's `extensions`.

        Raises:
            AppError: A field is not shown, a value is missing, or the form breaks.
        """
        given = given or {}
        if unseen := [name for name in given if name not in self.shown()]:
            raise AppError(f"members do not see {', '.join(unseen)}, they see {', '.join(self.shown()) or 'nothing'}")
        for name in self.required():
            if name not in given:
                why = "" if name in self.shown() else f": a {self.inputs[name]['type']}, which members do not see"
                raise AppError(f"Please set value for {name}{why}")
        values = {name: entry.get("value", NOTHING) for name, entry in self.filled.items()}
        picked = Picked(all_files)
        for name in self.required():
            one = self.inputs[name]
            try:
                values[name] = MEMBER[one["type"]](Asked(name, one, values[name], given[name]), picked)
            except AppError as error:
                raise AppError(f"{name}: {error}") from error
        inputs = {name: as_sent(value) for name, value in values.items() if value is not NOTHING}
        return Mapped(client_id, self.owner, inputs, picked, (*picked.lost, *unlinked(picked)))


@dataclass(frozen=True)
class Mapped:
    """What is saved for a member: the inputs of the container, the files, and what was lost on the way."""

    client_id: str
    owner: str | None
    inputs: dict[str, Any]
    picked: Picked
    lost: tuple[str, ...]

    @property
    def inputspec(self) -> dict[str, dict[str, Any]]:
        """The inputs as `tests.coinstac.platform.Platform` takes them."""
        return {name: {"value": value} for name, value in self.inputs.items()}

    @property
    def late(self) -> float:
        """Seconds by which the files of a directory come after the run's start, which does not wait for them."""
        return 1.0 if self.picked.folders else 0.0

    def link(self, base: Path) -> None:
        """Hard-link the member's files below a base directory: a link stays one, of two with one name the first stays.

        Raises:
            AppError: A file is not there or on another file system, and no directory was chosen: then nobody is told.
        """
        for folder in self.picked.made():
            (base / folder).mkdir(parents=True, exist_ok=True)
        for source, name in self.picked.links():
            try:
                os.link(source, base / name, follow_symlinks=False)
            except FileExistsError:
                continue
            except OSError as error:
                if not self.late:
                    code, said = errno.errorcode[error.errno or 0], os.strerror(error.errno or 0).lower()
                    raise AppError(f"{code}: {said}, link '{source}' -> '{base / name}'") from error

    def start(self, root: Path, *, uid: int | None = None, run_id: str = RUN, linked: bool = True) -> Started:
        """Make the run's folders, link the files, and return what the first message carries.

        Args:
            root: The app's own folder on the member's machine.
            uid: The user who runs the app; by default the one who runs the test.
            run_id: The run's.
            linked: False leaves the base directory as a computation finds it whose files are `late`.
        """
        own = f"{self.client_id}/{run_id}"
        here = {kind: root / kind / own for kind in ("input", "output", "transfer")}
        for folder in here.values():
            folder.mkdir(parents=True)
            os.chown(folder, -1 if uid is None else uid, -1)
        if linked:
            self.link(here["input"])
        state = {
            "baseDirectory": f"/input/{own}",
            "outputDirectory": f"/output/{own}",
            "cacheDirectory": "/tmp",
            "transferDirectory": f"/transfer/{own}",
            "clientId": self.client_id,
            "iteration": 1,
        }
        owner = {} if self.owner is None else {"owner": self.owner}
        return Started(self.inputs, state | owner, here["input"], here["output"], here["transfer"])


@dataclass(frozen=True)
class Started:
    """A site's first iteration: its inputs, its state as a container sees it, and the folders behind the mounts."""

    inputs: dict[str, Any]
    state: dict[str, Any]
    base: Path
    output: Path
    transfer: Path

    @property
    def state_here(self) -> dict[str, Any]:
        """The state for a computation that runs in no container."""
        here = {"baseDirectory": self.base, "outputDirectory": self.output, "transferDirectory": self.transfer}
        return self.state | {name: str(folder) for name, folder in here.items()}

    def writable_by(self, uid: int) -> bool:
        """Tell whether a container's user may write results: root, or the user whose app made the folder."""
        status = self.output.stat()
        return uid in (0, status.st_uid) or bool(status.st_mode & 0o002)


# The owner's side. A rule takes a field, what is typed into it and the value before, and returns the value after.


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


def same(one: Any, other: Any) -> bool:
    """JavaScript's === of what a form holds."""
    return bool(one == other) and isinstance(one, bool) == isinstance(other, bool)


def offered(choice: Any, choices: Sequence[Any]) -> Any:
    """Only what is offered can be chosen."""
    if not any(same(choice, one) for one in choices):
        raise AppError(f"{choice!r} is not offered")
    return choice


def listed(one: Input) -> Sequence[Any]:
    """A row's menu is made of `items`: without them the whole form breaks."""
    if not one.get("items"):
        raise AppError("the form breaks: there are no `items`")
    return list(one["items"])


def rows(before: Any) -> list[Any]:
    """Rows are added to those of the default."""
    return list(before) if isinstance(before, list) else []


def number_field(typed: Any) -> str:
    """A browser's number field holds text that is a number, or nothing."""
    text = str(typed)
    return text if re.fullmatch(r"-?(\d+|\d*\.\d+)([eE][-+]?\d+)?", text) else ""


def as_sent(value: Any) -> Any:
    """What JSON makes of a value: a whole number loses its point, what is no number becomes null."""
    return json.loads(json.dumps(value), parse_float=lambda text: int(n) if (n := float(text)).is_integer() else n)


# The members' side. A rule takes what was asked and adds what was picked; it returns the value that is saved.


@dataclass(frozen=True)
class Asked:
    """A field, its value in the owner's form, and what the member gives."""

    name: str
    one: Input
    before: Any
    given: Any


@dataclass
class Picked:
    """A member's files of all fields together: `base` is the folder of the last field."""

    all_files: bool
    files: list[str] = field(default_factory=list)
    folders: list[str] = field(default_factory=list)
    base: str = ""
    lost: list[str] = field(default_factory=list)

    def links(self) -> list[tuple[str, str]]:
        """Each file goes below the base directory by its base name; with a directory, by its path in `base`."""
        if self.folders:
            return [(str(Path(file).absolute()), inside(file, self.base)) for file in self.files]
        return [(os.path.normpath(Path(self.base, file)), Path(file).name) for file in self.files]

    def made(self) -> list[str]:
        """A directory's folders are made beforehand; of names in a table, the folders, which stay empty."""
        if self.folders:
            return [inside(folder, self.base) for folder in self.folders[1:]]
        return [str(Path(file).parent) for file in self.files if not Path(file).is_absolute()]


def inside(path: str, base: str) -> str:
    """The base is cut out of a path; a path outside of it stays whole."""
    return path.replace(base, "", 1).lstrip("/")


def unlinked(picked: Picked) -> list[str]:
    """Of two files with one name one is linked; a file is not where no folder was made for it."""
    sources: dict[str, set[str]] = {}
    for source, name in picked.links():
        sources.setdefault(name, set()).add(source)
    lost = [
        f"{name}: {len(files)} files have this name, one is linked" for name, files in sources.items() if len(files) > 1
    ]
    there = {".", *picked.made()}
    far = [name for name in sources if str(Path(name).parent) not in there]
    return lost + [f"/{name} is not linked, it lies outside of {picked.base}" for name in far]


def ticked(asked: Asked) -> Any:
    """The default is saved as it is; below a text field there is no box for a default that is empty or 0."""
    if asked.one["type"] in ("number", "string") and not asked.one.get("default"):
        raise AppError("it has no box Use Default, for its default is empty or 0")
    return asked.one.get("default", NOTHING)


def member_number(asked: Asked, picked: Picked) -> Any:
    """The leading digits are the number, 0.5 is 0 and 1e3 is 1; `min`, `max` and `step` are not looked at."""
    if asked.given is Tick.USE_DEFAULT:
        return ticked(asked)
    text = number_field(asked.given)
    digits = re.match(r"-?\d+", text)
    if digits is None and asked.one.get("required"):
        raise AppError("Please set value")
    value = None if digits is None else int(digits[0])
    if value is None or value != float(text):
        picked.lost.append(f"{asked.name}: {asked.given} arrives as {json.dumps(value)}")
    return value


def member_string(asked: Asked, picked: Picked) -> Any:
    """What is typed is saved under a type that nothing reads: the value of the owner's form arrives."""
    kept = None if asked.before is NOTHING else asked.before
    typed = ticked(asked) if asked.given is Tick.USE_DEFAULT else str(asked.given)
    if asked.one.get("required") and not typed:
        raise AppError("Please set value")
    if typed != kept:
        picked.lost.append(f"{asked.name}: what a member types into a string is lost, {kept!r} arrives")
    return asked.before


def member_boolean(asked: Asked, picked: Picked) -> Any:
    """A switch is on after one click and off after two, whatever it shows."""
    return ticked(asked) if asked.given is Tick.USE_DEFAULT else offered(asked.given, [True, False])


def member_object(asked: Asked, picked: Picked) -> Any:
    """The editor fails at the first key; only its default can be saved."""
    if asked.given is not Tick.USE_DEFAULT:
        raise AppError("the editor fails at the first key, only Use Default works")
    return ticked(asked)


def member_files(asked: Asked, picked: Picked) -> Any:
    """The files' base names arrive, from whichever folders they were picked."""
    files = chosen(asked, picked)
    picked.base = str(Path(files[0]).parent)
    picked.files += files
    return [Path(file).name for file in files]


def member_directory(asked: Asked, picked: Picked) -> Any:
    """The folder's path on the member's machine arrives; its files come along from any depth."""
    folder = Path(asked.given).absolute()
    if not folder.is_dir():
        raise AppError(f"there is no folder {folder}")
    below = sorted(folder.rglob("*"))
    picked.base = str(folder)
    picked.folders += [str(path) for path in (folder, *below) if path.is_dir()]
    picked.files += [str(path) for path in below if not path.is_dir() and ".DS_Store" not in str(path)]
    return str(folder)


def member_csv(asked: Asked, picked: Picked) -> Any:
    """A table's first column names files, which are linked; its other columns are dragged to the owner's variables.

    Rows with equal first cells are one, the last one; a row that has no value of a variable's type is left out.
    """
    files = chosen(asked, picked)
    (header, *lines), columns = read_csv(Path(files[0])), {row["name"]: row["type"] for row in rows(asked.before)}
    dragged = auto_mapped(columns, header[1:])
    if missing := sorted(columns.keys() - dragged):
        raise AppError(f"Missing fields: {', '.join(missing)} of {', '.join(header[1:])}")
    cells = {as_key(line[0]): dict(zip(header[1:], line[1:], strict=False)) for line in lines}
    if len(cells) < len(lines) or files[1:]:
        picked.lost.append(f"{asked.name}: rows kept: {len(cells)} of {len(lines)}, of {Path(files[0]).name} alone")
    picked.base = str(Path(files[0]).parent)
    value = {}
    for file, row in cells.items():
        try:
            value[os.path.normpath(file)] = {name: cast(kind, row.get(dragged[name])) for name, kind in columns.items()}
        except AppError as error:
            picked.lost.append(f"{asked.name}: {file} is left out: {error}")
        else:
            picked.files.append(file)
    return value


MEMBER: dict[str, Callable[[Asked, Picked], Any]] = {
    "number": member_number,
    "string": member_string,
    "boolean": member_boolean,
    "object": member_object,
    "files": member_files,
    "directory": member_directory,
    "csv": member_csv,
}


def chosen(asked: Asked, picked: Picked) -> list[str]:
    """The dialog shows files with one of the `extensions`, and all after a click; a nested list filters nothing."""
    given = asked.given if isinstance(asked.given, list | tuple) else [asked.given]
    files = [str(Path(file).absolute()) for file in given]
    if not files:
        raise AppError('The "path" argument must be of type string: no file is chosen')
    endings = asked.one.get("extensions", [])
    filtered = bool(endings) and not picked.all_files and all(isinstance(ending, str) for ending in endings)
    for file in files:
        if not Path(file).is_file():
            raise AppError(f"there is no file {file}")
        if filtered and not file.lower().endswith(tuple(f".{ending.lower()}" for ending in endings)):
            raise AppError(f"the dialog does not show {Path(file).name}, only {', '.join(endings)}")
    return files


def read_csv(file: Path) -> list[list[Any]]:
    """Cells lose the spaces around them; below the header, true, false and what looks like a number become such."""
    with file.open(newline="", encoding="utf-8-sig") as text:
        header, *lines = [[cell.strip() for cell in line or [""]] for line in csv.reader(text)] or [[""]]
    return [header, *([parsed(cell) for cell in line] for line in lines)]


def parsed(cell: str) -> Any:
    """A cell of a table; 007 becomes 7."""
    if cell in ("true", "false"):
        return cell == "true"
    number = re.fullmatch(r"[-+]?\d+(\.\d*)?([eE]\+\d+)?|\d*\.\d+", cell)
    return as_sent(float(cell)) if number else cell


def as_key(cell: Any) -> str:
    """A cell that names a file."""
    return cell if isinstance(cell, str) else json.dumps(cell)


def auto_mapped(columns: Mapping[str, str], header: Sequence[str]) -> dict[str, str]:
    """Auto Map finds columns by their names; of its guesses at similar ones there is nothing here."""
    return {name: column for name in columns for column in header if column.lower() == name.lower()}


def cast(kind: str, cell: Any) -> Any:
    """A variable's cell; 0 and 1 are no booleans, as they are numbers already, and the empty text is no text."""
    if kind == "number" and (number := re.match(r"[-+]?(\d+\.?\d*|\.\d+)([eE][-+]?\d+)?", as_key(cell))):
        return float(number[0])
    if kind == "boolean" and as_key(cell).lower() in ("true", "false"):
        return as_key(cell).lower() == "true"
    if kind == "string" and cell not in ("", None):
        return as_key(cell)
    raise AppError(f"Could not convert {cell} to a {kind}")
