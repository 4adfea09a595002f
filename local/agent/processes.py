"""Processes of an agent: one considers a run, or trains it. None of them outlives the agent, whatever that dies of.

They are forked from one that has imported everything, so that they begin at once and share its memory.
"""

from __future__ import annotations

import multiprocessing
import os
import signal
import sys
from collections.abc import Callable
from multiprocessing.connection import Connection, Pipe
from multiprocessing.process import BaseProcess
from threading import Thread
from typing import Any, Literal

from rankdad.common.documents import Part
from rankdad.common.errors import DataError, PolicyError, RankdadError, SpecError, UnreachableError, one_line
from rankdad.common.logs import LogOptions, log_names, set_up
from rankdad.common.protocol.service import Offer
from rankdad.local.agent.state import Considered, RunFolder
from rankdad.local.agent.words import what_leaves
from rankdad.local.config import SiteConfig
from rankdad.local.shutdown_signals import ShutdownSignals


class Outcome(Part):
    """How a process of an agent has ended."""

    kind: Literal["done", "refused", "again", "crashed"]
    reason: str = ""
    """As the site's people read it."""
    told: str = ""
    """As the owner reads it."""
    considered: Considered | None = None


class Worker:
    """A process that runs.

    Args:
        target: of the process; given a connection for its outcome.
    """

    def __init__(self, target: Callable[[Connection], None]) -> None:
        context: Any = multiprocessing.get_context("forkserver")
        context.set_forkserver_preload(["rankdad.local.agent.preloaded"])
        self.outcome, writing = Pipe(duplex=False)
        lifeline, self._lifeline = Pipe(duplex=False)  # the process ends with this end of it
        with writing, lifeline:
            self._process: BaseProcess = context.Process(target=_become, args=(target, writing, lifeline))
            self._process.start()

    def result(self) -> Outcome:
        """Return how it has ended, once `outcome` can be read."""
        try:
            text = self.outcome.recv_bytes()
        except (EOFError, OSError):
            text = b""
        self._process.join(10)
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


def _become(target: Callable[[Connection], None], writing: Connection, lifeline: Connection) -> None:
    os.setsid()  # Ctrl-C reaches every process of a terminal; the agent decides
    Thread(target=_end_with, args=(lifeline,), name="lifeline", daemon=True).start()
    target(writing)


def _end_with(lifeline: Connection) -> None:
    """End this process when the agent's end of a pipe is gone."""
    lifeline.poll(None)
    os._exit(1)


class Consider:
    """Finds out what would leave the site in a run, and whether its policy allows that. No data are read.

    Args:
        config: the site's own file.
        offer: the run.
        logs: what is logged.
    """

    def __init__(self, config: SiteConfig, offer: Offer, logs: LogOptions) -> None:
        self.config, self.offer, self.logs = config, offer, logs

    def __call__(self, writing: Connection) -> None:
        """Do it, and send the outcome."""
        from rankdad.common.spec import RunSpec
        from rankdad.local.site import offered_spec, permitted, public_reason

        set_up(self.logs)
        with log_names(run=self.offer.run, site=self.config.name):
            words, refusal, told = list[str](), "", ""
            try:
                spec: RunSpec = offered_spec(self.config, {"version": self.offer.version, "run": self.offer.spec})
                policy, _, plan = permitted(self.config, spec)
                words = what_leaves(spec.at(self.config.name), plan, policy, self.offer.owner)
            except RankdadError as error:
                refusal, told = str(error), public_reason(error, self.config)
            except Exception as error:
                refusal, told = one_line(error), public_reason(error, self.config)
        considered = Considered(offer=self.offer, words=tuple(words), refusal=refusal, told=told)
        _say(writing, Outcome(kind="done", considered=considered))


class Train:
    """Takes part in a run, as `rankdad site` does, in a folder of its own.

    Args:
        config: the site's own file.
        run: the run's name.
        logs: what is logged.
    """

    def __init__(self, config: SiteConfig, run: str, logs: LogOptions) -> None:
        self.config, self.run, self.logs = config, run, logs

    def __call__(self, writing: Connection) -> None:
        """Do it, and send the outcome."""
        from rankdad.local.site import public_reason, run_site

        folder = RunFolder(self.config, self.run)
        address = f"{self.config.aggregator.rstrip('/')}/runs/{self.run}"
        own = {"aggregator": address, "output": str(folder.path), "spec": str(folder.spec)}
        config = self.config.model_copy(update=own)
        with folder.log.open("a", encoding="utf-8", buffering=1) as log:
            os.dup2(log.fileno(), 1)
            sys.stdout = log
            set_up(self.logs, log)
            try:
                with folder.locked() as ours:
                    if not ours:
                        raise UnreachableError(f"{self.run}: another process of this site trains it")
                    with ShutdownSignals() as signals:
                        run_site(config, signals, saved=folder.finish)
                outcome = Outcome(kind="done")
            except Exception as error:
                known = isinstance(error, RankdadError)
                lasting = isinstance(error, DataError | PolicyError | SpecError)  # what another try would not mend
                outcome = Outcome(
                    kind="refused" if lasting else "again" if known else "crashed",
                    reason=str(error) if known else one_line(error),
                    told=public_reason(error, config),
                )
            print(f"error: {outcome.reason}" if outcome.reason else "done", file=log)
        _say(writing, outcome)


def _say(writing: Connection, outcome: Outcome) -> None:
    writing.send_bytes(outcome.model_dump_json().encode())
    writing.close()
