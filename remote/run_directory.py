"""The files of a run's directory, each written completely or not at all."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path

from rankdad.common.documents import load_json
from rankdad.common.errors import UserError, visible
from rankdad.common.files import make_folder, owned
from rankdad.common.spec.tree import TOP

PLAN = "plan.json"


def new_directory(directory: Path) -> None:
    """Create a run's directory, or reuse that of a refused run.

    Raises:
        UserError: it cannot be created, or already has a run.
    """
    run, summary = directory / "run.json", directory / "summary.json"
    if run.exists():
        if not _was_refused(summary):
            raise UserError(
                f"{directory}: already has a run; choose another --output or remove it",
                code="directory-holds-a-run",
                field="--output",
                file=directory,
            )
        for path in (run, summary):
            path.unlink()
    make_folder(directory)


def _was_refused(path: Path) -> bool:
    try:
        summary = load_json(path)
    except UserError:
        return False
    return isinstance(summary, dict) and summary.get("status") == "refused"


@contextlib.contextmanager
def own_directory(directory: Path, name: str, *, new: bool) -> Iterator[None]:
    """Reserve a run's directory for this process within a `with`.

    Args:
        directory: the run's.
        name: the aggregator's.
        new: whether the run is new.

    Raises:
        UserError: see `new_directory` and `owned`.
    """
    if new:
        new_directory(directory)
    with owned(directory, name, "--output"):
        if new:
            new_directory(directory)  # checks again under the lock
        yield


def owner_of(directory: Path) -> str | None:
    """Return the owner of a run's directory: a region or the top aggregator; None if unknown.

    Raises:
        UserError: its plan.json cannot be read.
    """
    path = directory / PLAN
    document = load_json(path) if path.exists() else None
    owner = document.get("aggregator") if isinstance(document, dict) else None
    return None if owner is None else visible(str(owner), 64)


def check_owner(directory: Path, name: str) -> None:
    """Check that a run's directory belongs to this aggregator.

    Raises:
        UserError: it belongs to another one.
    """
    if (owner := owner_of(directory)) not in (None, name):
        there, here = (f"region {one}" if one != TOP else "the top aggregator" for one in (owner, name))
        raise UserError(
            f"--output: {directory} is the directory of {there}, and this is {here}: choose its own",
            code="directory-of-another",
            field="--output",
        )
