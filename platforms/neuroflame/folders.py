"""What lies where in a container of NeuroFLAME's."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

from rankdad.common.documents import load_json

ENVIRONMENT = "RANKDAD_WORKSPACE"  # names the folder below which all mounts lie
PARAMETERS = "parameters.json"  # in a run kit
NAMES = "site_id_name_map"  # a parameter: what members are called, by their id
CLIENT = "member-"  # before a member's id, its client's name: NVFlare takes one of digits alone for a number
ERROR = "error.txt"  # of a node: why the run has ended


def workspace() -> Path:
    """Return the folder below which all mounts lie."""
    return Path(os.environ.get(ENVIRONMENT, "/workspace"))


def central(root: Path) -> Path:
    """Return where the aggregator's files lie: nothing else is mounted there."""
    return root / "runKit" / "rankdad"


def site_inputs(root: Path, client: str) -> tuple[dict[str, Any], str]:
    """Return a member's inputs, and what the consortium calls the member.

    Args:
        root: below which the mounts lie.
        client: the member's name as NVFlare has checked it.

    Raises:
        UserError: the kit's parameters cannot be used.
    """
    from rankdad.platforms.coinstac.parameters import inputs_of

    parameters, id_ = load_json(root / "runKit" / PARAMETERS), client.removeprefix(CLIENT)
    names = parameters.pop(NAMES, {}) if isinstance(parameters, dict) else {}
    return inputs_of(parameters), str(names.get(id_, id_))
