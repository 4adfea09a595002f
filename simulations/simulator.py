"""A run of real processes on this machine: one per aggregator and site, HTTP on loopback between them.

All are forked from this process after it has imported everything and before it runs any torch operation: five processes
start in a third of the time, and share their memory. A process that has computed with threads must not be forked.
"""

from __future__ import annotations

import contextlib
import gc
import importlib
import multiprocessing
import secrets
import signal
import socket
import sys
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from multiprocessing.connection import Connection, Pipe, wait
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any

from rankdad.common.documents import load_json
from rankdad.common.errors import RankdadError, UserError
from rankdad.common.files import make_folder, write_json, write_whole
from rankdad.common.logs import LogOptions
from rankdad.common.spec.tree import TOP
from rankdad.local.config import SiteConfig
from rankdad.remote.auth import hashed
from rankdad.remote.config import Access
from rankdad.remote.persistence import LedgerOptions
from rankdad.remote.run_directory import own_directory
from rankdad.remote.run_reader import FILE
from rankdad.remote.server import listen
from rankdad.remote.tracking import trackers_of
from rankdad.simulations.dealing import write_sites
from rankdad.simulations.processes import how_it_ended, last_error, last_lines, start, stop
from rankdad.simulations.roles import RELAY, aggregator_process, log_path, relay_process, site_process
from rankdad.simulations.spec import SimulationFile
from rankdad.simulations.tree import region_directory

PATIENCE = 10.0  # seconds for which a site tries the aggregator, which is on this machine
SIMULATION = "simulation.json"  # in a run's directory: what `--resume` goes on with


class SimulationError(RankdadError):
    """A process of the simulation failed."""

    def __init__(
        self, message: str, exit_code: int, quoted: Sequence[str] = (), *, code: str, field: str = "", site: str = ""
    ) -> None:
        self.exit_code, self.quoted = exit_code, tuple(quoted)
        super().__init__(message, code=code, field=field, site=site)


def simulate(
    file: SimulationFile,
    directory: Path,
    *,
    allow_factories: tuple[str, ...] = (),
    json_output: bool = False,
    ledger: LedgerOptions | None = None,
    tokens: bool = False,
    resume: bool = False,
    logs: LogOptions = LogOptions(),  # noqa: B008
) -> dict[str, Any]:
    """Run a simulation, and return its summary.

    Args:
        file: run and simulation.
        directory: of the run.
        allow_factories: model factories that the caller permits.
        json_output: whether standard output is kept free for the summary.
        ledger: what is written down for the run to go on after a crash.
        tokens: whether sites prove who they are.
        resume: go on with the run that the directory holds.
        logs: what the processes write into their logs.

    Raises:
        UserError: the data cannot be read or dealt out, or the directory already holds a run.
        SimulationError: a process died, or failed; or Ctrl-C.
    """
    import_before_forking()
    trackers_of(file.run, directory)  # before any process is made
    if not resume and (directory / FILE).exists():
        problem = f"already holds a run: --resume {directory} goes on with it, if it was cut short"
        raise UserError(
            f"{directory}: {problem}; or choose another --output, or remove it", code="cannot-resume", field="--output"
        )
    relay, nodes = file.simulation.relay, file.run.federation.nodes
    with own_directory(directory, TOP, new=not resume), contextlib.ExitStack() as sockets:
        if not resume:
            write_json(directory / SIMULATION, file.model_dump(mode="json"))
        listening = {name: sockets.enter_context(listen("127.0.0.1", 0)) for name in nodes}
        relaying = sockets.enter_context(listen("127.0.0.1", 0)) if relay else None
        urls = {name: _url(socket) for name, socket in listening.items()}
        if relaying is not None:
            urls[TOP] = _url(relaying)
        above = {child: urls[name] for name, node in nodes.items() for child in node.children}
        patience = PATIENCE + len(above) / 4 + (3 * relay.longest if relay else 0.0)  # all start at once
        configs = write_sites(
            file, directory / "sites", above, allow_factories=allow_factories, patience=patience, dealt=resume
        )
        regions = _regions(file, directory, above, patience)
        access = _identify([configs, regions], directory) if tokens else Access()
        options = (allow_factories, json_output, ledger, access, logs)
        aggregators = {
            name: partial(aggregator_process, file, directory, regions.get(name), *options) for name in nodes
        }
        processes = _Processes(file, directory, listening, relaying, configs, aggregators, logs)
        sockets.close()  # the processes have their own
        return processes.run()


