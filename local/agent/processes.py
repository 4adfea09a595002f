"""Processes of an agent: one listens for offers, others consider or train a run. All of them end with the agent.

They are forked from the agent, which has imported everything and runs no thread, so they start fast and share memory.
"""

from __future__ import annotations

import logging
import multiprocessing
import os
import signal
import sys
import time
from collections.abc import Callable, Sequence
from contextlib import closing, suppress
from multiprocessing.connection import Connection, Pipe
from pathlib import Path
from threading import Thread
from typing import Literal, TextIO, cast

from rankdad.common.documents import Part
from rankdad.common.errors import (
    ENDED,
    DataError,
    PolicyError,
    RankdadError,
    RunFailedError,
    SpecError,
    UserError,
    one_line,
    public_reason,
)
from rankdad.common.files import naming_the_disk
from rankdad.common.logs import LogFile, LogOptions, error_line, log_names, set_up
from rankdad.common.protocol.service import Offer, Offered
from rankdad.local.agent.state import Considered, RunFolder
from rankdad.local.agent.words import what_leaves
from rankdad.local.config import SiteConfig
from rankdad.local.drivers.running import run_site
from rankdad.local.drivers.service import ServiceClient
from rankdad.local.shutdown_signals import ShutdownSignals
from rankdad.local.taking_part import offered_spec, permitted

MIN_DELAY, MAX_DELAY = 1.0, 60.0  # seconds between two attempts
PAUSE = 0.2  # seconds between two requests for offers
_log = logging.getLogger(__name__)


class Outcome(Part):
    """The end of an agent's process."""

    kind: Literal["done", "refused", "again", "ended", "crashed"]
    reason: str = ""
    """For the site's staff."""
    told: str = ""
    """For the owner."""
    considered: Considered | None = None


class Lifeline:
    """A pipe that closes with this process; forked processes that hold its other end then exit."""

    def __init__(self) -> None:
        self.reading, self._writing = os.pipe()

    def hold(self, *others: int) -> None:
        """Hold the pipe in a forked process, and close files of the parent."""
        for file in (self._writing, *others):
            os.close(file)
        Thread(target=_end_with, args=(self.reading,), name="lifeline", daemon=True).start()


def _end_with(reading: int) -> None:
    os.read(reading, 1)
    os._exit(1)


class Worker:
    """A running process.

    Args:
        target: of the process; called with a connection for its reports.
        lifeline: of the agent.
        others: files that only the agent uses.
    """

    def __init__(self, target: Callable[[Connection], None], lifeline: Lifeline, others: Sequence[int]) -> None:
        self.outcome, writing = Pipe(duplex=False)
        with writing:
            context = multiprocessing.get_context("fork")
            arguments = (target, writing, self.outcome, lifeline, others)
            self._process = context.Process(target=_become, args=arguments)
            self._process.start()

    def result(self) -> Outcome:
        """Return the outcome, once `outcome` can be read."""
        try:
            text = self.outcome.recv_bytes()
        except (EOFError, OSError):
            text = b""
        self._process.join(10)
        self.outcome.close()
        if text:
            return Outcome.model_validate_json(text)
        code = self._process.exitcode or 0
        how = f"was killed by {signal.Signals(-code).name}" if code < 0 else f"ended with status {code}"
        return Outcome(kind="crashed", reason=f"the run's process {how}", told=f"its process {how}")

    def stop(self) -> None:
        """Ask it to finish its step, write a checkpoint and end."""
        self._process.terminate()

    def kill(self) -> None:
        """Kill it."""
        self._process.kill()
        self._process.join()
        self.outcome.close()


def _become(
    target: Callable[[Connection], None],
    writing: Connection,
    reading: Connection,
    lifeline: Lifeline,
    others: Sequence[int],
) -> None:
    os.setsid()  # Ctrl-C reaches all processes of a terminal; only the agent handles it
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.SIG_DFL)
    reading.close()
    lifeline.hold(*others)
    target(writing)


