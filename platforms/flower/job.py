"""A job's folder, as `flwr run` takes it: a Flower App whose code is two imports."""

from __future__ import annotations

import json
from pathlib import Path

from rankdad.common.spec import RunSpec
from rankdad.platforms.flower.site import ID, RUN
from rankdad.platforms.jobs import checked, write_files

PACKAGE = "rankdad_job"  # of the job: its parts import what is installed at every node
PARTS = {"serverapp": "server_app", "clientapp": "client_app"}
PROJECT = """\
[project]
name = "run-{number}"
version = "1.0.0"
description = {name}
license = "MIT"
dependencies = []  # rankdad is installed at every node

[tool.flwr.app]
publisher = "rankdad"

[tool.flwr.app.components]
{parts}

[tool.flwr.app.config]
{config}
"""


def write_job(spec: RunSpec, output: Path, *, number: str | None = None) -> str:
    """Write a job, and return the identity of its run: submitted again, the job continues it.

    Args:
        spec: the run.
        output: folder of the job.
        number: identity of the run; drawn without it.

    Raises:
        UserError: the run cannot be had on Flower, or the folder cannot be written.
    """
    number = checked(spec, "a SuperLink", number)
    parts = "\n".join(f'{part} = "{PACKAGE}.{module}:app"' for part, module in PARTS.items())
    config = f"{ID} = {_quoted(number)}\n{RUN} = {_quoted(json.dumps(spec.document()))}"
    project = PROJECT.format(number=number, name=_quoted(spec.name), parts=parts, config=config)
    code = {
        f"{PACKAGE}/{module}.py": f'from rankdad.platforms.flower.{module} import app\n\n__all__ = ["app"]\n'
        for module in PARTS.values()
    }
    write_files(output, {"pyproject.toml": project, f"{PACKAGE}/__init__.py": "", **code})
    return number


def _quoted(text: str) -> str:
    """Return a string of TOML, which is one of JSON with one more character escaped."""
    return json.dumps(text).replace("\x7f", "\\u007f")
