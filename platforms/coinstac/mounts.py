"""Files in a node's mounts: a member's files, and the state of earlier runs."""

from __future__ import annotations

import re
import shutil
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

from pydantic import Field

from rankdad.common.documents import Part, load_json, validate
from rankdad.common.errors import PolicyError, UserError
from rankdad.common.files import is_within
from rankdad.common.policy import Policy
from rankdad.common.privacy.parts import Secret
from rankdad.common.sites import SiteName
from rankdad.common.spec import RESERVED
from rankdad.common.spec.patterns import is_pattern
from rankdad.platforms.coinstac.advice import data_problem, policy_problem
from rankdad.platforms.coinstac.fields import FIELDS, FILES, FOLDER, NEW, TABLE_FILES
from rankdad.platforms.coinstac.form import FormField, Problem
from rankdad.platforms.coinstac.inputs import Filled

SITE_FILE = "site.json"
SITE_FILES = (SITE_FILE, "local_parameters.json")  # NeuroFLAME's name for it
MODEL, SAFETENSORS = "model.json", ".safetensors"  # of a trained model
MAX_FILE_NAME = 100  # characters
PATIENCE, PAUSE = 10.0, 0.5  # seconds to wait for the app to link a folder's files
LIMITS = ("min_rows", "max_rank")


class SiteFile(Part):
    """A member's own JSON file."""

    name: SiteName | None = None
    """Name of the site in results; null is the member's id on the platform."""
    policy: Policy | None = None
    """Policy of the site; null is the form's."""
    secret: Annotated[str, Field(pattern="^[0-9a-f]{64}$")] | None = Field(default=None, repr=False)
    """Secret of the site, 64 hexadecimal digits, for folds and batches; null derives one from all files."""


@dataclass(frozen=True)
class Member:
    """A member and its data.

    Args:
        name: the site's.
        policy: the site's.
        data: the table, or the folder of a whole specification's files; None if unknown.
        field: the form's field for its files.
        model: folder of the initial model; None for random weights.
        secret: the site's, for folds and batches; None derives one from the bytes of all files.
    """

    name: str
    policy: Policy
    data: Path | None
    field: FormField
    model: Path | None = None
    secret: Secret | None = None

    def refused(self, error: UserError, filled: Filled) -> Problem:
        """Convert an error of the data or the policy to a problem of the form."""
        if not filled.whole:
            if isinstance(error, PolicyError):
                return policy_problem(error, self.policy, filled.values)
            return data_problem(error, self.field, filled.values)
        said = error.public_message
        for variable in LIMITS:
            if f"({variable})" in str(error):
                said = said.removeprefix(f"{error.field}: ")
                return FIELDS[variable].problem(said, str(error), code=error.code)
        return self.field.problem(said, str(error), code=error.code)


def find_member(filled: Filled, inputs: Mapping[str, Any], base: Path, client: str) -> tuple[Member, list[Problem]]:
    """Find a member's files, and problems with its choice.

    Args:
        filled: the form.
        inputs: the member's inputs by variable.
        base: folder of the member's files.
        client: the member's id on the platform.
    """
    field = FOLDER if inputs.get(FOLDER.variable) and not inputs.get(FILES.variable) else FILES
    files, problems = _in_folder(base) if field is FOLDER else _chosen(inputs.get(FILES.variable), base)
    site, data, model = SiteFile(), None, None
    if filled.start != NEW:
        files, model, wrong = _without_model(files, field)
        problems += wrong
    try:
        site = _site_file(files, field) or site
    except UserError as error:
        problems.append(field.problem("the JSON file of this site has a wrong field", str(error), code=error.code))
    name = site.name or name_of(client)
    if name in RESERVED:
        problems.append(field.problem(f"the name {name} in this site's JSON file is reserved: choose another"))
    if not problems and not (filled.whole and filled.problems):
        try:
            data = _data(filled, files, base)
        except UserError as error:
            chosen = f"{error}; chosen: {', '.join(file.name for file in files) or 'no file'}"
            problems.append(field.problem(error.public_message, chosen, code=error.code))
    limits = {limit: filled.values[limit] for limit in LIMITS}
    begins = () if model is None else None  # choosing a model's files permits it
    secret = None if site.secret is None else Secret(bytes.fromhex(site.secret))
    return Member(name, site.policy or Policy(**limits, pretrained=begins), data, field, model, secret), problems


