"""Which versions of rankdad may run together; checked by the site before it reads the spec, and in hello.

A version is MAJOR.MINOR.PATCH. Two versions run together if they have the same wire and the same MAJOR, and if their
MINOR differs by at most one.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from rankdad.common import __version__
from rankdad.common.errors import UserError, visible

WIRE = 1
"""Number of the format of messages, plan and spec, and of computations from an update; see CONTRIBUTING.md."""
OUR_VERSION: dict[str, Any] = {"version": __version__, "wire": WIRE}
_NUMBERS = re.compile(r"([0-9]{1,6})\.([0-9]{1,6})(?:\.[0-9]{1,6})?(?:[.+-]?[a-z][a-z0-9.+-]*)?", re.ASCII)


def run_together(version: object, wire: object) -> bool:
    """Return whether a process with this version and wire may run with this one."""
    if type(wire) is not int or wire != WIRE:
        return False
    own, other = _NUMBERS.fullmatch(__version__), _NUMBERS.fullmatch(version) if isinstance(version, str) else None
    return bool(own and other and own[1] == other[1] and abs(int(own[2]) - int(other[2])) <= 1)


def check_versions(who: str, said: Mapping[str, object], here: str) -> None:
    """Check that another process may run with this one.

    Args:
        who: name of the other process.
        said: its `version` and `wire`, unchecked.
        here: name of this process.

    Raises:
        UserError: it may not.
    """
    version, wire = said.get("version"), said.get("wire")
    if not run_together(version, wire):
        raise UserError(
            f"version: {who} is rankdad {visible(str(version), 63)} (wire {visible(str(wire), 20)}), {here} "
            f"{__version__} (wire {WIRE}): install one version, or two of one wire that are at most one minor version "
            "apart",
            code="version-differs",
            field="version",
        )
