"""The agent: it asks the service what there is for its site, and sees every run through that the site takes part in."""

from __future__ import annotations

import logging
import os
import shutil
import signal
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from multiprocessing.connection import Connection, wait
from pathlib import Path

from rankdad.common.errors import RankdadError, UserError
from rankdad.common.files import make_folder, owned
from rankdad.common.logs import LogOptions
from rankdad.common.policy import Policy
from rankdad.common.protocol.service import Answer, Offered, Offers, Reply
from rankdad.local.agent.asking import Answering, Respond
from rankdad.local.agent.processes import (
    MAX_DELAY,
    MIN_DELAY,
    Consider,
    Lifeline,
    Listen,
    Outcome,
    Train,
    Worker,
)
from rankdad.local.agent.state import Considered, Decision, RunFolder, runs_folder
from rankdad.local.config import SiteConfig
from rankdad.local.drivers.running import keep_receipt
from rankdad.local.drivers.service import ServiceClient

LOOK = 0.5  # seconds between two looks at decisions of the site's people
MAX_CONSIDERED, MAX_TRAINED = 2, 100  # runs at once: a service may offer thousands
CONSIDERING = 600.0  # seconds after which a run is not considered any longer
MAX_CRASHES = 5  # of a run's processes, one after the other, without a minute of work in between
WORKED = 60.0  # seconds after which a process has done some work
STOPPING = 15.0  # seconds in which processes end by themselves
OTHER_RUN = (  # an older copy of its directory was put back
    "the service has offered another run by this name before: submit it again, which gives it another"
)
TOLD = {"accepted": "this site takes part; it begins once all do", "refused": "its owner is told of the refusal"}
_log = logging.getLogger(__name__)


@dataclass
class _Run:
    """What an agent knows of a run.

    Args:
        folder: of the run.
        offered: what the service says of it; None if it is offered no more.
        worker: the process that considers or trains it.
        considers: whether it considers it.
        considered: what it has come to, without the spec; None before.
        replied: what the service was told last.
        began: when the worker did, in seconds of `time.monotonic`.
        retry_at: before which nothing is tried again.
        delay: seconds until the next try but one.
        crashes: of workers, one after the other.
    """

    folder: RunFolder
    offered: Offered | None
    worker: Worker | None = None
    considers: bool = False
    considered: Considered | None = None
    replied: Answer | None = None
    began: float = 0.0
    retry_at: float = 0.0
    delay: float = MIN_DELAY
    crashes: int = 0
    said: set[str] = field(default_factory=set)


