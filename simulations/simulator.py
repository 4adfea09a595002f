"""A run of real processes on this machine: one for each aggregator and site, connected by HTTP on loopback.

All are forked from this process after its imports and before any torch operation. Five processes then start in a third
of the time and share memory. A process that has computed with threads must not be forked.
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
from contextlib import AbstractContextManager, nullcontext
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
from rankdad.simulations.processes import how_it_ended, last_error, last_lines, start, stop
from rankdad.simulations.roles import aggregator_process, log_path, site_process
from rankdad.simulations.site_folders import write_sites
from rankdad.simulations.spec import SimulationFile
from rankdad.simulations.tree import region_directory

PATIENCE = 10.0  # seconds for which a site retries the aggregator
SIMULATION = "simulation.json"  # in a run's directory, for `--resume`
Between = Callable[[str], AbstractContextManager[str]]


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
    between: Between = nullcontext,
) -> dict[str, Any]:
    """Run a simulation, and return its summary.

    Args:
        file: run and simulation.
        directory: the run's.
        allow_factories: permitted model factories.
        json_output: whether standard output is reserved for the summary.
        ledger: options of the aggregators' ledgers.
        tokens: whether sites authenticate by tokens.
        resume: whether to resume the run in the directory.
        logs: options of the processes' logs.
        between: enters what lies between the sites and the top aggregator, such as a slow link, from its URL, and
            yields the URL for the sites.

    Raises:
        UserError: the data cannot be read or partitioned, or the directory already has a run.
        SimulationError: a process died or failed, or Ctrl-C was pressed.
    """
    import_before_forking()
    trackers_of(file.run, directory)  # before any process is made
    if not resume and (directory / FILE).exists():
        problem = f"already has a run: --resume {directory} resumes an interrupted one"
        raise UserError(
            f"{directory}: {problem}; or choose another --output, or remove it", code="cannot-resume", field="--output"
        )
    nodes = file.run.federation.nodes
    with (
        own_directory(directory, TOP, new=not resume),
        contextlib.ExitStack() as sockets,
        contextlib.ExitStack() as links,
    ):
        if not resume:
            write_json(directory / SIMULATION, file.model_dump(mode="json"))
        listening = {name: sockets.enter_context(listen("127.0.0.1", 0)) for name in nodes}
        urls = {name: _url(socket) for name, socket in listening.items()}
        urls[TOP] = links.enter_context(between(urls[TOP]))
        above = {child: urls[name] for name, node in nodes.items() for child in node.children}
        patience = PATIENCE + len(above) / 4  # all start at once
        configs = write_sites(
            file, directory / "sites", above, allow_factories=allow_factories, patience=patience, is_written=resume
        )
        regions = _regions(file, directory, above, patience)
        access = _identify([configs, regions], directory) if tokens else Access()
        options = (allow_factories, json_output, ledger, access, logs)
        aggregators = {
            name: partial(aggregator_process, file, directory, regions.get(name), *options) for name in nodes
        }
        processes = _Processes(file, directory, listening, configs, aggregators, logs)
        sockets.close()  # the processes have their own
        return processes.run()


def _url(listening: socket.socket) -> str:
    return f"http://127.0.0.1:{listening.getsockname()[1]}"


def _regions(file: SimulationFile, directory: Path, above: Mapping[str, str], patience: float) -> dict[str, SiteConfig]:
    """Create the regions' directories, and return their connections to the aggregators above."""
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
    """Import modules for the processes; the modules of optimizers take longest."""
    for name in ("torch._dynamo", "rankdad.local.site", "rankdad.local.prediction", "rankdad.remote.process"):
        importlib.import_module(name)
    gc.freeze()  # keeps imported objects out of collections, and their memory shared


