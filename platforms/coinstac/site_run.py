"""A trainer behind a platform's iterations, and its persistent state.

The node's output folder has all that is needed to resume: the trainer's checkpoints, and the updates since then.
"""

from __future__ import annotations

import secrets
from collections.abc import Callable, Collection
from functools import partial
from pathlib import Path

from rankdad.common.data import SiteData, read_site
from rankdad.common.documents import validate
from rankdad.common.errors import RankdadError
from rankdad.common.files import write_json, write_whole
from rankdad.common.models import build_network
from rankdad.common.policy_checks import check_run
from rankdad.common.protocol.messages import Ask
from rankdad.common.protocol.plan import Plan, make_plan
from rankdad.common.run.artifacts import save_model
from rankdad.common.run.batches import run_steps
from rankdad.common.run.checkpoints import between
from rankdad.common.run.replica import Replica
from rankdad.common.run.state import RunState
from rankdad.common.spec import RunSpec
from rankdad.local.admission import admitted
from rankdad.local.notices import Notices
from rankdad.local.observer import Observer
from rankdad.local.prediction import write_predictions
from rankdad.local.privacy.assigning import PartAssigner, secret_of_files
from rankdad.local.site import site_of
from rankdad.local.starting import loaded_state, save_state
from rankdad.local.threads import use_threads
from rankdad.local.timings import Timings
from rankdad.local.training import Result
from rankdad.platforms.coinstac import outputs
from rankdad.platforms.coinstac.mounts import Member
from rankdad.remote.persistence import CHECKPOINTS, LedgerOptions, Persistence
from rankdad.remote.records import Entry, Record, Retention
from rankdad.remote.run_file import names_of
from rankdad.remote.run_reader import FILE

BEGINNING = "beginning"  # file with the seed of batches, which allows repeating a run
STATE = (CHECKPOINTS, *names_of(FILE), BEGINNING)  # the run's state in a node's output folder
INDEX = '<!DOCTYPE html><meta charset="utf-8"><meta http-equiv="refresh" content="0; url=report.html">\n'
Say = Callable[[str], None]


