"""Entry points of a simulation's processes."""

from __future__ import annotations

import logging
import multiprocessing
import signal
import socket
from collections.abc import Sequence
from functools import partial
from multiprocessing.connection import Connection
from pathlib import Path
from typing import IO, cast

from rich.console import Console

from rankdad.common.files import keep_private
from rankdad.common.logs import LogOptions, set_up
from rankdad.common.spec.tree import TOP
from rankdad.common.terminal import console_here
from rankdad.local.config import SiteConfig
from rankdad.remote.config import Access
from rankdad.remote.persistence import LedgerOptions
from rankdad.simulations.processes import open_log, redirect, run
from rankdad.simulations.spec import SimulationFile
from rankdad.simulations.tree import region_directory


def log_path(directory: Path, name: str) -> Path:
    """Return the path of a process's log."""
    if name == TOP:
        return directory / "aggregator.log"
    region = region_directory(directory, name)
    return (region if region.exists() else directory / "sites" / name) / "log.txt"


def aggregator_process(
    file: SimulationFile,
    directory: Path,
    upstream: SiteConfig | None,
    allow_factories: tuple[str, ...],
    json_output: bool,
    ledger: LedgerOptions | None,
    access: Access,
    logs: LogOptions,
    ends: Sequence[Connection],
    others: Sequence[socket.socket],
    lifeline: Connection,
    listening: socket.socket,
) -> None:
    """Serve the run, or one of its regions, in a forked process."""
    from rankdad.remote.beginning import Options
    from rankdad.remote.process import run_aggregator

    _close(ends, others)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    name, output = (TOP, directory) if upstream is None else (upstream.name, Path(upstream.output))
    with open_log(log_path(directory, name)) as log:
        console = console_here(stderr=json_output, quiet=logs.level > logging.INFO)
        if upstream is not None:
            redirect(log)
            console = Console(file=cast(IO[str], log))
        set_up(logs, log)
        options = Options(allow_factories, file.simulation.weights_folder, ledger)
        aggregator = partial(run_aggregator, upstream=upstream, lifeline=lifeline)
        run(lambda: aggregator(file.run, output, listening, console, options, access), log)


def site_process(
    ends: Sequence[Connection], listening: Sequence[socket.socket], config: SiteConfig, logs: LogOptions
) -> None:
    """Take part in the run in a forked process."""
    from rankdad.local.drivers.running import run_site

    _close(ends, listening)
    multiprocessing.current_process().daemon = False  # daemons cannot start processes that load data
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C reaches every process of a terminal; the simulator decides
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    keep_private()
    with open_log(Path(config.output) / "log.txt") as log:
        redirect(log)
        set_up(logs)
        run(lambda: run_site(config), log)


def _close(ends: Sequence[Connection], listening: Sequence[socket.socket]) -> None:
    """Close inherited lifelines and sockets of other processes."""
    for end in ends:
        end.close()
    for one in listening:
        one.close()
