"""A run of real processes on this machine: one aggregator, one process per site, HTTP on loopback between them.

All are forked from this process after it has imported everything and before it runs any torch operation: five processes
start in a third of the time, and share their memory. A process that has computed with threads must not be forked.
"""

from __future__ import annotations

import contextlib
import gc
import importlib
import logging
import multiprocessing
import secrets
import signal
import socket
import sys
from collections.abc import Callable
from functools import partial
from multiprocessing.connection import Connection, wait
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any

from rich.console import Console

from rankdad.common.documents import load_json
from rankdad.common.errors import RankdadError, UserError
from rankdad.common.files import write_json, write_whole
from rankdad.common.logs import LogOptions, set_up
from rankdad.local.config import SiteConfig
from rankdad.remote.auth import hashed
from rankdad.remote.config import Access
from rankdad.remote.persistence import LedgerOptions
from rankdad.remote.run_directory import new_directory
from rankdad.remote.server import listen
from rankdad.simulations.dealing import write_sites
from rankdad.simulations.faults import RelaySpec
from rankdad.simulations.processes import how_it_ended, last_error, last_lines, redirect, run, start, stop
from rankdad.simulations.spec import SimulationFile

PATIENCE = 10.0  # seconds for which a site tries the aggregator, which is on this machine
RELAY = "the relay"  # its process; no site can have this name
SIMULATION = "simulation.json"  # in a run's directory: what `--resume` goes on with


class SimulationError(RankdadError):
    """A process of the simulation could not go on."""

    def __init__(self, message: str, exit_code: int) -> None:
        self.exit_code = exit_code
        super().__init__(message)


