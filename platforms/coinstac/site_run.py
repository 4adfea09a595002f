"""A trainer behind a platform's iterations, and what of it survives a process.

All that is needed to go on lies in the node's output folder: the trainer's checkpoints, and a log of the updates since.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from pathlib import Path

from torch import Tensor

from rankdad.common.artifacts import save_model
from rankdad.common.checkpoints import EVERY, Checkpoints
from rankdad.common.documents import validate
from rankdad.common.errors import DataError, PolicyError, RankdadError, UserError
from rankdad.common.files import write_json
from rankdad.common.messages import Ask, Message
from rankdad.common.plan import Plan, make_plan
from rankdad.common.protocol import pack, unpack
from rankdad.common.replica import Replica
from rankdad.common.run.state import RunState
from rankdad.common.spec import RunSpec
from rankdad.local.admission import admitted
from rankdad.local.data import SiteData, read_site
from rankdad.local.notices import Notices
from rankdad.local.threads import use_threads
from rankdad.local.timings import Timings
from rankdad.local.training import Result, TrainingState, train
from rankdad.platforms.coinstac.mounts import Member, refused
from rankdad.platforms.coinstac.outputs import (
    FIGURES,
    Done,
    NodeState,
    Opened,
    Reply,
    Results,
    Sent,
    Updated,
    decoded,
    encoded,
    output,
)
from rankdad.remote.ledger import Ledger, Retention
from rankdad.remote.records import NOBODY, Entry, Record

INPUTS, OPENED = "inputs.json", "opened.json"  # in a node's output folder: what only its first iterations are told
CHECKPOINTS, UPDATES = "checkpoints", "updates"  # there too: where it stands
ERROR = "error.txt"  # there too: what is wrong with this site's inputs or data
INDEX = '<!DOCTYPE html><meta charset="utf-8"><meta http-equiv="refresh" content="0; url=report.html">\n'
Say = Callable[[str], None]


class SiteRun:
    """A trainer, and what survives it.

    Args:
        opened: the run.
        member: whose site it is.
        state: of the node.
        allow_factories: see `platforms.coinstac.site_node.SiteNode`.
        say: see `platforms.coinstac.site_node.SiteNode`.
    """

    def __init__(
        self, opened: Opened, member: Member, state: NodeState, allow_factories: Collection[str], say: Say
    ) -> None:
        spec = self._spec = validate(RunSpec, opened.run)
        self._folder, self._site, self._say = Path(state.outputDirectory), member.name, say
        use_threads(spec.training.threads)
        replica = Replica(spec, allow_factories)
        plan = self._plan = make_plan(spec, replica.model)
        try:
            data = read_data(spec, plan, member)
        except (DataError, PolicyError) as error:
            problem = refused(error, member)
            (self._folder / ERROR).write_text(f"{problem.text}\n    {problem.details}\n", encoding="utf-8")
            say(f"error: {error}")
            raise UserError(problem.text) from None
        self._checkpoints = Checkpoints(self._folder / CHECKPOINTS, plan, self._site, data_sha256=data.sha256())
        self._log = Ledger(self._folder / UPDATES, plan.sha256(), opened.id)
        run_state = self._run_state = RunState(spec, plan, replica)
        found = self._checkpoints.load(run_state)
        if found is None and self._log.oldest > 0:
            raise UserError(f"{self._checkpoints.folder}: no checkpoint is readable, and the log goes on from one")
        self._log.check_end(run_state.round)
        self._state = TrainingState(self._site, run_state, found[1] if found else {})
        self._began = run_state.round
        # Where one process was replaced, the next may be too: it then begins close to where it ends.
        self._due = self._log.update(run_state.round) is not None or found is not None
        self._timings = Timings(self._folder / "timings.csv", again=self._due)

        def tested(fold: int, outputs: Tensor) -> None:
            from rankdad.local.prediction import (
                write_predictions,  # which takes pandas, and half a second of every process
            )

            write_predictions(self._folder / "predictions", spec, data, fold, outputs)

        notices, lap = Notices(self._folder, lambda line: say(f"warning: {line}")), self._timings.lap
        self._training = train(
            spec, plan, data, self._state, member.policy, lap, self._between_steps, tested, notices.add
        )
        self._pending: Message | None = None
        self._result: Result | None = None
        self._results: Results | None = None
        resumed = self._due
        self._go_on(None)
        if resumed:
            say(f"{self._site}: goes on from step {run_state.steps}, round {run_state.round}")

    def take(self, message: Updated) -> None:
        """Take the update of the round to which this site has contributed; one that was taken before changes nothing.

        Raises:
            RankdadError: it is none of this run's, or that of a later round.
        """
        self._timings.lap("wait")
        self._results = message.results or self._results
        due = self._run_state.round
        if message.round > due or self._pending is None:
            if message.round >= due:
                raise RankdadError(f"got the update of round {message.round}, but this site stands in round {due}")
            return
        if message.round < due:
            return
        body = decoded(message.body)
        update = unpack(body, self._plan, up=False)
        self._log.append(Record(Entry.UPDATE, message.round, NOBODY, body))
        self._go_on(update)

    def _go_on(self, update: Message | None) -> None:
        """Let the trainer work until it needs an update that is not there yet."""
        self._timings.lap("pack")
        try:
            message = self._training.send(update)
            while isinstance(message, Ask):
                known = self._log.update(message.round)
                message = self._training.send(None if known is None else unpack(known, self._plan, up=False))
            self._pending = message
        except StopIteration as stop:
            self._pending, self._result = None, stop.value

    def _between_steps(self) -> None:
        run_state = self._run_state
        if self._log.update(run_state.round) is not None:
            return  # the log reaches further, in one piece
        if run_state.round > self._began and (self._due or run_state.steps % EVERY == 0):
            self._due = False
            self._checkpoints.save(run_state, self._state.residuals)
            self._log.begin(run_state.round, Retention.TAIL)
            oldest = self._checkpoints.oldest()
            if oldest is not None:
                self._log.retire(oldest, Retention.TAIL)

    def reply(self) -> Reply:
        """Return the contribution to the next round, or that the results are written."""
        if self._result is not None:
            return Reply(output(self._finished(self._result), progress=f"{self._site}: the results are written"))
        assert self._pending is not None
        body = pack(self._pending, self._plan, up=True)
        self._timings.lap("pack")
        return Reply(output(Sent(round=self._pending.round, body=encoded(body)), progress=self._progress()))

    def leave(self) -> None:
        """Let another process work until `back`: the platform may start the next one before this one ends."""
        self._log.unlock()

    def back(self) -> bool:
        """Go on; return whether nobody else has."""
        return self._log.relock()

    def close(self) -> None:
        """Let go of the files."""
        self._timings.close()
        self._log.close()

    def _progress(self) -> str:
        run_state = self._run_state
        steps = self._spec.training.epochs * run_state.replica.steps_per_epoch if run_state.roster else 0
        fold = f"fold {run_state.fold + 1}, " * (self._plan.folds > 1)
        return f"{self._site}: {fold}step {run_state.replica.step} of {steps or '?'}, epoch {run_state.epoch + 1}"

    def _finished(self, result: Result) -> Done:
        """Write this site's results: it does not run again after the aggregator has ended the run."""
        save_model(self._folder / "model", self._spec, result.best, result.final, result.fit, result.own)
        if self._results is not None:
            self._write(self._results)
        self._say(f"{self._site}: done after {result.epochs} epochs")
        return Done(weights_sha256=result.weights_sha256[self._site])

    def _write(self, results: Results) -> None:
        """Write what the aggregator has found, where the platform's app shows it: index.html, and pictures by path."""
        write_json(self._folder / "summary.json", results.summary)
        texts = {"metrics.csv": results.metrics, "report.html": results.report, "index.html": INDEX}
        for name, text in texts.items():
            (self._folder / name).write_text(text, encoding="utf-8")
        (self._folder / FIGURES).mkdir(exist_ok=True)
        for name, png in results.figures.items():
            (self._folder / FIGURES / f"{name}.png").write_bytes(decoded(png))


def read_data(spec: RunSpec, plan: Plan, member: Member) -> SiteData:
    """Read the site's samples, as its policy allows.

    Raises:
        DataError: the data cannot be used.
        PolicyError: the policy refuses the run.
    """
    member.policy.check(spec, plan)
    assert member.data is not None
    data = read_site(spec, member.data, spec.federation.sites.index(member.name))
    return admitted(member.policy, spec, plan, data)
