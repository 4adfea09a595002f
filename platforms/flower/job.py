"""A job's folder, as `flwr run` takes it: a Flower App whose code is two imports."""

from __future__ import annotations

import json
import secrets
from pathlib import Path

from rankdad.common.errors import SpecError, UserError
from rankdad.common.spec import RunSpec
from rankdad.platforms.flower.message import ID, RUN

CODE = "rankdad_job"  # package of the job: its parts import what is installed at every node
PARTS = {"serverapp": "server_app", "clientapp": "client_app"}


def write_job(spec: RunSpec, output: Path, *, number: str | None = None) -> str:
    """Write a job, and return the identity of its run: submitted again, the job continues it.

    Args:
        spec: the run.
        output: folder of the job.
        number: identity of the run; drawn without it.

    Raises:
        UserError: the run cannot be had on Flower, or the folder cannot be written.
    """
    if spec.federation.regions:
        said = "a SuperLink has no regions below it: leave them out"
        raise SpecError("federation.regions", said, code="regions-unsupported")
    if getattr(spec.data, "patterns", ()):
        said = "has patterns: `rankdad resolve` replaces them by the columns that all sites have"
        raise SpecError("data.features", said, code="pattern-unresolved")
    if output.exists() and (not output.is_dir() or any(output.iterdir())):
        raise UserError(
            f"--output: {output} is there already: choose another folder, or remove it",
            code="output-exists",
            field="--output",
        )
    number = number or secrets.token_hex(8)
    code = output / CODE
    try:
        code.mkdir(parents=True)
        (output / "pyproject.toml").write_text(_project(spec, number), encoding="utf-8")
        (code / "__init__.py").write_text('"""What Flower starts of rankdad."""\n', encoding="utf-8")
        for module in PARTS.values():
            line = f'from rankdad.platforms.flower.{module} import app\n\n__all__ = ["app"]\n'
            (code / f"{module}.py").write_text(line, encoding="utf-8")
    except OSError as error:
        raise UserError(
            f"--output: {output} cannot be written: {error.strerror}", code="cannot-write", field="--output"
        ) from None
    return number


def _project(spec: RunSpec, number: str) -> str:
    words = {ID: number, RUN: json.dumps(spec.document())}
    return "\n".join(
        (
            "[project]",
            f'name = "run-{number}"',
            'version = "1.0.0"',
            f"description = {_quoted(spec.name)}",
            'license = "MIT"',
            "dependencies = []  # rankdad is installed at every node",
            "",
            "[tool.flwr.app]",
            'publisher = "rankdad"',
            "",
            "[tool.flwr.app.components]",
            *(f'{part} = "{CODE}.{module}:app"' for part, module in PARTS.items()),
            "",
            "[tool.flwr.app.config]",
            *(f"{key} = {_quoted(value)}" for key, value in words.items()),
            "",
        )
    )


def _quoted(text: str) -> str:
    """Return a string of TOML, which is one of JSON with one more character escaped."""
    return json.dumps(text).replace("\x7f", "\\u007f")