def _url(listening: socket.socket) -> str:
    return f"http://127.0.0.1:{listening.getsockname()[1]}"


def _regions(file: SimulationFile, directory: Path, above: Mapping[str, str], patience: float) -> dict[str, SiteConfig]:
    """Make the regions' directories, and return how each one's aggregator reaches the one above it."""
    configs: dict[str, SiteConfig] = {}
    for name in file.run.federation.regions:
        output = str(make_folder(region_directory(directory, name)))
        configs[name] = SiteConfig(name=name, aggregator=above[name], data=output, output=output, patience=patience)
    return configs


def _identify(everyone: Sequence[dict[str, SiteConfig]], directory: Path) -> Access:
    """Give every site and region a token."""
    hashes = {}
    for configs in everyone:
        for name, config in configs.items():
            token = secrets.token_urlsafe(32)
            path = Path(config.output) / "token"
            write_whole(path, token, private=True)
            configs[name] = config.model_copy(update={"token_file": str(path)})
            hashes[name] = hashed(token)
    write_json(directory / "tokens.json", hashes)
    return Access(tokens=directory / "tokens.json")


def import_before_forking() -> None:
    """Import what the processes will need; what an optimizer's constructor imports takes longest."""
    for name in ("torch._dynamo", "rankdad.local.site", "rankdad.local.prediction", "rankdad.remote.process"):
        importlib.import_module(name)
    gc.freeze()  # what is imported stays: collections pass it over, and its memory stays shared


