"""The platform's own path: an upload, an owner's form, a member's form, and what a site's container is started with.

Every rule is what the platform does, faults included. What it refuses, does not show or fails at is an `AppError`; what
it drops without a word is told by `Mapped.lost`.
"""

from __future__ import annotations

import copy
import errno
import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.coinstac.compspec_losses import losses, pulled, started
from tests.coinstac.compspec_rules import MEMBER_TYPES, problems, refused
from tests.coinstac.member_form import MEMBER, Asked, Picked, unlinked
from tests.coinstac.owner_form import Map, defaults, draw_directories, hidden, type_as_owner
from tests.coinstac.typed import NOTHING, AppError, Input, as_sent

RUN = "65f0c0ffee0000000000cafe"


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
