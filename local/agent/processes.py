"""Processes of an agent: one listens, others consider a run, or train it. None outlives the agent, whatever kills that.

They are forked from the agent, which has imported everything and runs no thread: they begin at once and share memory.
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
from rankdad.common.errors import DataError, PolicyError, RankdadError, SpecError, UserError, one_line, public_reason
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

MIN_DELAY, MAX_DELAY = 1.0, 60.0  # seconds between two tries of what did not work
PAUSE = 0.2  # seconds between two questions for offers, however soon the service answers
_log = logging.getLogger(__name__)


class Outcome(Part):
    """How a process of an agent has ended."""

    kind: Literal["done", "refused", "again", "crashed"]
    reason: str = ""
    """As the site's people read it."""
    told: str = ""
    """As the owner reads it."""
    considered: Considered | None = None


class Lifeline:
    """A pipe that ends with this process: whoever is forked from it, and holds the other end, ends then too."""

    def __init__(self) -> None:
        self.reading, self._writing = os.pipe()

    def hold(self, *others: int) -> None:
        """Hold on to it, in a process that was forked, and let go of what is its parent's alone."""
        for file in (self._writing, *others):
            os.close(file)
        Thread(target=_end_with, args=(self.reading,), name="lifeline", daemon=True).start()


def _end_with(reading: int) -> None:
    os.read(reading, 1)
    os._exit(1)


class Worker:
    """A process that runs.

    Args:
        target: of the process; given a connection for what it says.
        lifeline: of the agent.
        others: files that are the agent's alone.
    """

    def __init__(self, target: Callable[[Connection], None], lifeline: Lifeline, others: Sequence[int]) -> None:
        self.outcome, writing = Pipe(duplex=False)
        with writing:
            context = multiprocessing.get_context("fork")
            arguments = (target, writing, self.outcome, lifeline, others)
            self._process = context.Process(target=_become, args=arguments)
            self._process.start()

    def result(self) -> Outcome:
        """Return how it has ended, once `outcome` can be read."""
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
        """Let it finish its step, write a checkpoint and end."""
        self._process.terminate()

    def kill(self) -> None:
        """End it at once."""
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
    os.setsid()  # Ctrl-C reaches every process of a terminal; the agent decides
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.SIG_DFL)
    reading.close()
    lifeline.hold(*others)
    target(writing)


class Listen:
    """Asks the service for offers, again and again, and hands them on: a request is held until there is something new.

    Args:
        config: the site's own file.
        logs: what is logged.
    """

    def __init__(self, config: SiteConfig, logs: LogOptions) -> None:
        self.config, self.logs = config, logs

    def __call__(self, writing: Connection) -> None:
        """Do it for ever."""
        set_up(self.logs)
        known, delay, said = "", MIN_DELAY, ""
        while True:
            try:
                with ServiceClient(self.config) as client:  # a token or certificate may be a new one by now
                    while True:
                        offers = client.offers(known)
                        if said:
                            _log.info("the service answers again")
                        known, delay, said = offers.digest, MIN_DELAY, ""
                        writing.send_bytes(offers.model_dump_json().encode())
                        time.sleep(PAUSE)  # a service that stops answers at once
            except RankdadError as error:
                if str(error) != said:
                    said = str(error)
                    _log.error("%s; tries again", said)
                time.sleep(delay)  # nobody is there to be asked
                known, delay = "", min(2 * delay, MAX_DELAY)


class Consider:
    """Finds out what would leave the site in a run, and whether its policy allows that. No data are read.

    Args:
        config: the site's own file.
        offered: the run.
        logs: what is logged.
    """

    def __init__(self, config: SiteConfig, offered: Offered, logs: LogOptions) -> None:
        self.config, self.offered, self.logs = config, offered, logs

    def __call__(self, writing: Connection) -> None:
        """Do it, and send the outcome."""
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
        with ServiceClient(self.config, patience=0.1) as client:  # the agent tries again
            offer = client.offer(self.offered.run)
        if (offer.run, offer.id) != (self.offered.run, self.offered.id):
            raise UserError("the service names another run than it offers", code="run-differs")
        return offer


class Train:
    """Takes part in a run, as `rankdad site` does, in a folder of its own.

    Args:
        config: the site's own file.
        run: the run's name.
        number: under which it was allowed.
        logs: what is logged.
    """

    def __init__(self, config: SiteConfig, run: str, number: str, logs: LogOptions) -> None:
        self.config, self.run, self.number, self.logs = config, run, number, logs

    def __call__(self, writing: Connection) -> None:
        """Do it, and send the outcome."""
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
                outcome = Outcome(
                    kind="refused" if lasting else "again" if known else "crashed",
                    reason=str(error) if known else one_line(error),
                    told=public_reason(error),
                )
                code = error.code if isinstance(error, RankdadError) else "crashed"
                log.write(f"{error_line(outcome.reason, code)}\n")
        say(writing, outcome)


def say(writing: Connection, outcome: Outcome) -> None:
    """Tell the agent how a process of it has ended."""
    writing.send_bytes(outcome.model_dump_json().encode())
    writing.close()