class _Processes:
    def __init__(
        self,
        file: SimulationFile,
        directory: Path,
        listening: Mapping[str, socket.socket],
        relaying: socket.socket | None,
        configs: dict[str, SiteConfig],
        aggregators: Mapping[str, Callable[..., None]],
        logs: LogOptions,
    ) -> None:
        self._directory = directory
        self._above = {child: name for name, node in file.run.federation.nodes.items() for child in node.children}
        self._above[RELAY] = TOP
        context = multiprocessing.get_context("fork" if sys.platform == "linux" else "spawn")
        self._first = ""  # a process that did not end well
        self._before = self._summary()
        self._died, self._required = 0, file.run.federation.required_sites  # sites
        self._relays: tuple[BaseProcess, ...] = ()  # one or none
        if relaying is not None:
            # First: who is forked later holds its parent's end of the sentinel too, so that it outlives them all.
            assert file.simulation.relay is not None
            relay = partial(relay_process, file.simulation.relay, directory, relaying, listening[TOP])
            self._relays = (start(context, RELAY, relay),)
            relaying.close()
        pipes = {name: context.Pipe(duplex=False) for name in aggregators}
        self._lifelines = {name: writing for name, (_, writing) in pipes.items()}
        ends = tuple(self._lifelines.values())
        self._aggregators: dict[str, BaseProcess] = {}
        for name, aggregator in aggregators.items():
            others = tuple(socket for other, socket in listening.items() if other != name)
            target = partial(aggregator, ends, others, pipes[name][0], listening[name])
            self._aggregators[name] = start(context, name, target)
        self._sites: dict[str, BaseProcess] = {
            name: start(context, name, partial(site_process, ends, tuple(listening.values()), config, logs))
            for name, config in configs.items()
        }
        for reading, _ in pipes.values():
            reading.close()

    def run(self) -> dict[str, Any]:
        stopped, wake = Pipe(duplex=False)
        signals, handler = (signal.SIGINT, signal.SIGTERM), partial(_note, wake)
        previous = {number: signal.signal(number, handler) for number in signals}
        try:
            self._wait(stopped)
        finally:
            for number in previous:
                signal.signal(number, signal.SIG_IGN)
            stopped_by = stopped.recv() if stopped.poll() else ""
            self._end(at_once=bool(stopped_by))
            for number, before in previous.items():
                signal.signal(number, before)
        if stopped_by:
            recorded = f"what was recorded lies in {self._directory}{self._how_to_go_on()}"
            raise SimulationError(f"stopped by {stopped_by}; {recorded}", 130, code="stopped")
        return self._judge()

    def _wait(self, stopped: Connection) -> None:
        """Wait until all have ended well or a signal has come, or tell the aggregator which process has not."""
        everyone = (*self._aggregators.values(), *self._sites.values())
        running: dict[Any, BaseProcess] = {process.sentinel: process for process in everyone}
        while running:
            for sentinel in wait([stopped, *running, *(process.sentinel for process in self._relays)]):
                if sentinel is stopped:
                    return
                process = running.pop(sentinel, *self._relays)
                process.join()
                if process.exitcode == 0 and process not in self._relays:  # which ends when it is told to
                    continue
                self._first = process.name
                self._died += process in self._sites.values()
                self._tell(process)
                if process not in self._sites.values() or not self._has_quorum():
                    return

    def _tell(self, process: BaseProcess) -> None:
        """Tell all aggregators above a process that it has died."""
        error, _ = last_error(log_path(self._directory, process.name))
        line = f"{process.name}\t{how_it_ended(process)}" + (f": {error}" if error else "")
        above = self._above.get(process.name)
        while above is not None:
            with contextlib.suppress(OSError):  # the aggregator may be gone too
                self._lifelines[above].send_bytes(line.encode())
            above = self._above.get(above)

    def _has_quorum(self) -> bool:
        """Tell whether the run can go on without the sites that have died."""
        return len(self._sites) - self._died >= self._required

    def _end(self, *, at_once: bool) -> None:
        """See that no process is left: by waiting, then by asking, then by force."""
        ends = [*self._aggregators.values(), *self._sites.values()]
        stop(ends, ("terminate",) * at_once + ("wait", "terminate", "wait", "kill", "wait"))
        stop(self._relays, ("terminate", "wait", "kill", "wait"))  # through which the others hear of the end
        for lifeline in self._lifelines.values():
            lifeline.close()

    def _judge(self) -> dict[str, Any]:
        """Return the summary of a run that went well, or say which process did not."""
        path, kept = self._directory / "summary.json", self._summary()
        summary = {} if kept == self._before else kept  # of the processes before, where it goes on
        everyone = {**self._aggregators, **self._sites, **{process.name: process for process in self._relays}}
        if all(process.exitcode == 0 for name, process in everyone.items() if name not in self._sites) and (
            self._has_quorum() and summary.get("status") == "completed"
        ):
            return summary
        culprit, _, reason = summary.get("reason", "").partition(": ")
        if culprit not in everyone:
            culprit, reason = self._first, how_it_ended(everyone[self._first])
            if kept:
                write_json(path, kept | {"status": "failed", "reason": f"{culprit}: {reason}"})
        if everyone[culprit].exitcode == UserError.exit_code:
            whose = "" if culprit == "aggregator" else f"{culprit}: "  # the aggregator speaks of the file itself
            sentence, code = last_error(log_path(self._directory, culprit))
            raise SimulationError(whose + sentence, UserError.exit_code, code=code or "process-ended", site=culprit)
        lines = last_lines(log_path(self._directory, culprit)).splitlines()
        ended = f"{culprit} failed: {reason}{self._how_to_go_on()}"
        code = summary.get("code") or "process-ended"
        raise SimulationError(ended, 1, ["its last lines:", *lines] if lines else (), code=code, site=culprit)

    def _summary(self) -> dict[str, Any]:
        path = self._directory / "summary.json"
        summary: dict[str, Any] = load_json(path) if path.exists() else {}
        return summary

    def _how_to_go_on(self) -> str:
        return f"; --resume {self._directory} goes on with it" if (self._directory / FILE).exists() else ""


def _note(wake: Connection, number: int, _frame: object) -> None:
    """Take a signal: whoever waits finds its name."""
    wake.send(signal.Signals(number).name)