def _without_model(files: Sequence[Path], field: FormField) -> tuple[list[Path], Path | None, list[Problem]]:
    """Separate the files of a trained model; return other files, the model's folder, and problems."""
    folders = {file.parent for file in files if file.name == MODEL}
    others = [file for file in files if file.name != MODEL and file.suffix != SAFETENSORS]
    if len(folders) == 1:
        return others, folders.pop(), []
    said = f"expected one trained model: {MODEL}, best.safetensors and preparation.safetensors of an earlier run"
    return others, None, [field.problem(said, f"got {len(folders)}", code="model-missing")]


def _chosen(given: Any, base: Path) -> tuple[list[Path], list[Problem]]:
    """Return the files with the names in a form, and problems."""
    listed = given if isinstance(given, list) else [] if given in (None, "") else [given]
    names = [name for one in listed for name in (one if isinstance(one, list) else [one])]
    problems = [] if names else [FILES.problem("got no file, expected your table as CSV")]
    files = []
    for name in names:
        if not isinstance(name, str) or Path(name).name != name or not name.isprintable() or len(name) > MAX_FILE_NAME:
            problems.append(FILES.problem("contains an invalid file name"))
        elif not is_within(base / name, base):
            problems.append(FILES.problem("a chosen file is outside of the platform's folder", name))
        elif not (base / name).is_file():
            problems.append(FILES.problem("a chosen file is not in the platform's folder", name))
        else:
            files.append(base / name)
    return files, problems


def _in_folder(base: Path) -> tuple[list[Path], list[Problem]]:
    """Return all files of a folder after the platform has linked them."""
    until = time.monotonic() + PATIENCE
    before, files = None, list[Path]()
    while (not files or files != before) and time.monotonic() < until:
        if before is not None:
            time.sleep(PAUSE)
        before, files = files, sorted(path for path in base.rglob("*") if path.is_file() and is_within(path, base))
    return files, [] if files else [FOLDER.problem("has no files, expected the folder of your data")]


def _site_file(files: Sequence[Path], field: FormField) -> SiteFile | None:
    """Return what a member's own JSON file says: of chosen files the only one, of a folder the one of `SITE_FILES`.

    Raises:
        UserError: it is invalid, or there are several.
    """
    candidates = [file for file in files if file.suffix.lower() == ".json"]
    if field is FOLDER or len(candidates) > 1:
        candidates = [file for file in candidates if file.name.lower() in SITE_FILES]
    if len(candidates) > 1:
        raise UserError(
            f"{len(candidates)} files are called {' or '.join(SITE_FILES)}, expected one", code="files-several"
        )
    return validate(SiteFile, load_json(candidates[0]), file=candidates[0].name) if candidates else None


def name_of(client: str) -> str:
    """Convert a member's id on the platform to a site's name."""
    return re.sub(r"[^a-z0-9._-]+", "-", client.lower()).strip("._-")[:63] or "site"


def _data(filled: Filled, files: Sequence[Path], base: Path) -> Path:
    """Find a member's data: a table, or the folder of a specification's files.

    Raises:
        UserError: names the expected files.
    """
    if not filled.whole:
        return _only([file for file in files if file.suffix.lower().lstrip(".") in TABLE_FILES], "table", "tables")
    data = filled.draft["data"]
    reader = data.get("reader", "npz")
    name = data.get("covariates" if reader == "freesurfer" else "file", "data.npz" if reader == "npz" else ".")
    if not isinstance(name, str) or name == "." or is_pattern(name):
        return base
    places = sorted({file.parent for file in files if file.name == name})
    if places:
        return _only(places, f"file called {name}", f"files called {name}")
    if data.get("covariates") and reader == "csv":
        raise UserError(f"got no file called {name}, which the specification names", code="file-missing")
    similar = [file for file in files if file.suffix.lower() == Path(name).suffix.lower()]
    return _only(similar, f"file such as {name}", f"files such as {name}")


def _only(paths: Sequence[Path], one: str, several: str) -> Path:
    if len(paths) != 1:
        if not paths:
            raise UserError(f"got no {one}, expected one", code="file-missing")
        raise UserError(f"got {len(paths)} {several}, expected one", code="files-several")
    return paths[0]


def clear(folder: Path, *names: str) -> None:
    """Remove files and folders of an earlier run from a node's output folder.

    Raises:
        UserError: something cannot be removed.
    """
    try:
        for path in (folder / name for name in names):
            if path.is_dir():
                shutil.rmtree(path)
            else:
                path.unlink(missing_ok=True)
    except OSError as error:
        raise UserError(
            f"{folder}: has an earlier run that cannot be removed: {error.strerror}", code="cannot-write"
        ) from None
