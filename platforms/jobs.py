"""What engines have in common: jobs, and settings of nodes."""

from __future__ import annotations

import secrets
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Protocol

from rankdad.common.errors import SpecError, UserError
from rankdad.common.files import cannot_write
from rankdad.common.spec import RunSpec


class SiteCalls(Protocol):
    """A site whose calls an engine carries: see `local.drivers.carried.Carried`."""

    reason: str

    def advance(self, reply: bytes, stops: Callable[[], bool]) -> bytes | None:
        """Hand in a reply, and return the next call; None if the engine ends the site."""

    def stop(self) -> None:
        """End the site."""


class SettingsError(UserError):
    """A node's settings are missing, or another node's: others may hear which."""

    is_public = True


def checked(spec: RunSpec, server: str, number: str | None) -> str:
    """Return the identity of a job's run, drawn if none is given.

    Args:
        spec: the run.
        server: of the engine, in words.
        number: the identity.

    Raises:
        SpecError: the run cannot be had on an engine.
    """
    if spec.federation.regions:
        said = f"{server} has no regions below it: leave them out"
        raise SpecError("federation.regions", said, code="regions-unsupported")
    if getattr(spec.data, "patterns", ()):
        said = "has patterns: `rankdad resolve` replaces them by the columns that all sites have"
        raise SpecError("data.features", said, code="pattern-unresolved")
    return number or secrets.token_hex(8)


def write_files(output: Path, files: Mapping[str, str]) -> None:
    """Write a job's files into a folder that is empty or not there.

    Raises:
        UserError: it is not, or cannot be written.
    """
    if output.exists() and (not output.is_dir() or any(output.iterdir())):
        raise UserError(
            f"--output: {output} is there already: choose another folder, or remove it",
            code="output-exists",
            field="--output",
        )
    try:
        for name, content in files.items():
            path = output / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(content, encoding="utf-8")
    except OSError as error:
        raise cannot_write(output, error, "--output") from None
