"""The agent: it receives offers from the service, and takes each run of its site to the end."""

from __future__ import annotations

import logging
import queue
import shlex
import signal
import time
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from threading import Thread

from rankdad.common.errors import RankdadError, UserError
from rankdad.common.files import make_folder, owned
from rankdad.common.logs import LogOptions
from rankdad.common.protocol.service import Answer, Offered, Offers, Reply
from rankdad.local.agent.asking import Answering
from rankdad.local.agent.listening import MAX_DELAY, MIN_DELAY, listen
from rankdad.local.agent.processes import Outcome, Task, Worker
from rankdad.local.agent.state import Considered, Decision, RunFolder, runs_folder, unsettled
from rankdad.local.config import SiteConfig
from rankdad.local.drivers.http import RefusedError
from rankdad.local.drivers.receipts import keep_receipt
from rankdad.local.drivers.service import ServiceClient

LOOK = 0.2  # seconds between two looks at processes and at decisions by the site's staff
MAX_CONSIDERED, MAX_TRAINED = 2, 100  # simultaneous runs: a service may offer thousands
CONSIDERING = 600.0  # seconds after which considering a run is aborted
MAX_CRASHES = 5  # of a run's processes in a row, without a minute of work in between
WORKED = 60.0  # seconds after which a process counts as having worked
STOPPING = 15.0  # seconds for processes to end by themselves
ENDING = 20.0  # seconds after the end of a run in which its process hears of it, and ends
NOT_OVER = "run-not-over"  # code: the service has still to end the run
OTHER_RUN = (  # the service has restored an older copy of its directory
    "the service has offered another run by this name before: submit it again, to get another name"
)
TOLD = {"accepted": "this site takes part; the run starts when all do", "refused": "the owner was informed"}
_log = logging.getLogger(__name__)


@dataclass
class _Run:
    """State of a run at the agent.

    Args:
        folder: of the run.
        offered: the service's offer; None without one.
        worker: the process that considers or trains it.
        considers: whether the worker considers it.
        considered: result of that, without the spec; None before.
        replied: last answer to the service.
        began: start of the worker, `time.monotonic` in seconds.
        retry_at: time of the next attempt.
        delay: seconds between the next attempt and the one after it.
        crashes: of workers in a row.
        is_replaced: whether another agent of the site trains it.
        over: since when the service offers the run no longer, like `began`; None before.
    """

    folder: RunFolder
    offered: Offered | None = None
    worker: Worker | None = None
    considers: bool = False
    considered: Considered | None = None
    replied: Answer | None = None
    began: float = 0.0
    retry_at: float = 0.0
    delay: float = MIN_DELAY
    crashes: int = 0
    is_replaced: bool = False
    over: float | None = None
    said: set[str] = field(default_factory=set)


