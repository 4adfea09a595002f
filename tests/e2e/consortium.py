"""A service, its agents and an owner, as real processes on this machine."""

from __future__ import annotations

import json
import os
import re
import secrets
import subprocess
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from rankdad.common.documents import load_json
from rankdad.common.protocol.service import Described, State
from rankdad.local.config import Member
from rankdad.local.drivers.service import ServiceClient
from rankdad.remote.auth import hashed
from tests.conftest import write_policy
from tests.ports import free_port
from tests.warm import Warm

LONGEST = 240.0  # seconds for what takes a few where nothing else runs
OVER = (State.ENDED, State.FAILED, State.CANCELLED, State.REFUSED)


class Consortium:
    """A service and its sites' agents.

    Args:
        folder: where everything lies.
        data: folder of the sites' data.
        sites: their names.
        consortium: more of the consortium's file.
        site: more of every site's file.
        policies: what sites' policies say other than to allow everything.
        tokens: whether all members prove by tokens who they are; `anna` is an owner then.
    """

    def __init__(
        self,
        folder: Path,
        data: Path,
        sites: Sequence[str],
        *,
        consortium: Mapping[str, Any] | None = None,
        site: Mapping[str, Any] | None = None,
        policies: Mapping[str, Mapping[str, Any]] | None = None,
        tokens: bool = False,
    ) -> None:
        self.folder, self.sites = folder, tuple(sites)
        folder.mkdir(parents=True, exist_ok=True)
        self.port = free_port()
        self.url = f"http://127.0.0.1:{self.port}"
        self.directory = folder / "service"
        document: dict[str, Any] = {"name": "test", "aggregator": "https://unused.example", "runs_at_once": 3}
        document |= {"sites": sites, **({"owners": ["anna"]} if tokens else {}), **(consortium or {})}
        (folder / "consortium.json").write_text(json.dumps(document))
        self.members = [name for kind in ("sites", "owners", "viewers") for name in document.get(kind, ())]
        for name in sites:
            own = folder / name
            own.mkdir()
            write_policy(own, **(policies or {}).get(name, {}))
            fields = {"name": name, "aggregator": self.url, "data": str(data / name), "output": "out"}
            fields |= {"token_file": "token"} if tokens else {}
            (own / "SITE.json").write_text(json.dumps(fields | {"policy": "policy.json"} | dict(site or {})))
        self.token = self.token_file("anna") if tokens else None
        self.tokens = folder / "tokens.json" if tokens else None
        if tokens:
            self.revoke()
        self.processes: dict[str, Warm] = {}
        self.words: dict[str, tuple[object, ...]] = {}  # more of an agent's command

    @contextmanager
    def started(self) -> Iterator[Consortium]:
        """Start the service and all agents; none is left afterwards."""
        try:
            for name in ("service", *self.sites):
                self.start(name)
            yield self
        finally:
            for process in self.processes.values():
                process.kill()
            for process in self.processes.values():
                process.wait(30)

    def start(self, name: str) -> None:
        """Start the service or an agent."""
        words: list[object] = ["site", self.folder / name / "SITE.json", "--stay", *self.words.get(name, ())]
        if name == "service":
            words = ["serve", self.folder / "consortium.json", "--output", self.directory, "--port", self.port]
            words += [] if self.tokens is None else ["--tokens", self.tokens]
        with (self.folder / f"{name}.log").open("ab") as log:
            self.processes[name] = Warm(*words, log=log)

    def kill(self, name: str) -> None:
        """Kill the service or an agent, as the kernel does."""
        self.processes[name].kill()
        self.processes[name].wait(30)

    def stop(self, name: str) -> int:
        """Stop it by SIGTERM, and return its exit status."""
        self.processes[name].send_signal(15)
        return self.processes[name].wait(60)

    def token_file(self, name: str) -> Path:
        """Return the file of a member's token."""
        return self.folder / ("" if name == "anna" else name) / "token"

    def revoke(self, *names: str) -> None:
        """Let the service know the tokens of all but these; make them, if there are none."""
        assert self.tokens is not None
        hashes = {}
        for name in self.members:
            path = self.token_file(name)
            if not path.exists():
                path.parent.mkdir(exist_ok=True)
                path.write_text(secrets.token_urlsafe(32))
            hashes[name] = hashed(path.read_text())
        new = self.tokens.with_suffix(".new")
        new.write_text(json.dumps({name: each for name, each in hashes.items() if name not in names}))
        new.rename(self.tokens)

    def client(self) -> ServiceClient:
        """Return an owner's connection."""
        token = None if self.token is None else str(self.token)
        return ServiceClient(Member(name="owner", aggregator=self.url, patience=60.0, token_file=token))

    def submit(self, document: Mapping[str, Any]) -> str:
        """Submit a run, and return its name."""
        with self.client() as client:
            return client.submit(os.urandom(8).hex(), dict(document)).run

    def until(self, condition: Callable[[ServiceClient], Any], seconds: float = LONGEST) -> Any:
        """Return what a condition gives as soon as that is true."""
        end = time.monotonic() + seconds
        with self.client() as client:
            while not (found := condition(client)):
                assert time.monotonic() < end, self.said()
                time.sleep(0.1)  # other processes do the work
        return found

    def until_over(self, *runs: str) -> dict[str, Described]:
        """Return what is known of some runs once they are all over."""

        def over(client: ServiceClient) -> dict[str, Described]:
            found = {run.run: run for run in client.runs().runs if run.run in runs and run.state in OVER}
            return found if len(found) == len(runs) else {}

        found: dict[str, Described] = self.until(over)
        return found

    def until_state(self, run: str, state: State, reason: str = "") -> Described:
        """Return what is known of a run once it is in a state, and its reason fits."""

        def there(client: ServiceClient) -> Described | None:
            found = client.run(run)
            return found if found.state is state and re.search(reason, found.reason) else None

        found: Described = self.until(there)
        return found

    def summary(self, run: str) -> dict[str, Any]:
        """Return a run's figures."""
        document: dict[str, Any] = load_json(self.directory / "runs" / run / "summary.json")
        return document

    def audited(self, site: str) -> list[dict[str, Any]]:
        """Return a site's audit log."""
        path = self.folder / site / "out" / "audit.jsonl"
        return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []

    def said(self) -> str:
        """Return the ends of all logs."""
        logs = [*sorted(self.folder.glob("*.log")), *sorted(self.folder.glob("*/out/runs/*/log.txt"))]
        listed = self.processes and subprocess.run(["uptime"], capture_output=True, text=True).stdout
        return f"{listed}\n" + "\n".join(f"--- {path}\n{path.read_text()[-2500:]}" for path in logs)
