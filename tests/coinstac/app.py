"""The platform's own path: an upload, an owner's form, a member's form, and the files of a site's container.

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

from tests.coinstac.compspec_rules import MEMBER_TYPES, losses, problems, refused
from tests.coinstac.member_form import MEMBER, Asked, Picked, unlinked
from tests.coinstac.owner_form import Map, defaults, hidden, type_as_owner
from tests.coinstac.typed import NOTHING, AppError, Input, as_sent


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

    def consortium(self, typed: Mapping[str, Any] | None = None) -> Form:
        """Return the form as the owner saves it.

        Args:
            typed: What is typed and chosen, in order.

        Raises:
            AppError: A field is unknown or not shown, or what is typed into it is lost.
        """
        filled = defaults(self.inputs)
        for name, value in (typed or {}).items():
            if name not in self.inputs:
                raise AppError(f"the compspec has no input {name}")
            if why := hidden(self.inputs[name], filled):
                raise AppError(f"{name} is not shown to the owner: {why}")
            type_as_owner(name, self.inputs[name], value, filled)
        return Form(self.inputs, filled)


@dataclass(frozen=True)
class Form:
    """A consortium's form; `filled` is what its owner saved."""

    inputs: Mapping[str, Input]
    filled: Map

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
            given: By variable: text or a number as it is typed, `Tick.USE_DEFAULT`, one or several paths of the
                member's own files, or a folder.
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
                values[name] = MEMBER[one["type"]](Asked(name, one, given[name]), picked)
            except AppError as error:
                raise AppError(f"{name}: {error}") from error
        inputs = {name: as_sent(value) for name, value in values.items() if value is not NOTHING}
        return Mapped(inputs, picked, (*picked.lost, *unlinked(picked)))


@dataclass(frozen=True)
class Mapped:
    """What is saved for a member: the inputs of the container, the files, and what was lost on the way."""

    inputs: dict[str, Any]
    picked: Picked
    lost: tuple[str, ...]

    @property
    def inputspec(self) -> dict[str, dict[str, Any]]:
        """The inputs as `tests.coinstac.platform.Platform` takes them."""
        return {name: {"value": value} for name, value in self.inputs.items()}

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
                if not self.picked.folders:  # whose files come late, which nobody waits for
                    code, said = errno.errorcode[error.errno or 0], os.strerror(error.errno or 0).lower()
                    raise AppError(f"{code}: {said}, link '{source}' -> '{base / name}'") from error
