"""The document of a service's page: its runs and its sites' agents."""

from __future__ import annotations

from typing import Any

from rankdad.common import __version__
from rankdad.common.errors import visible
from rankdad.common.protocol.service import OPEN, State
from rankdad.remote.service.queue import Entry
from rankdad.remote.service.service import Service

MAX_SHOWN = 200  # newest runs
STOPPED = (State.FAILED, State.REFUSED)


class Board:
    """The document of a service's page.

    Args:
        service: the service.
    """

    def __init__(self, service: Service) -> None:
        self._service, self._changes = service, -1
        self._methods: dict[str, str] = {}
        self._newest, self._open, self._places = list[Entry](), list[Entry](), dict[str, str]()

    def document(self) -> dict[str, Any]:
        """Return all parts; the page receives a part when it changes."""
        service = self._service
        if service.queue.changes != self._changes:
            self._look()
        training = sum(entry.state is State.RUNNING for entry in self._open)
        waiting = sum(entry.state in (State.WAITING, State.QUEUED) for entry in self._open)
        return {
            "service": {
                "version": __version__,
                "places": service.consortium.runs_at_once,
                "training": training,
                "waiting": waiting,
            },
            "runs": [self._run(entry) for entry in self._newest],
            "sites": self._sites(),
            "seen": {site: round(seen.time) for site, seen in service.agents.items()},
        }

    def _look(self) -> None:
        """Reload the queue."""
        queue = self._service.queue
        self._changes = queue.changes
        self._newest, self._open = queue.newest(MAX_SHOWN), queue.open_runs()
        queued = [entry.run for entry in self._open if entry.state is State.QUEUED]
        self._places = {run: f"{place + 1} of {len(queued)}" for place, run in enumerate(queued)}
        known, self._methods = self._methods, {}
        for entry in self._newest:
            self._methods[entry.run] = known.get(entry.run) or visible(queue.method(entry.run), 63)

    def _run(self, entry: Entry) -> dict[str, Any]:
        described, over = self._service.described(entry), entry.state not in OPEN
        return {
            "name": entry.run,
            "owner": entry.owner,
            "method": self._methods[entry.run],
            "sites": ", ".join(entry.sites),
            "state": entry.state.value,
            "kind": "stopped" if entry.state in STOPPED else "",
            "reason": described.reason or self._places.get(entry.run, ""),
            "submitted": entry.submitted,
            "started": entry.started,
            "ended": entry.ended,
            "step": described.step,
            "steps": described.steps,
            "open": not over,
            "page": entry.started is not None,
            "report": over and entry.started is not None,
        }

    def _sites(self) -> list[dict[str, Any]]:
        service, connected = self._service, self._service.registry.present()
        rows = []
        for site in service.consortium.sites:
            seen = service.agents.get(site)
            kind, words = "in", "connected"
            if seen is None:
                kind, words = "absent", "not here yet"
            elif not seen.fits:
                kind, words = "stopped", f"another version: install {__version__}"
            elif site not in connected:
                kind, words = "gone", "disconnected"
            own = [entry for entry in self._open if site in entry.sites]
            rows.append(
                {
                    "name": site,
                    "kind": kind,
                    "state": words,
                    "version": visible(seen.version) if seen else "",
                    "trains": [entry.run for entry in own if entry.state is State.RUNNING],
                    "asked": [entry.run for entry in own if entry.state in OPEN and site in entry.answered("asked")],
                }
            )
        return rows