class Listen:
    """Report offers of the service to the agent; the service holds each request until something changes.

    Args:
        config: of the site.
        logs: log options.
    """

    def __init__(self, config: SiteConfig, logs: LogOptions) -> None:
        self.config, self.logs = config, logs

    def __call__(self, writing: Connection) -> None:
        """Run forever."""
        set_up(self.logs)
        known, delay, reported = "", MIN_DELAY, ""
        while True:
            try:
                with ServiceClient(self.config) as client:  # reads renewed tokens and certificates
                    while True:
                        offers = client.offers(known)
                        if reported:
                            _log.info("the service answers again")
                        known, delay, reported = offers.digest, MIN_DELAY, ""
                        writing.send_bytes(offers.model_dump_json().encode())
                        time.sleep(PAUSE)  # a stopping service answers at once
            except RankdadError as error:
                if str(error) != reported:
                    reported = str(error)
                    _log.error("%s; retrying", reported)
                time.sleep(delay)
                known, delay = "", min(2 * delay, MAX_DELAY)


class Consider:
    """Find out what a run would send, and whether the policy allows it, without reading data.

    Args:
        config: of the site.
        offered: the run.
        logs: log options.
    """

    def __init__(self, config: SiteConfig, offered: Offered, logs: LogOptions) -> None:
        self.config, self.offered, self.logs = config, offered, logs

    def __call__(self, writing: Connection) -> None:
        """Consider the run, and send the outcome."""
        set_up(self.logs)
        with log_names(run=self.offered.run, site=self.config.name):
            try:
                offer = self._asked()
            except RankdadError as error:
                say(writing, Outcome(kind="again", reason=str(error)))
                return
            words, refusal, told = list[str](), "", ""
            try:
                spec = offered_spec(self.config, {"version": offer.version, "wire": offer.wire, "run": offer.spec})
                policy, _, plan = permitted(self.config, spec, offer.id, offer.owner)
                words = what_leaves(spec.at(self.config.name), plan, policy, offer.owner)
            except RankdadError as error:
                refusal, told = "; ".join(error.quoted or (str(error),)), public_reason(error)
            except Exception as error:
                refusal, told = one_line(error), public_reason(error)
        considered = Considered(offer=offer, words=tuple(words), refusal=refusal, told=told)
        say(writing, Outcome(kind="done", considered=considered))

    def _asked(self) -> Offer:
        with ServiceClient(self.config, patience=0.1) as client:  # the agent retries later
            offer = client.offer(self.offered.run)
        if (offer.run, offer.id) != (self.offered.run, self.offered.id):
            raise UserError("the service returned another run than it offered", code="run-differs")
        return offer


class Train:
    """Take part in a run, as `rankdad site` does, in its own folder.

    Args:
        config: of the site.
        run: the run's name.
        number: identity of the approved run.
        logs: log options.
    """

    def __init__(self, config: SiteConfig, run: str, number: str, logs: LogOptions) -> None:
        self.config, self.run, self.number, self.logs = config, run, number, logs

    def __call__(self, writing: Connection) -> None:
        """Train, and send the outcome."""
        folder = RunFolder(self.config, self.run)
        address = f"{self.config.aggregator.rstrip('/')}/runs/{self.run}"
        own = {"aggregator": address, "output": str(folder.path), "spec": str(folder.spec)}
        config = self.config.model_copy(update=own)
        with closing(LogFile(folder.log)) as log:
            with suppress(OSError):
                os.dup2(log.fileno(), 1)
            sys.stdout = cast(TextIO, log)
            set_up(self.logs, log)
            try:
                with ShutdownSignals() as signals, naming_the_disk():
                    run_site(
                        config,
                        signals,
                        number=self.number,
                        saved=folder.finish,
                        home=Path(self.config.output),
                    )
                outcome = Outcome(kind="done")
                log.write("done\n")
            except Exception as error:
                known = isinstance(error, RankdadError)
                lasting = isinstance(error, DataError | PolicyError | SpecError)  # what another try would not mend
                lasting = lasting and not (isinstance(error, RankdadError) and error.is_recoverable)
                ended = isinstance(error, RunFailedError) and error.code == ENDED
                outcome = Outcome(
                    kind="refused" if lasting else "ended" if ended else "again" if known else "crashed",
                    reason=str(error) if known else one_line(error),
                    told=public_reason(error),
                )
                code = error.code if isinstance(error, RankdadError) else "crashed"
                log.write(f"{error_line(outcome.reason, code)}\n")
        say(writing, outcome)


def say(writing: Connection, outcome: Outcome) -> None:
    """Send the outcome of a process to the agent."""
    writing.send_bytes(outcome.model_dump_json().encode())
    writing.close()
