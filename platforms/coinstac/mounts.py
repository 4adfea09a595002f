"""What a member has chosen: its files as the platform shows them, the name and the policy of its site."""

from __future__ import annotations

import re
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rankdad.common.documents import Part, load_json, validate
from rankdad.common.errors import UserError
from rankdad.common.files import is_within
from rankdad.common.patterns import is_pattern
from rankdad.common.policy import Policy
from rankdad.common.spec import RESERVED, SiteName
from rankdad.platforms.coinstac.fields import FIELDS, FILES, FOLDER, TABLE_FILES
from rankdad.platforms.coinstac.form import Field, Problem
from rankdad.platforms.coinstac.inputs import Filled

SITE_FILE = "site.json"
PATIENCE, PAUSE = 10.0, 0.5  # seconds: the app links a folder's files while the run begins


class SiteFile(Part):
    """A member's own JSON file."""

    name: SiteName | None = None
    """What results call the site; null is the member's id on the platform."""
    policy: Policy | None = None
    """What may leave the site; null is what the form says."""


@dataclass(frozen=True)
class Member:
    """A member, and where its data are.

    Args:
        name: of the site.
        policy: of the site.
        data: the table, or the folder of the files that a whole specification names; None if that is not known.
        field: that its files were chosen by.
    """

    name: str
    policy: Policy
    data: Path | None
    field: Field


def find_member(filled: Filled, inputs: Mapping[str, Any], base: Path, client: str) -> tuple[Member, list[Problem]]:
    """Return a member, and what is wrong with its choice of files.

    Args:
        filled: the form.
        inputs: of the member, by variable.
        base: folder in which the platform shows the member's files.
        client: the member's id on the platform.
    """
    field = FOLDER if inputs.get(FOLDER.variable) and not inputs.get(FILES.variable) else FILES
    problems: list[Problem] = []
    files = _in_folder(base, problems) if field is FOLDER else _chosen(inputs.get(FILES.variable), base, problems)
    site = SiteFile()
    try:
        site = _site_file(files, field) or site
    except UserError as error:
        problems.append(field.problem(f"the JSON file of this site: {_public(error)}", str(error)))
    name = site.name or name_of(client)
    if name in RESERVED:
        problems.append(field.problem(f"the JSON file of this site calls it {name}: results use that, choose another"))
    try:
        limits = {name: filled.values[name] for name in ("min_rows", "max_rank") if filled.values[name] is not None}
        policy = site.policy or Policy(**limits)
        data = None if problems or (filled.whole and filled.problems) else _data(filled, files, base)
    except UserError as error:
        problems.append(field.problem(str(error), f"chosen: {', '.join(file.name for file in files) or 'no file'}"))
        data = None
    return Member(name, policy, data, field), problems


def _public(error: UserError) -> str:
    """Return an error of the site's own file without the path and without what stands in it."""
    found = re.search(r"site\.json: ([\w.\[\]]+: is (?:missing|not known here))|is not JSON", str(error))
    return found[0].removeprefix("site.json: ") if found else "has a wrong field"


def _chosen(given: Any, base: Path, problems: list[Problem]) -> list[Path]:
    """Return the files of which a form holds the names."""
    names = given if isinstance(given, list) else [] if given is None or given == "" else [given]
    names = [name for one in names for name in (one if isinstance(one, list) else [one])]
    if not names:
        problems.append(FILES.problem("got no file, expected your table as CSV"))
    files = []
    for name in names:
        if not isinstance(name, str) or Path(name).name != name or not name.isprintable() or len(name) > 100:
            problems.append(FILES.problem("holds something that is no file's name"))
        elif not is_within(base / name, base):
            problems.append(FILES.problem("a chosen file leads out of the folder that the platform shows", name))
        elif not (base / name).is_file():
            said = "a chosen file is not among those that the platform shows"
            problems.append(FILES.problem(said, name))
        else:
            files.append(base / name)
    return files


def _in_folder(base: Path, problems: list[Problem]) -> list[Path]:
    """Return all files of a folder, when the platform has linked them."""
    files: list[Path] = []
    until = time.monotonic() + PATIENCE
    while True:
        before = files
        files = sorted(path for path in base.rglob("*") if path.is_file() and is_within(path, base))
        if (files and files == before) or time.monotonic() > until:
            break
        time.sleep(PAUSE)
    if not files:
        problems.append(FOLDER.problem("has no files, expected the folder of your data"))
    return files


def _site_file(files: Sequence[Path], field: Field) -> SiteFile | None:
    """Return what a member's own JSON file says: of chosen files the only one, of a folder the one called site.json.

    Raises:
        UserError: it is wrong, or there are several.
    """
    found = [file for file in files if file.suffix.lower() == ".json"]
    if field is FOLDER or len(found) > 1:
        found = [file for file in found if file.name.lower() == SITE_FILE]
        if len(found) > 1:
            raise UserError(f"{len(found)} files are called {SITE_FILE}, expected one")
    return validate(SiteFile, load_json(found[0]), file=SITE_FILE) if found else None


def name_of(client: str) -> str:
    """Return a member's id on the platform as a site's name."""
    name = re.sub(r"[^a-z0-9._-]+", "-", client.lower()).strip("._-")[:63]
    return name or "site"


def _data(filled: Filled, files: Sequence[Path], base: Path) -> Path:
    """Return where a member's data are: a table, or the folder of a specification's files.

    Raises:
        UserError: saying what should have been chosen.
    """
    if not filled.whole:
        return _only([file for file in files if file.suffix.lower().lstrip(".") in TABLE_FILES], "table", "tables")
    data = filled.draft["data"]
    name = data.get("covariates" if data.get("reader") == "freesurfer" else "file", _default_file(data))
    if not isinstance(name, str) or name == "." or is_pattern(name):
        return base
    places = sorted({file.parent for file in files if file.name == name})
    if places:
        return _only(places, f"file called {name}", f"files called {name}")
    if data.get("covariates") and data.get("reader") == "csv":
        raise UserError(f"got no file called {name}, which the specification names")
    return _only(
        [file for file in files if file.suffix.lower() == Path(name).suffix.lower()],
        f"file such as {name}",
        f"files such as {name}",
    )


def _default_file(data: Mapping[str, Any]) -> str:
    return "data.npz" if data.get("reader", "npz") == "npz" else "."


def _only(found: Sequence[Path], one: str, several: str) -> Path:
    if len(found) != 1:
        raise UserError(f"got {len(found)} {several}, expected one" if found else f"got no {one}, expected one")
    return found[0]


def refused(error: UserError, member: Member) -> Problem:
    """Return an error about a member's data or policy in the words of the form."""
    said = error.public_message
    for variable in ("min_rows", "max_rank"):
        if f"({variable})" in str(error):
            field = getattr(error, "field", "")
            return FIELDS[variable].problem(said.removeprefix(f"{field}: "), str(error))
    return member.field.problem(said, str(error))
