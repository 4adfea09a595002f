"""The processes that send as a run's sites: the newest of a site counts, and the one before it has to end."""

from __future__ import annotations

from collections.abc import Callable

from rankdad.common.errors import ProtocolError

KNOWN = 100  # replaced processes of a site that are recognised
CONTESTED = 60.0  # seconds after a request of a replaced process in which its site may still have two


class SiteProcesses:
    """Which process sends as each site. Not stored: after a restart, whichever comes first counts until another comes.

    A process counts from its first accepted contribution: one that cannot take part replaces none.

    Args:
        clock: seconds.

    Attributes:
        sender: the process whose contribution is being taken; "" if it has drawn no name.
    """

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock, self.sender = clock, ""
        self._processes: dict[str, list[str]] = {}  # of each site, the newest last
        self._contested: dict[str, float] = {}

    def check(self, site: str, process: str) -> None:
        """Check that no other process of a site has contributed since this one.

        Args:
            site: its name.
            process: the name that it has drawn; "" for none.

        Raises:
            ProtocolError: another has replaced it.
        """
        if process in self._processes.get(site, [])[:-1]:
            self._contested[site] = self._clock()
            raise ProtocolError(
                409,
                f"another process of {site} has replaced this one: does a second process use its name and token? "
                "Stop one of the two",
                code="process-replaced",
            )

    def claim(self, site: str) -> bool:
        """Take the sender as its site's process; return whether a replaced one has lately asked for something."""
        known = self._processes.get(site, [""])
        if self.sender != known[-1]:
            self._processes[site] = ["", *known[-KNOWN:], self.sender]
        return site in self._contested and self._clock() - self._contested[site] < CONTESTED