class Agent:
    """A site's agent.

    Args:
        config: of the site.
        logs: log options of its processes.
        file: that holds `config`, as the command line names it.
    """

    def __init__(self, config: SiteConfig, logs: LogOptions, file: Path) -> None:
        self._config, self._logs, self._file = config, logs, file
        self._runs: dict[str, _Run] = {}
        self._stopping = self._forced = False
        self._heard = queue.SimpleQueue[Offers]()
        self._answering = Answering(lambda question: Worker(config, logs, "answer", "", question))

    def run(self) -> None:
        """Run until SIGINT or SIGTERM.

        Raises:
            UserError: the output folder cannot be used, or another process uses it.
        """
        make_folder(runs_folder(self._config), private=True)
        with owned(Path(self._config.output), self._config.name):
            for number in (signal.SIGINT, signal.SIGTERM):
                signal.signal(number, self._end)
            Thread(target=listen, args=(self._config, self._heard.put), name="offers", daemon=True).start()
            _log.info("waiting for runs of %s that the policy allows", self._config.aggregator)
            self._take_up()
            try:
                while not self._stopping:
                    with suppress(queue.Empty):
                        self._take(self._heard.get(timeout=LOOK))
                    self._answering.advance()
                    for run in list(self._runs.values()):
                        self._look_at(run)
                        self._keep_out()
                        self._advance(run)
            finally:
                self._stop()

    def _end(self, *_: object) -> None:
        self._stopping, self._forced = True, self._stopping

    def _take(self, offers: Offers) -> None:
        self._answering.take(offers.questions)
        for one in offers.runs:
            run = self._runs.setdefault(one.run, _Run(RunFolder(self._config, one.run)))
            run.replied = one.answer
        offered = {one.run: one for one in offers.runs}
        for name, run in self._runs.items():
            run.offered = offered.get(name)
            if run.offered is not None:
                run.over = None
            elif run.over is None:
                run.over, run.retry_at, run.delay = time.monotonic(), 0.0, MIN_DELAY

    def _take_up(self) -> None:
        """Take up the runs that an earlier process left: one may have ended while there was no agent."""
        self._runs |= {folder.run: _Run(folder) for folder in unsettled(self._config)}

    def _close(self, run: _Run) -> None:
        """Settle a run that has ended: keep the receipt, record a decision, and remove the checkpoints.

        Raises:
            RankdadError: something is still owed.
        """
        folder, considered = run.folder, self._considered(run)
        if considered is not None and folder.is_over:
            folder.remove_checkpoints()
        if considered is None or folder.is_settled:
            return
        try:
            with self._client() as client:
                if client.offer(folder.run).id != considered.offer.id:
                    return
                receipt = client.receipt(folder.run)
            if folder.log.exists():
                keep_receipt(receipt, folder.path, retain=considered.retain)
            if receipt.status == "failed":  # perhaps only in an older copy of the service's directory
                return
        except RefusedError as error:
            if error.code == "run-unknown":  # to such a copy
                return
            if error.code != "no-receipt":
                raise
        if not folder.is_over:
            self._decide(run, "refused", "the service", "the run has ended")
            _log.warning("%s: the run has ended", folder.run)
        folder.remove_checkpoints()

    def _keep_out(self) -> None:
        """Kill the processes of refused runs, those that take too long, and those that outlast their run."""
        for run in self._runs.values():
            if run.worker is None:
                continue
            refused = False
            with suppress(UserError):
                decision = run.folder.decision()
                refused = decision is not None and decision.decision == "refused"
            now = time.monotonic()
            late, stuck = run.considers and now - run.began > CONSIDERING, now - (run.over or now) > ENDING
            if stuck:  # such as one that was stopped
                _log.warning("%s: its process had not ended %.0f s after the run: killed", run.folder.run, ENDING)
            if refused or late or stuck:
                run.worker.kill()
                run.worker = None
            if late:
                why = f"considering the run took longer than {CONSIDERING:.0f} s"
                self._come_to(run, Outcome(kind="refused", reason=why, told=why))

    def _advance(self, run: _Run) -> None:
        """Take the next action for a run."""
        if self._stopping or run.worker is not None or time.monotonic() < run.retry_at:
            return
        try:
            if run.offered is not None:
                self._do_what_is_due(run, run.offered)
            elif run.over is not None:
                self._close(run)
                del self._runs[run.folder.run]
        except RankdadError as error:
            self._try_later(run, "" if error.code == NOT_OVER else str(error))
        except Exception:
            _log.exception("%s: an unexpected error of the agent", run.folder.run)
            self._try_later(run, "")

    def _do_what_is_due(self, run: _Run, offered: Offered) -> None:
        folder, considered = run.folder, self._considered(run)
        decision = folder.decision()
        if considered is None:
            self._start(run, offered, considers=True)
        elif considered.offer.id != offered.id:
            self._reply(run, "refused", OTHER_RUN)
        elif folder.finished:
            self._reply(run, "finished")
            folder.remove_checkpoints()
        elif decision is None and considered.refusal:
            _log.warning("%s: refused: %s", folder.run, considered.refusal)
            self._decide(run, "refused", "policy", considered.told)
        elif decision is None and self._config.approval == "policy":
            self._decide(run, "accepted", "policy")
        elif decision is None:
            if run.replied is None and "asked" not in run.said:
                run.said.add("asked")
                name = f"{folder.run} {shlex.quote(str(self._file))}"
                _log.info("%s waits for `rankdad approve %s`, or `rankdad refuse %s`", folder.run, name, name)
                folder.audit("asked")
            self._reply(run, "asked")
        elif decision.decision == "refused":
            self._reply(run, "refused", decision.reason)
            folder.remove_checkpoints()
        else:
            self._reply(run, "accepted")
            if offered.state == "running" and not run.is_replaced:
                self._start(run, offered, considers=False)

    def _considered(self, run: _Run) -> Considered | None:
        """Return the result of considering a run; None before."""
        if run.considered is None and (found := run.folder.considered()) is not None:  # specs may have megabytes
            run.considered = found.model_copy(update={"offer": found.offer.model_copy(update={"spec": {}})})
        return run.considered

    def _start(self, run: _Run, offered: Offered, *, considers: bool) -> None:
        """Start a run's process if there is room; otherwise the run waits."""
        most = MAX_CONSIDERED if considers else MAX_TRAINED
        if sum(one.worker is not None and one.considers is considers for one in self._runs.values()) < most:
            task: Task = "consider" if considers else "train"
            run.worker = Worker(self._config, self._logs, task, offered.run, offered.id)
            run.considers, run.began = considers, time.monotonic()

    def _look_at(self, run: _Run) -> None:
        """Handle the end of a run's process, if it has ended."""
        if run.worker is None or (outcome := run.worker.outcome()) is None:
            return
        run.worker = None
        self._come_to(run, outcome)

    def _come_to(self, run: _Run, outcome: Outcome) -> None:
        try:
            self._settle(run, outcome)
        except RankdadError as error:
            self._try_later(run, str(error))

    def _settle(self, run: _Run, outcome: Outcome) -> None:
        if outcome.kind == "done" and run.considers:
            considered = self._considered(run)
            for line in () if considered is None else considered.words:
                _log.info("%s: %s", run.folder.run, line)
        elif outcome.kind == "done":
            _log.info("%s: finished; the results are in %s", run.folder.run, run.folder.path)
            run.delay, run.crashes = MIN_DELAY, 0
        elif outcome.kind == "refused":
            self._give_up(run, outcome)
        elif outcome.kind == "replaced":  # started again, it would replace the other, with other rows perhaps
            run.is_replaced = True
            _log.error("%s: %s; to train the run here, start this agent again", run.folder.run, outcome.reason)
        elif outcome.kind == "ended":
            _log.warning("%s: %s", run.folder.run, outcome.reason)
            self._decide(run, "refused", "the service", outcome.told)
            self._try_later(run, "")  # the service offers it no longer
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
        self._reply(run, "refused", outcome.told)  # there is nothing to keep of it
        run.folder.audit("refused", by="the run's process", reason=outcome.told)
        self._try_later(run, "")

    def _decide(self, run: _Run, decision: str, by: str, reason: str = "") -> None:
        considered = self._considered(run)
        number = "" if considered is None else considered.offer.id
        run.folder.decide(Decision(id=number, decision=decision, by=by, reason=reason))  # type: ignore[arg-type]

    def _reply(self, run: _Run, answer: Answer, reason: str = "") -> None:
        """Answer the service, unless it has this answer already."""
        if run.offered is None or run.replied == answer:
            return
        with self._client() as client:
            client.reply(run.folder.run, Reply(id=run.offered.id, answer=answer, reason=reason[:500]))
        run.replied = answer
        told = TOLD.get(answer)
        if told and told not in run.said:  # the service may offer the run again before it has the answer
            run.said.add(told)
            _log.info("%s: %s", run.folder.run, told)

    def _client(self) -> ServiceClient:
        return ServiceClient(self._config, patience=0.0)  # the agent retries later

    def _try_later(self, run: _Run, why: str) -> None:
        if why and why not in run.said:
            run.said = {*list(run.said)[-9:], why}
            _log.warning("%s: %s; retrying in %.0f s", run.folder.run, why, run.delay)
        run.retry_at = time.monotonic() + run.delay
        run.delay = min(2 * run.delay, MAX_DELAY)

    def _stop(self) -> None:
        """Let every process finish its step and end."""
        self._answering.stop()
        left = [run.worker for run in self._runs.values() if run.worker is not None]
        for worker in left:
            worker.stop()
        end = time.monotonic() + STOPPING
        while left and time.monotonic() < end and not self._forced:
            time.sleep(0.1)
            left = [worker for worker in left if worker.outcome() is None]
        for worker in left:
            worker.kill()
