"""The form as one JSON object, for a platform that draws none: the owner writes the object, members their own files."""

from __future__ import annotations

import tempfile
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from rankdad.common.documents import parse_json
from rankdad.common.errors import UserError
from rankdad.platforms.coinstac.fields import FIELDS, FOLDER, OWNER
from rankdad.platforms.coinstac.inputs import read
from rankdad.platforms.coinstac.outputs import KEY, NodeState
from rankdad.platforms.coinstac.site_node import SiteNode


def default_parameters() -> dict[str, Any]:
    """Return what the owner's fields mean that nobody has written."""
    return {field.variable: field.default for field in OWNER}


def parsed(parameters: object) -> dict[str, Any]:
    """Return the owner's object, which may be JSON.

    Raises:
        UserError: with all that is wrong, as far as that needs no data.
    """
    with suppress(ValueError):
        parameters = parse_json(parameters) if isinstance(parameters, str) else parameters
    inputs = inputs_of(parameters)
    del inputs[FOLDER.variable]
    return inputs


def inputs_of(parameters: object) -> dict[str, Any]:
    """Return a member's inputs: what the owner has written, and the folder of the member's data.

    Raises:
        UserError: with all that is wrong, as far as that needs no data.
    """
    if not isinstance(parameters, Mapping):
        raise UserError("parameters: expected a JSON object", code="parameters-refused", field="parameters")
    own = [name for name in parameters if name in FIELDS and FIELDS[name].source == "member"]
    wrong = [f"{name}: belongs to each member, not to the parameters of all" for name in own]
    given = {name: value for name, value in parameters.items() if name not in own}
    wrong += [problem.text for problem in read(given).problems]
    if wrong:
        raise UserError("; ".join(wrong), code="parameters-refused", field="parameters")
    return given | {FOLDER.variable: "data"}


def check_data(inputs: Mapping[str, Any], name: str, data: Path) -> None:
    """Look at a member's data as a run would, print all that is wrong, and keep nothing.

    Args:
        inputs: of the member.
        name: what others call the member.
        data: folder of the member's files.

    Raises:
        UserError: something is wrong.
    """
    with tempfile.TemporaryDirectory() as folder:
        state = NodeState(baseDirectory=str(data), outputDirectory=folder, clientId=name)
        said = SiteNode().advance(inputs, state).output[KEY]
    if said["stage"] != "joined" or said["problems"]:
        raise UserError("the data cannot be used: the lines above say why", code="data-refused")
    print("the data can be used")
