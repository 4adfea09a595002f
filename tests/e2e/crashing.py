"""Real processes of a run that die where they are told, and are started again until the run has ended."""

from __future__ import annotations

import json
import os
import socket
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from multiprocessing.connection import wait
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any

from rich.console import Console

from rankdad.common.protocol.plan import make_plan
from rankdad.common.run.replica import Replica
from rankdad.common.spec import RunSpec
from rankdad.local.config import SiteConfig
from rankdad.remote.records import Retention
from rankdad.remote.run_reader import FILE, RunReader
from rankdad.remote.server import listen
from rankdad.remote.tables import count_of, rows_in
from tests.conftest import write_policy
from tests.e2e.failpoints import Crash
from tests.warm import CONTEXT

EVERY = 10  # steps between two checkpoints
MAX_SILENCE = 2.0  # seconds for which an aggregator whose run is over waits for sites that may come
LONGEST = 150.0  # seconds for a run, which takes a tenth of that where nothing else runs
KILLED = -9


class Run:
    """A run of one aggregator and its sites, each a process forked from a server that has imported everything.

    Args:
        spec: the run.
        data: folder of the sites' data.
        folder: of the run; everything that processes leave behind lies there.
        crashes: of every process that is to die, its lives' ends one after the other.
        queueing: whether the port takes connections while there is no aggregator, as where a proxy stands before it.
        retention: of the ledger.
        pauses: seconds that a site takes longer than it has to for each step, by its name.
    """

    def __init__(
        self,
        spec: RunSpec,
        data: Path,
        folder: Path,
        crashes: Mapping[str, Sequence[Crash]],
        *,
        queueing: bool = True,
        retention: Retention = Retention.ALL,
        pauses: Mapping[str, float] | None = None,
    ) -> None:
        self.pauses = pauses or {}
        self.spec, self.data, self.folder, self.retention = spec, data, folder, retention
        self.names = ("aggregator", *spec.federation.sites)
        self.directory = folder / "run"
        self._crashes = {name: list(crashes.get(name, ())) for name in self.names}
        self._queueing = queueing
        self._processes: dict[str, BaseProcess] = {}
        folder.mkdir(parents=True)
        self._policy = write_policy(folder)  # once: a site may read it while another one starts

    @contextmanager
    def started(self) -> Iterator[None]:
        """Start all processes; none is left afterwards."""
        listening = listen("127.0.0.1", 0)
        self._port = listening.getsockname()[1]
        self._listening = listening if self._queueing else None
        if not self._queueing:
            listening.close()
        try:
            for name in self.names:
                self.start(name)
            yield
        finally:
            for process in self._processes.values():
                process.kill()
                process.join()
            listening.close()

    def start(self, name: str) -> None:
        """Start a process, in its next life."""
        crash = self._crashes[name][0] if self._crashes[name] else None
        log = self.folder / f"{name}.log"
        if name == "aggregator":
            arguments: tuple[Any, ...] = (self.spec, self.directory, self._port, self._listening, self.retention)
            target: Any = _aggregator
        else:
            config = SiteConfig(
                name=name,
                aggregator=f"http://127.0.0.1:{self._port}",
                data=str(self.data / name),
                output=str(self.folder / name),
                policy=self._policy,
                patience=LONGEST,
            )
            target, arguments = _site, (config, self.pauses.get(name, 0.0))
        self._processes[name] = CONTEXT.Process(target=target, args=(log, crash, *arguments), daemon=True)
        self._processes[name].start()

    def kill(self, name: str) -> None:
        """Kill a process."""
        self._processes[name].kill()
        self._processes[name].join()

    def kill_all(self) -> None:
        """Kill all processes at once."""
        for process in self._processes.values():
            process.kill()
        for process in self._processes.values():
            process.join()

    def wait_for_step(self, step: int) -> None:
        """Wait until the aggregator has recorded a step."""
        deadline = time.monotonic() + LONGEST
        while count_of(self.directory, "steps") < step:
            in_time = time.monotonic() < deadline and all(process.is_alive() for process in self._processes.values())
            assert in_time, f"no step {step}\n{self._said()}"
            time.sleep(0.005)  # another process writes the file

    def finish(self, *names: str) -> None:
        """Start again whoever has died as it was told, until these or all have ended well."""
        running = {self._processes[name].sentinel: name for name in names or self.names}
        deadline = time.monotonic() + LONGEST
        while running:
            ended = wait(list(running), max(0.0, deadline - time.monotonic()))
            assert ended, f"{sorted(running.values())} have not ended\n{self._said()}"
            for sentinel in ended:
                name = running.pop(sentinel)  # type: ignore[arg-type]
                process = self._processes[name]
                process.join()
                due = self._crashes[name].pop(0) if self._crashes[name] else None
                expected = KILLED if due else 0
                assert process.exitcode == expected, f"{name}: {process.exitcode}, not at {due}\n{self._said()}"
                if due:
                    self.start(name)
                    running[self._processes[name].sentinel] = name

    def _said(self) -> str:
        logs = sorted(self.folder.glob("*.log"))
        return "\n".join(f"--- {path.stem}\n{path.read_text()[-3000:]}" for path in logs)


