"""The processes that send as a run's sites: the newest of a site counts, and the one before it has to end."""

from __future__ import annotations

from collections.abc import Callable

from rankdad.common.errors import ProtocolError

KNOWN = 100  # replaced processes of a site that are recognised
CONTESTED = 60.0  # seconds after a request of a replaced process in which its site may still have two


class SiteProcesses:
    """Which process sends as each site. Not stored: after a restart, whichever comes first counts until another comes.

    Args:
        clock: seconds.
    """

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._processes: dict[str, list[str]] = {}  # of each site, the newest last
        self._contested: dict[str, float] = {}

    def check(self, site: str, process: str) -> None:
        """Take a process as its site's if it is new.

        Args:
            site: its name.
            process: the name that it has drawn; "" for none, as long as the site has no other.

        Raises:
            ProtocolError: another has replaced it.
        """
        known = self._processes.get(site, [""])
        if process == known[-1]:
            return
        if process in known:
            self._contested[site] = self._clock()
            raise ProtocolError(
                409,
                f"another process of {site} has replaced this one: does a second process use its name and token? "
                "Stop one of the two",
                code="process-replaced",
            )
        self._processes[site] = ["", *known[-KNOWN:], process]

    def is_contested(self, site: str) -> bool:
        """Return whether a replaced process of a site has lately asked for something."""
        return site in self._contested and self._clock() - self._contested[site] < CONTESTED
