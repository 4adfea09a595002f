"""Files that a platform mounts under names of its own, laid out as the spec names them."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from common.errors import UserError
from common.spec import RunSpec


def lay_out(spec: RunSpec, values: Mapping[str, Any], mounted: Path, folder: Path) -> None:
    """Make a folder with a member's data files, under the names that the spec has for them.

    Args:
        spec: the run.
        values: of the member's form, by variable.
        mounted: folder in which the platform shows the member's files.
        folder: to be made; the files themselves are linked.

    Raises:
        UserError: a file is not there, or there are more than the run uses.
    """
    folder.mkdir(parents=True, exist_ok=True, mode=0o700)
    name = one_file(values.get("data_file"), "data_file")
    _link(mounted, name, folder / spec.data.file)


def one_file(given: Any, variable: str) -> str:
    """Return the one file name that an input of files holds.

    Raises:
        UserError: it holds none, or several.
    """
    while isinstance(given, list | tuple) and len(given) == 1:
        given = given[0]
    if not isinstance(given, str) or not given:
        count = f"{len(given)} files" if isinstance(given, list | tuple) and given else "no file"
        raise UserError(f"{variable}: got {count}, expected one")
    return given


def _link(mounted: Path, name: str, link: Path) -> None:
    source = (mounted / name).resolve()
    if not source.is_relative_to(mounted.resolve()):
        raise UserError(f"{name}: leads out of the folder that the platform shows")
    if not source.is_file():
        raise UserError(f"{name}: is not among the files that the platform shows in {mounted}")
    link.unlink(missing_ok=True)
    link.symlink_to(source)