class Agent:
    """A site's agent.

    Args:
        config: the site's own file.
        logs: what its processes log.
    """

    def __init__(self, config: SiteConfig, logs: LogOptions) -> None:
        self._config, self._logs = config, logs
        self._runs: dict[str, _Run] = {}
        self._stopping = self._forced = False
        self._lifeline = Lifeline()
        self._answering = Answering(self._work, lambda question: Respond(config, question, logs))
        self._reading, self._writing = os.pipe()  # wakes it when a signal comes

    def run(self) -> None:
        """Stay until SIGINT or SIGTERM comes.

        Raises:
            UserError: the output folder cannot be used, or another process does.
        """
        make_folder(runs_folder(self._config), private=True)
        with owned(Path(self._config.output), self._config.name), self._signals():
            self._own = (self._reading, self._writing)
            self._listener = self._work(Listen(self._config, self._logs))
            _log.info("stays for %s, and takes part in what its policy allows", self._config.aggregator)
            try:
                while not self._stopping:
                    self._wait(LOOK)
                    self._answering.advance()
                    for run in list(self._runs.values()):
                        self._keep_out()
                        self._advance(run)
            finally:
                self._listener.kill()
                self._stop()

    def _work(self, target: Callable[[Connection], None]) -> Worker:
        return Worker(target, self._lifeline, self._own)

    def _wait(self, seconds: float) -> None:
        """Wait until a process has said something or ended, or a signal has come."""
        outcomes = {run.worker.outcome: run for run in self._runs.values() if run.worker is not None}
        answers = [] if self._answering.worker is None else [self._answering.worker.outcome]
        for ready in wait([self._reading, self._listener.outcome, *answers, *outcomes], seconds):
            if ready is self._listener.outcome:
                self._hear()
            elif ready == self._reading:
                os.read(self._reading, 1 << 12)
            elif ready in answers:
                self._answering.end()
            else:
                self._end(outcomes[ready])  # type: ignore[index]

    def _hear(self) -> None:
        try:
            offers = Offers.model_validate_json(self._listener.outcome.recv_bytes())
        except (EOFError, OSError):  # somebody has killed it
            self._listener.kill()
            self._listener = self._work(Listen(self._config, self._logs))
        else:
            self._take(offers)

    def _take(self, offers: Offers) -> None:
        self._answering.take(offers.questions)
        offered = {one.run: one for one in offers.runs}
        for name, run in list(self._runs.items()):
            run.offered = offered.get(name)
            if run.offered is None and run.worker is None:
                del self._runs[name]
                self._forget(run)
        for name, one in offered.items():
            if name not in self._runs:
                self._runs[name] = _Run(RunFolder(self._config, name), one)
            self._runs[name].replied = one.answer

    def _forget(self, run: _Run) -> None:
        """See that nobody decides any more about a run that is over, and that the site has a receipt for its part."""
        with suppress(RankdadError):
            considered, decision = self._considered(run), run.folder.decision()
            if run.folder.log.exists() and not run.folder.finished:  # a process of its has trained, and may have sent
                with self._client() as client:
                    receipt = client.receipt(run.folder.run)
                keep_receipt(receipt, Policy.read(self._config.policy), run.folder.path)
            elif considered is not None and decision is None:
                over = Decision(id=considered.offer.id, decision="refused", by="the service", reason="the run is over")
                run.folder.decide(over)

    def _keep_out(self) -> None:
        """End what somebody here has refused, or what takes too long: at once, however long the service lets wait."""
        for run in self._runs.values():
            if run.worker is None:
                continue
            refused = False
            with suppress(UserError):
                decision = run.folder.decision()
                refused = decision is not None and decision.decision == "refused"
            late = run.considers and time.monotonic() - run.began > CONSIDERING
            if refused or late:
                run.worker.kill()
                run.worker = None
            if late:
                why = f"what would leave the site is not known after {CONSIDERING:.0f} s"
                self._come_to(run, Outcome(kind="refused", reason=why, told=why))

    def _advance(self, run: _Run) -> None:
        """Do what is due for a run."""
        if self._stopping or run.worker is not None or run.offered is None or time.monotonic() < run.retry_at:
            return
        try:
            self._do_what_is_due(run, run.offered)
        except RankdadError as error:
            self._try_later(run, str(error))
        except Exception:
            _log.exception("%s: an error of the agent's own", run.folder.run)
            self._try_later(run, "")

    def _do_what_is_due(self, run: _Run, offered: Offered) -> None:
        folder, considered = run.folder, self._considered(run)
        decision = folder.decision()
        if considered is None:
            self._start(run, Consider(self._config, offered, self._logs), considers=True)
        elif considered.offer.id != offered.id:
            self._reply(run, "refused", OTHER_RUN)
        elif folder.finished:
            self._reply(run, "finished")
            shutil.rmtree(folder.path / "checkpoints", ignore_errors=True)
        elif decision is None and considered.refusal:
            _log.warning("%s: is refused: %s", folder.run, considered.refusal)
            self._decide(run, "refused", "policy", considered.told)
        elif decision is None and self._config.approval == "policy":
            self._decide(run, "accepted", "policy")
        elif decision is None:
            if run.replied is None and "asked" not in run.said:
                run.said.add("asked")
                name = f"{folder.run} SITE.json"
                _log.info("%s waits for `rankdad approve %s`, or `rankdad refuse %s`", folder.run, name, name)
                folder.audit("asked")
            self._reply(run, "asked")
        elif decision.decision == "refused":
            self._reply(run, "refused", decision.reason)
        else:
            self._reply(run, "accepted")
            if offered.state == "running":
                self._start(run, Train(self._config, folder.run, offered.id, self._logs))

    def _considered(self, run: _Run) -> Considered | None:
        """Return what is known of a run; None before it was considered."""
        if run.considered is None and (found := run.folder.considered()) is not None:  # its spec may have megabytes
            run.considered = found.model_copy(update={"offer": found.offer.model_copy(update={"spec": {}})})
        return run.considered

    def _start(self, run: _Run, target: Callable[[Connection], None], *, considers: bool = False) -> None:
        """Start a run's process, if there is room; else the run waits for one of the others to end."""
        most = MAX_CONSIDERED if considers else MAX_TRAINED
        if sum(one.worker is not None and one.considers is considers for one in self._runs.values()) < most:
            run.worker, run.considers, run.began = self._work(target), considers, time.monotonic()

    def _end(self, run: _Run) -> None:
        """Take what a process has come to."""
        assert run.worker is not None
        outcome, run.worker = run.worker.result(), None
        self._come_to(run, outcome)
        if run.offered is None and self._runs.pop(run.folder.run, None) is not None:  # it has ended meanwhile
            self._forget(run)

    def _come_to(self, run: _Run, outcome: Outcome) -> None:
        try:
            self._settle(run, outcome)
        except RankdadError as error:
            self._try_later(run, str(error))

    def _settle(self, run: _Run, outcome: Outcome) -> None:
        if outcome.considered is not None:
            run.folder.keep(outcome.considered)
            for line in outcome.considered.words:
                _log.info("%s: %s", run.folder.run, line)
        elif outcome.kind == "done":
            _log.info("%s: has all that it needs; the results are in %s", run.folder.run, run.folder.path)
            run.delay, run.crashes = MIN_DELAY, 0
        elif outcome.kind == "refused":
            self._give_up(run, outcome)
        elif not self._stopping:
            worked = time.monotonic() - run.began > WORKED
            run.delay = MIN_DELAY if worked else run.delay
            run.crashes = (0 if worked else run.crashes) + (outcome.kind == "crashed")
            if run.crashes >= MAX_CRASHES:
                self._give_up(run, outcome.model_copy(update={"told": f"{outcome.told}, {run.crashes} times"}))
            else:
                self._try_later(run, outcome.reason)

    def _give_up(self, run: _Run, outcome: Outcome) -> None:
        _log.error("%s: %s", run.folder.run, outcome.reason)
        if not run.considers:
            self._decide(run, "refused", "the run's process", outcome.told)
            return
        self._reply(run, "refused", outcome.told)  # nothing of it is known that could be kept
        run.folder.audit("refused", by="the run's process", reason=outcome.told)
        self._try_later(run, "")

    def _decide(self, run: _Run, decision: str, by: str, reason: str = "") -> None:
        considered = self._considered(run)
        number = "" if considered is None else considered.offer.id
        run.folder.decide(Decision(id=number, decision=decision, by=by, reason=reason))  # type: ignore[arg-type]

    def _reply(self, run: _Run, answer: Answer, reason: str = "") -> None:
        """Tell the service, unless it knows."""
        if run.offered is None or run.replied == answer:
            return
        with self._client() as client:
            client.reply(run.folder.run, Reply(id=run.offered.id, answer=answer, reason=reason[:500]))
        run.replied = answer
        told = TOLD.get(answer)
        if told and told not in run.said:  # the service may take a moment to know
            run.said.add(told)
            _log.info("%s: %s", run.folder.run, told)

    def _client(self) -> ServiceClient:
        return ServiceClient(self._config, patience=0.1)  # what does not work is tried again, and nobody waits for it

    def _try_later(self, run: _Run, why: str) -> None:
        if why and why not in run.said:
            run.said = {*list(run.said)[-9:], why}
            _log.warning("%s: %s; tries again in %.0f s", run.folder.run, why, run.delay)
        run.retry_at = time.monotonic() + run.delay
        run.delay = min(2 * run.delay, MAX_DELAY)

    def _stop(self) -> None:
        """Let every process finish its step, and end."""
        if self._answering.worker is not None:
            self._answering.worker.kill()
        workers = [run.worker for run in self._runs.values() if run.worker is not None]
        for worker in workers:
            worker.stop()
        end = time.monotonic() + STOPPING
        left = {worker.outcome: worker for worker in workers}
        while left and time.monotonic() < end and not self._forced:
            for ready in wait(list(left), 0.1):
                left.pop(ready).result()  # type: ignore[call-overload]
        for worker in left.values():
            worker.kill()

    @contextmanager
    def _signals(self) -> Iterator[None]:
        def handle(*_: object) -> None:
            self._forced = self._stopping
            self._stopping = True
            os.write(self._writing, b"s")

        before = {number: signal.signal(number, handle) for number in (signal.SIGINT, signal.SIGTERM)}
        try:
            yield
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)
