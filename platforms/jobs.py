"""What engines have in common: jobs, and settings of nodes."""

from __future__ import annotations

import json
import secrets
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol

from rankdad.common.data.files import places_of_sites
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


def settings_for_trial(
    simulated: Path, data: Path | None, engine: str, sites: Sequence[str], **server: Any
) -> dict[str, str]:
    """Return the files of all nodes' settings for a trial on this machine; results and runs lie beside them.

    Args:
        simulated: the directory of a simulation, with the data of all sites, which is used if no other is given.
        data: a folder with a folder or a table for each site.
        engine: its name in a site's settings.
        sites: of the run.
        server: what the server's file has beside its directory.

    Raises:
        UserError: the data of a site is missing.
    """
    documents: dict[str, dict[str, Any]] = {"server": {"directory": "runs", **server}}
    places = {} if data is None or not data.is_dir() else places_of_sites(data.absolute(), tuple(sites))
    for site in sites:
        own = simulated.resolve() / "sites" / site
        place = own / "data" if data is None else places.get(site)
        if place is None or not place.exists():
            said = f"no data of {site} in {data or own}: expected the folder of all sites' data as --data"
            raise UserError(f"--settings: {said}", code="data-missing", field="--settings")
        documents[site] = {"name": site, "aggregator": engine, "data": str(place), "output": f"out/{site}"}
        documents[site]["privacy"] = str(own / "privacy") if (own / "privacy").is_dir() else f"privacy/{site}"
        if (own / "policy.json").is_file():
            documents[site]["policy"] = str(own / "policy.json")
    return {f"{node}.json": json.dumps(document, indent=2) + "\n" for node, document in documents.items()}


def write_files(output: Path, files: Mapping[str, str], option: str = "--output") -> None:
    """Write files into a folder that is empty or not there.

    Args:
        output: the folder.
        files: contents by path.
        option: the one that names the folder.

    Raises:
        UserError: it is not, or cannot be written.
    """
    if output.exists() and (not output.is_dir() or any(output.iterdir())):
        raise UserError(
            f"{option}: {output} is there already: choose another folder, or remove it",
            code="output-exists",
            field=option,
        )
    try:
        for name, content in files.items():
            path = output / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(content, encoding="utf-8")
    except OSError as error:
        raise cannot_write(output, error, option) from None