class _Processes:
    def __init__(
        self,
        file: SimulationFile,
        directory: Path,
        listening: Mapping[str, socket.socket],
        configs: dict[str, SiteConfig],
        aggregators: Mapping[str, Callable[..., None]],
        logs: LogOptions,
    ) -> None:
        self._directory = directory
        self._above = {child: name for name, node in file.run.federation.nodes.items() for child in node.children}
        context = multiprocessing.get_context("fork" if sys.platform == "linux" else "spawn")
        self._first = ""  # first process that failed
        self._before = self._summary()
        self._died, self._required = 0, file.run.federation.required_sites  # sites
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
            recorded = f"the records are in {self._directory}{self._how_to_resume()}"
            raise SimulationError(f"stopped by {stopped_by}; {recorded}", 130, code="stopped")
        return self._judge()

    def _wait(self, stopped: Connection) -> None:
        """Wait until all processes have ended well or a signal arrives; report a failed process to the aggregators."""
        everyone = (*self._aggregators.values(), *self._sites.values())
        running: dict[Any, BaseProcess] = {process.sentinel: process for process in everyone}
        while running:
            for sentinel in wait([stopped, *running]):
                if sentinel is stopped:
                    return
                process = running.pop(sentinel)
                process.join()
                if process.exitcode == 0:
                    continue
                self._first = process.name
                self._died += process in self._sites.values()
                self._report_death(process)
                if process not in self._sites.values() or not self._has_quorum():
                    return

    def _report_death(self, process: BaseProcess) -> None:
        """Report a process's death to all aggregators above it."""
        error, _ = last_error(log_path(self._directory, process.name))
        line = f"{process.name}\t{how_it_ended(process)}" + (f": {error}" if error else "")
        above = self._above.get(process.name)
        while above is not None:
            with contextlib.suppress(OSError):  # the aggregator may be gone too
                self._lifelines[above].send_bytes(line.encode())
            above = self._above.get(above)

    def _has_quorum(self) -> bool:
        """Return whether the run can continue without the sites that died."""
        return len(self._sites) - self._died >= self._required

    def _end(self, *, at_once: bool) -> None:
        """Stop all processes: by waiting, then by SIGTERM, then by SIGKILL."""
        ends = [*self._aggregators.values(), *self._sites.values()]
        stop(ends, ("terminate",) * at_once + ("wait", "terminate", "wait", "kill", "wait"))
        for lifeline in self._lifelines.values():
            lifeline.close()

    def _judge(self) -> dict[str, Any]:
        """Return the summary of a successful run, or raise an error about the failed process."""
        path, found = self._directory / "summary.json", self._summary()
        summary = {} if found == self._before else found  # a resumed run has an earlier one
        everyone = self._aggregators | self._sites
        if all(process.exitcode == 0 for name, process in everyone.items() if name not in self._sites) and (
            self._has_quorum() and summary.get("status") == "completed"
        ):
            return summary
        culprit, _, reason = summary.get("reason", "").partition(": ")
        if culprit not in everyone:
            culprit, reason = self._first, how_it_ended(everyone[self._first])
            if found:
                write_json(path, found | {"status": "failed", "reason": f"{culprit}: {reason}"})
        if everyone[culprit].exitcode == UserError.exit_code:
            whose = "" if culprit == "aggregator" else f"{culprit}: "  # the aggregator's errors name the file
            sentence, code = last_error(log_path(self._directory, culprit))
            raise SimulationError(whose + sentence, UserError.exit_code, code=code or "process-ended", site=culprit)
        lines = last_lines(log_path(self._directory, culprit)).splitlines()
        ended = f"{culprit} failed: {reason}{self._how_to_resume()}"
        code = summary.get("code") or "process-ended"
        raise SimulationError(ended, 1, ["its last lines:", *lines] if lines else (), code=code, site=culprit)

    def _summary(self) -> dict[str, Any]:
        path = self._directory / "summary.json"
        summary: dict[str, Any] = load_json(path) if path.exists() else {}
        return summary

    def _how_to_resume(self) -> str:
        return f"; --resume {self._directory} resumes it" if (self._directory / FILE).exists() else ""


def _note(wake: Connection, number: int, _frame: object) -> None:
    """Pass a signal's name to the waiting process."""
    wake.send(signal.Signals(number).name)
