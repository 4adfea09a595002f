"""Last known heads of the sites' disclosure logs: older copies, forks and missing logs are refused."""

from __future__ import annotations

from pathlib import Path
from threading import Lock
from typing import Annotated

from pydantic import Field

from rankdad.common.documents import Part, load_json, validate
from rankdad.common.errors import ProtocolError, UserError, visible
from rankdad.common.files import write_whole
from rankdad.common.privacy.heads import Heads, problem

FILE = "logs.json"  # in a run's or service's directory
WRONG = {
    "log-missing": "is missing, although {site} had one here before",
    "log-replaced": "is not the log that {site} had here before",
    "log-too-old": "lacks runs that the log of {site} had here before: it is an older copy",
    "log-forked": "has other runs than the log of {site} had here before: it is a diverged copy",
}
Digits = Annotated[str, Field(pattern=r"^[0-9a-f]{32}$")]


class Known(Part):
    """The last known head of a log."""

    id: Digits
    length: Annotated[int, Field(ge=1)]
    head: Digits


class _All(Part):
    sites: dict[str, Known]


class KnownLogs:
    """A run's or service's knowledge of the sites' logs; thread-safe.

    Args:
        directory: the run's or the service's; the file is created with the first log.
    """

    def __init__(self, directory: Path) -> None:
        self._path, self._lock = directory / FILE, Lock()

    def take(self, site: str, heads: Heads | None) -> None:
        """Check and store the head of a site's log.

        Raises:
            ProtocolError: it is not the newest.
            UserError: the file cannot be read or written.
        """
        with self._lock:
            sites = self._read()
            known = sites.get(site)
            code = problem(None if known is None else Heads(known.id, known.length, (known.head,)), heads)
            if code:
                raise ProtocolError(
                    409,
                    f"d.log: {WRONG[code].format(site=site)}; put the newest copy in its place, and the output's "
                    "disclosed.json of that time, or use `rankdad privacy import`. Only if it is lost, the aggregator's"
                    f" people let the site begin anew: `rankdad forget DIR {site} --log`",
                    code=code,
                    field="d.log",
                )
            if heads is None:
                return
            newest = Known(id=heads.id, length=heads.length, head=heads.heads[-1])
            if newest != known:
                self._write(sites | {site: newest})

    def forget(self, site: str) -> None:
        """Forget a site's log.

        Raises:
            UserError: it has no log here, or the file cannot be read or written.
        """
        with self._lock:
            sites = self._read()
            if site not in sites:
                raise UserError(
                    f"{visible(site, 63)}: has no log in {self._path.parent}", code="site-unknown", field="SITE"
                )
            self._write({name: known for name, known in sites.items() if name != site})

    def _read(self) -> dict[str, Known]:
        return validate(_All, load_json(self._path), file=self._path).sites if self._path.exists() else {}

    def _write(self, sites: dict[str, Known]) -> None:
        write_whole(self._path, _All(sites=sites).model_dump_json(indent=2) + "\n", private=True)