class SiteRun:
    """A site's trainer and its persistent state.

    Args:
        opened: the run.
        member: the site's member.
        folder: the node's output folder.
        allow_factories: see `platforms.coinstac.site_node.SiteNode`.
        say: see `platforms.coinstac.site_node.SiteNode`.
    """

    def __init__(
        self, opened: outputs.Opened, member: Member, folder: Path, allow_factories: Collection[str], say: Say
    ) -> None:
        spec = self._spec = validate(RunSpec, opened.run)
        self._folder, self._site, self._say = folder, member.name, say
        use_threads(spec.training.threads)
        check_run(member.policy, spec.at(member.name), make_plan(spec, build_network(spec, allow_factories)))
        replica = Replica(spec, allow_factories, weights=member.model)
        plan = self._plan = make_plan(spec, replica.model)
        data = read_data(spec, plan, member, beginning_of(folder))
        options = LedgerOptions(retention=Retention.TAIL)
        self._every = options.every
        self._persistence = Persistence(folder, plan, opened.id, options, owner=member.name, data_sha256=data.sha256())
        run_state = self._run_state = RunState(spec, plan, replica)
        self._state = loaded_state(member.name, run_state, self._persistence.load(run_state))
        self._ledger = self._persistence.file
        self._ledger.check_end(run_state.round)
        self._began = run_state.round
        # After one replaced process, others may follow: an early checkpoint shortens their replay.
        resumed = self._due = self._began > 0 or self._ledger.update(0) is not None
        self._timings = Timings(folder / "timings.csv", again=resumed)
        observer = Observer(
            lap=self._timings.lap,
            between_steps=self._between_steps,
            tested=partial(write_predictions, folder / "predictions", spec, data),
            notice=Notices(folder, lambda line: say(f"warning: {line}")).add,
            answered=self._answered,
        )
        self._trainer = site_of(spec, plan, data, self._state, member.policy, observer)
        self._results: outputs.SiteResults | None = None
        self._take(None)
        if resumed:
            say(f"{self._site}: resumed at step {run_state.steps}, round {run_state.round}")

    def take(self, message: outputs.Updated) -> None:
        """Take the update of the present round; a repeated one is ignored.

        Raises:
            RankdadError: it is of another run or of a later round.
        """
        self._timings.lap("wait")
        self._results = message.results or self._results
        due = self._run_state.round
        if message.round < due:
            return
        if message.round > due or self._trainer.due is None:
            raise RankdadError(
                f"got the update of round {message.round}, but this site is in round {due}", code="round-unexpected"
            )
        self._take(message.body)

    def _answered(self, round_: int, body: bytes) -> None:
        """Store an update before it is applied, for replay."""
        if self._ledger.update(round_) is None:
            self._ledger.append(Record(Entry.UPDATE, round_, body=body))
            self._ledger.commit()

    def _take(self, update: bytes | None) -> None:
        """Run the trainer until it needs an update that is not stored."""
        self._trainer.take(update)
        while isinstance(self._trainer.due, Ask):
            self._trainer.take(self._ledger.update(self._trainer.due.round))

    def _between_steps(self) -> None:
        """Write a checkpoint if one is due, except during replay."""
        run_state = self._run_state
        due = run_state.round > self._began and (self._due or run_state.steps % between(run_state, self._every) == 0)
        if due and self._ledger.update(run_state.round) is None:
            self._due = False
            save_state(self._persistence, self._state)

    def reply(self) -> outputs.Reply:
        """Return the next contribution, or the end of the run."""
        body = self._trainer.say()
        if body is None:
            result = self._trainer.result
            return outputs.reply(self._finished(result), progress=f"{self._site}: the results are written")
        assert isinstance(body, bytes)
        return outputs.reply(outputs.Sent(round=self._run_state.round, body=body), progress=self._progress())

    def unlock(self) -> None:
        """Let another process work until `relock`: the platform may start the next one before this one ends."""
        self._persistence.file.unlock()

    def relock(self) -> bool:
        """Lock again; return whether no other process has worked."""
        return self._persistence.file.relock()

    def close(self) -> None:
        """Close the files."""
        self._timings.close()
        self._persistence.close()

    def _progress(self) -> str:
        run_state = self._run_state
        steps = 0
        if run_state.roster:  # after the last fold, its own
            samples = run_state.roster[min(run_state.fold, self._plan.folds - 1)]
            steps = run_steps(self._spec, samples, run_state.epochs)[0]
        fold = f"fold {run_state.fold + 1}, " * (self._plan.folds > 1)
        if run_state.exact:
            return f"{self._site}: {fold}{run_state.where}"
        return f"{self._site}: {fold}step {run_state.replica.step} of {steps or '?'}, epoch {run_state.epoch + 1}"

    def _finished(self, result: Result) -> outputs.Done:
        """Write this site's results; it does not run again."""
        save_model(self._folder / "model", self._spec, result.best, result.final, result.fit, result.own)
        if self._results is not None:
            write_results(self._folder, self._results)
        trained = f"after {result.epochs} epochs" if result.epochs else "with an exact solution"
        self._say(f"{self._site}: done {trained}")
        return outputs.Done(weights_sha256=result.weights_sha256[self._site])


def write_results(folder: Path, results: outputs.SiteResults) -> None:
    """Write a run's results for the platform's app: index.html, and pictures by path."""
    write_json(folder / "summary.json", results.summary)
    texts = {"metrics.csv": results.metrics, "report.html": results.report, "index.html": INDEX}
    for name, text in texts.items():
        (folder / name).write_text(text, encoding="utf-8")
    (folder / outputs.FIGURES).mkdir(exist_ok=True)
    for name, png in results.figures.items():
        (folder / outputs.FIGURES / f"{name}.png").write_bytes(png)


def beginning_of(folder: Path) -> str:
    """Return the run's stored seed of batches; draw one for a new run.

    Raises:
        UserError: it cannot be written.
    """
    path = folder / BEGINNING
    if not path.exists():
        write_whole(path, secrets.token_hex(16), private=True)
    return path.read_text(encoding="utf-8")


def read_data(spec: RunSpec, plan: Plan, member: Member, beginning: str = "") -> SiteData:
    """Read the site's samples as its policy allows.

    Args:
        spec: the run.
        plan: the run's.
        member: the site.
        beginning: seed that distinguishes runs of the same specification.

    Raises:
        DataError: the data cannot be used.
        PolicyError: the policy refuses the run.
    """
    check_run(member.policy, spec.at(member.name), plan)
    assert member.data is not None
    assigner = None
    if not member.policy.keyed_folds:  # without a persistent folder, secret and patients determine the parts
        policy, secret = member.policy, member.secret or secret_of_files(member.data)
        assigner = PartAssigner(
            spec,
            secret,
            policy.min_rows,
            level=policy.min_level,
            by=policy.strata,
            share=policy.largest_share,
            beginning=beginning,
        )
    data = read_site(spec, member.data, spec.federation.sites.index(member.name), assigner=assigner)
    return admitted(member.policy, spec.at(member.name), plan, data)
