"""How much a site's log knows, told outside of it, beside the results of its runs: an older copy is then found out."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from pathlib import Path

from rankdad.common.documents import Part, load_json, validate
from rankdad.common.files import write_whole

FILE = "disclosed.json"


class Witness(Part):
    """What a log knew when something was last noted there."""

    runs: int
    """How many."""
    last: str
    """The last run's identity, by the site's secret."""
    withdrawn: int
    """Patients."""
    told: int = 0
    """Runs of which it was noted what they tell."""


def found(results: Iterable[Path]) -> Iterator[tuple[Path, Witness]]:
    """Yield what lies in folders of results, and in those of an agent's runs in them.

    Raises:
        UserError: one cannot be read.
    """
    for folder in results:
        for path in (folder / FILE, *sorted(folder.glob(f"runs/*/{FILE}"))):
            if path.exists():
                yield path, validate(Witness, load_json(path), file=path)


def write(results: Iterable[Path], told: Witness) -> None:
    """Write it into folders of results.

    Raises:
        UserError: that cannot be done.
    """
    for folder in results:
        write_whole(folder / FILE, told.model_dump_json() + "\n", private=True)