class InterruptedSimulation(Exception):  # noqa: N818
    """Ctrl-C, or SIGTERM to the simulator: the signal's name."""

    def __init__(self, name: str) -> None:
        self.name = name


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
        SimulationError: a process died, or could not go on; or Ctrl-C.
    """
    import_before_forking()
    if not resume:
        new_directory(directory)
        write_json(directory / SIMULATION, file.model_dump(mode="json"))
    relay = file.simulation.relay
    with listen("127.0.0.1", 0) as listening, listen("127.0.0.1", 0) if relay else contextlib.nullcontext() as relaying:
        url = f"http://127.0.0.1:{(relaying or listening).getsockname()[1]}"
        patience = PATIENCE + (3 * relay.longest if relay else 0.0)
        configs = write_sites(
            file, directory / "sites", url, allow_factories=allow_factories, patience=patience, dealt=resume
        )
        access = _identify(configs, directory) if tokens else Access()
        aggregator = partial(
            _aggregator, file, directory, listening, allow_factories, json_output, ledger, access, logs
        )
        processes = _Processes(file, directory, listening, relaying, configs, aggregator, logs)
    return processes.run()


def _identify(configs: dict[str, SiteConfig], directory: Path) -> Access:
    """Give every site a token."""
    hashes = {}
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
        listening: socket.socket,
        relaying: socket.socket | None,
        configs: dict[str, SiteConfig],
        aggregator: Callable[[Connection, Connection], None],
        logs: LogOptions,
    ) -> None:
        self._directory = directory
        context = multiprocessing.get_context("fork" if sys.platform == "linux" else "spawn")
        self._first = ""  # a process that did not end well
        self._died, self._required = 0, file.run.federation.required_sites  # sites
        self._relays: tuple[BaseProcess, ...] = ()  # one or none
        if relaying is not None:
            # First: who is forked later holds its parent's end of the sentinel too, so that it outlives them all.
            assert file.simulation.relay is not None
            relay = partial(_relay, file.simulation.relay, directory, relaying, listening)
            self._relays = (start(context, RELAY, relay),)
            relaying.close()
        reading, self._lifeline = context.Pipe(duplex=False)
        self._aggregator = start(context, "aggregator", partial(aggregator, self._lifeline, reading))
        self._sites: dict[str, BaseProcess] = {
            name: start(context, name, partial(_site, self._lifeline, listening, config, logs))
            for name, config in configs.items()
        }
        reading.close()

    def run(self) -> dict[str, Any]:
        previous = {number: signal.signal(number, _interrupt) for number in (signal.SIGINT, signal.SIGTERM)}
        stopped_by = ""
        try:
            self._wait()
        except InterruptedSimulation as interrupted:
            stopped_by = interrupted.name
        finally:
            for number in previous:
                signal.signal(number, signal.SIG_IGN)
            self._end(at_once=bool(stopped_by))
            for number, handler in previous.items():
                signal.signal(number, handler)
        if stopped_by:
            raise SimulationError(f"stopped by {stopped_by}; what was recorded lies in {self._directory}", 130)
        return self._judge()

    def _wait(self) -> None:
        """Wait until all have ended well, or tell the aggregator which process has not."""
        running: dict[Any, BaseProcess] = {p.sentinel: p for p in (self._aggregator, *self._sites.values())}
        while running:
            for sentinel in wait([*running, *(process.sentinel for process in self._relays)]):
                process = running.pop(sentinel, *self._relays)
                process.join()
                if process.exitcode == 0 and process not in self._relays:  # which ends when it is told to
                    continue
                self._first = process.name
                self._died += process in self._sites.values()
                if process is not self._aggregator:
                    log = log_path(self._directory, process.name)
                    line = f"{process.name}\t{how_it_ended(process)}: {last_error(log)}"
                    with contextlib.suppress(OSError):  # the aggregator may be gone too
                        self._lifeline.send_bytes(line.encode())
                if process in (self._aggregator, *self._relays) or not self._has_quorum():
                    return

    def _has_quorum(self) -> bool:
        """Tell whether the run can go on without the sites that have died."""
        return len(self._sites) - self._died >= self._required

    def _end(self, *, at_once: bool) -> None:
        """See that no process is left: by waiting, then by asking, then by force."""
        ends = [self._aggregator, *self._sites.values()]
        stop(ends, ("terminate",) * at_once + ("wait", "terminate", "wait", "kill", "wait"))
        stop(self._relays, ("terminate", "wait", "kill", "wait"))  # through which the others hear of the end
        self._lifeline.close()

    def _judge(self) -> dict[str, Any]:
        """Return the summary of a run that went well, or say which process did not."""
        path = self._directory / "summary.json"
        summary: dict[str, Any] = load_json(path) if path.exists() else {}
        everyone = {process.name: process for process in (self._aggregator, *self._sites.values(), *self._relays)}
        if all(process.exitcode == 0 for name, process in everyone.items() if name not in self._sites) and (
            self._has_quorum() and summary.get("status") == "completed"
        ):
            return summary
        culprit, _, reason = summary.get("reason", "").partition(": ")
        if culprit not in everyone:
            culprit, reason = self._first, how_it_ended(everyone[self._first])
            if summary:
                write_json(path, summary | {"status": "failed", "reason": f"{culprit}: {reason}"})
        if everyone[culprit].exitcode == UserError.exit_code:
            whose = "" if culprit == "aggregator" else f"{culprit}: "  # the aggregator speaks of the file itself
            raise SimulationError(whose + last_error(log_path(self._directory, culprit)), UserError.exit_code)
        lines = last_lines(log_path(self._directory, culprit))
        raise SimulationError(f"{culprit} could not go on: {reason}\nits last lines:\n{lines or '(none)'}", 1)


def log_path(directory: Path, name: str) -> Path:
    """Return where a process of a simulation writes its lines."""
    logs = {"aggregator": directory / "aggregator.log", RELAY: directory / "relay.log"}
    return logs.get(name, directory / "sites" / name / "log.txt")


def _aggregator(
    file: SimulationFile,
    directory: Path,
    listening: socket.socket,
    allow_factories: tuple[str, ...],
    json_output: bool,
    ledger: LedgerOptions | None,
    access: Access,
    logs: LogOptions,
    other_end: Connection,
    lifeline: Connection,
) -> None:
    from rankdad.remote.process import run_aggregator

    other_end.close()  # so that the lifeline ends with the simulator
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    console = Console(stderr=json_output, quiet=logs.level > logging.INFO)
    with log_path(directory, "aggregator").open("w", encoding="utf-8", buffering=1) as log:
        set_up(logs, log)
        weights = None if file.simulation.weights is None else Path(file.simulation.weights)
        aggregator = partial(run_aggregator, ledger=ledger, access=access, weights=weights)
        run(lambda: aggregator(file.run, directory, listening, console, allow_factories, lifeline), log)


def _site(other_end: Connection, listening: socket.socket, config: SiteConfig, logs: LogOptions) -> None:
    from rankdad.local.site import run_site

    other_end.close()
    listening.close()  # else the port would still take connections after the aggregator's death
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C reaches every process of a terminal; the simulator decides
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    with (Path(config.output) / "log.txt").open("w", encoding="utf-8", buffering=1) as log:
        redirect(log)
        set_up(logs)
        run(lambda: run_site(config), log)


def _relay(spec: RelaySpec, directory: Path, relaying: socket.socket, listening: socket.socket) -> None:
    from rankdad.simulations.relay import run_relay

    to = listening.getsockname()[:2]
    listening.close()
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    parent = multiprocessing.parent_process()
    assert parent is not None
    with log_path(directory, RELAY).open("w", encoding="utf-8", buffering=1) as log:
        redirect(log)
        relay = partial(run_relay, spec, relaying, to, signals=(signal.SIGTERM,), lifeline=parent.sentinel)
        run(lambda: write_json(directory / "relay.json", relay()), log)


def _interrupt(number: int, _frame: object) -> None:
    raise InterruptedSimulation(signal.Signals(number).name)
