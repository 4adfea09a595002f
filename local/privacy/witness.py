"""A record of the log's progress outside of it, next to the results, to detect an outdated copy of the log."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from pathlib import Path

from rankdad.common.documents import Part, load_json, validate
from rankdad.common.files import write_whole

FILE = "disclosed.json"


class Witness(Part):
    """Progress of the log at its last change."""

    runs: int
    """Number of runs."""
    last: str
    """The last run's identity, keyed by the site's secret."""
    withdrawn: int
    """Number of withdrawn patients."""
    told: int = 0
    """Number of runs with logged disclosures."""


def found(results: Iterable[Path]) -> Iterator[tuple[Path, Witness]]:
    """Yield the witnesses in folders of results, and in the runs of an agent in them.

    Raises:
        UserError: one cannot be read.
    """
    for folder in results:
        for path in (folder / FILE, *sorted(folder.glob(f"runs/*/{FILE}"))):
            if path.exists():
                yield path, validate(Witness, load_json(path), file=path)


def write(results: Iterable[Path], told: Witness) -> None:
    """Write a witness into folders of results.

    Raises:
        UserError: a file cannot be written.
    """
    for folder in results:
        write_whole(folder / FILE, told.model_dump_json() + "\n", private=True)