def outcome(directory: Path) -> dict[str, Any]:
    """Return what a run's directory says of the run, but for seconds: equal for a disturbed run and an undisturbed."""
    summary = json.loads((directory / "summary.json").read_text())
    left_out = ("seconds", "seconds_per_step", "versions", "machine")
    rows = rows_in(directory, "steps")
    steps = [{key: value for key, value in row.items() if "seconds" not in key} for row in rows]
    metrics = (directory / "metrics.csv").read_text()
    kept = {key: value for key, value in summary.items() if key not in left_out}
    return kept | {"steps.csv": steps, "metrics.csv": metrics}


def recorded_rounds(spec: RunSpec, directory: Path) -> list[int]:
    """Return of which rounds a run's file, in which nothing is wrong, holds an update, in their order."""
    plan = make_plan(spec, Replica(spec).model)
    with closing(RunReader(directory / FILE, plan.sha256())) as file:
        assert not [*file.faults()]
        return [record.round for record in file.updates(file.oldest)]


def _begin(log: Path, crash: Crash | None) -> None:
    """Make a forked process one of a run."""
    with log.open("a", buffering=1) as file:
        os.dup2(file.fileno(), 1)
        os.dup2(file.fileno(), 2)
    sys.stdout.reconfigure(line_buffering=True)  # type: ignore[union-attr]
    vars(sys.modules["rankdad.remote.open_run"])["MAX_SILENCE"] = MAX_SILENCE
    if crash is not None:
        crash.arm()


def _aggregator(
    log: Path,
    crash: Crash | None,
    spec: RunSpec,
    directory: Path,
    port: int,
    listening: socket.socket | None,
    retention: Retention,
) -> None:
    from rankdad.remote.beginning import Options
    from rankdad.remote.persistence import LedgerOptions
    from rankdad.remote.process import run_aggregator

    _begin(log, crash)
    with listening or listen("127.0.0.1", port) as taking:
        options = Options(ledger=LedgerOptions(retention=retention, every=EVERY))
        run_aggregator(spec, directory, taking, Console(), options)


def _site(log: Path, crash: Crash | None, config: SiteConfig, pause: float) -> None:
    from rankdad.local.drivers.running import run_site
    from rankdad.local.passes import Passes

    _begin(log, crash)
    compute = Passes.step

    def step(self: Passes, batch: Any, moments: Any) -> Any:
        time.sleep(pause if len(batch) else 0.0)  # a slower machine
        return compute(self, batch, moments)

    if pause:
        setattr(Passes, "step", step)  # noqa: B010
    run_site(config, every=EVERY)
