"""Where a run stands: what the live view, the status page and the summary are made of."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Any

from rankdad.common.protocol.plan import Plan
from rankdad.common.rounds.evaluation import PooledMetrics
from rankdad.common.rounds.scores import least
from rankdad.common.spec import RunSpec
from rankdad.common.spec.run import training_name
from rankdad.common.spec.tasks import TaskSpec
from rankdad.remote.results.fold_metrics import FoldMetrics

if TYPE_CHECKING:
    from rankdad.remote.barrier import Barrier

AGGREGATOR = "aggregator"  # among sites' names: no site is called that
MAX_ENDED = 1000  # epochs that wait for a view


@dataclass(frozen=True)
class Status:
    """Where a run stands at a moment. It never changes, so that other threads may read it.

    Args:
        round: that is open.
        round_began: seconds on the aggregator's clock.
        waiting_for: sites whose contributions the round waits for.
        without: sites that have departed and that the round can do without.
        oldest: first round whose update is kept for sites that come late.
        status: see `Progress`, as for what follows.
        epoch: of the next step.
        step: optimizer steps done.
        steps: of the whole run.
        problems: what keeps sites, or the aggregator, from going on.
    """

    round: int
    round_began: float
    waiting_for: tuple[str, ...]
    without: tuple[str, ...]
    oldest: int
    status: str
    epoch: int
    step: int
    steps: int
    problems: Mapping[str, str]

    @classmethod
    def of(cls, barrier: Barrier, progress: Progress, oldest: int) -> Status:
        """Return where a run stands now, whose updates are kept from a round on."""
        return cls(
            round=barrier.round,
            round_began=barrier.began,
            waiting_for=barrier.missing(),
            without=barrier.without,
            oldest=oldest,
            status=progress.status,
            epoch=progress.epoch,
            step=progress.step,
            steps=progress.steps,
            problems=progress.problems,
        )


@dataclass(frozen=True)
class Epoch:
    """An epoch that has ended.

    Args:
        training: what its training is called; "" of the only one.
        number: from 1 in every training.
        train_loss: pooled mean training loss.
        validation: pooled; None if nothing was measured.
    """

    training: str
    number: int
    train_loss: float | None
    validation: PooledMetrics | None


@dataclass
class Progress:
    """Figures of a run, kept up to date by the recorder.

    What `remote.results.run_summary.RunSummary` calls by the same name is described there.

    Args:
        name: see there, as for whatever is not named here.
        method: its name, or exact; exact or its name until policies have said which.
        task: what is predicted.
        epochs: of a fold, at most.
        folds: how many times the run trains.
        tested_folds: how many of the models are tested.
        candidates: that are trained before each model.
        study: the tests of all folds so far.
        steps: of the whole run, if it does not stop early; 0 until all sites have said hello.
        batches: of the whole run, as many as there are steps without local steps.
        steps_per_epoch: of every fold's first epoch; none until all sites have said hello.
        fold: of the next step, from 0.
        epoch: of the next step, from 0 in every fold.
        step: optimizer steps done, of all folds.
        validation: of the last epoch.
        best_epoch: so far, of the fold, from 0.
        problems: what sites have to mend before they can take part, by site, and what the aggregator's own error is.
        dropped: rows that sites have left out of their data.
        measured: trainings so far that were validated.
        unmeasured: trainings so far whose validation samples, though set aside, gave none of what is monitored.
        best_is_last: of the measured ones those whose best epoch was the last.
        step_seconds: in all steps so far.
        up: bytes of all steps' contributions so far.
        down: bytes of all steps' updates so far, every site's copy counted.
        about: field that the error is about.
        behind: of how many steps in a row each site has been left out by now.
        equal: repeats of folds that are as one before at every site, and not run.
        monitor: validation metric that chooses the best epoch.
        ended: epochs that a view has not told of yet.
    """

    name: str
    method: str
    sites: tuple[str, ...]
    task: TaskSpec
    epochs: int
    folds: int
    dense_bytes: int
    study: FoldMetrics
    steps: int = 0
    batches: int = 0
    steps_per_epoch: list[int] = field(default_factory=list)
    fold: int = 0
    epoch: int = 0
    step: int = 0
    loss: float | None = None
    train_loss: float | None = None
    validation: PooledMetrics | None = None
    best_epoch: int = 0
    problems: dict[str, str] = field(default_factory=dict)
    rows: dict[str, int] = field(default_factory=dict)
    site_versions: dict[str, str] = field(default_factory=dict)
    dropped: dict[str, int] = field(default_factory=dict)
    warnings: dict[str, list[str]] = field(default_factory=dict)
    solver: dict[str, Any] = field(default_factory=dict)
    measured: int = 0
    unmeasured: int = 0
    best_is_last: int = 0
    undertrained: dict[str, Any] = field(default_factory=dict)
    coefficients: dict[str, Any] = field(default_factory=dict)
    table1: dict[str, Any] = field(default_factory=dict)
    step_seconds: float = 0.0
    seconds: float = 0.0
    up: int = 0
    down: int = 0
    status: str = "running"
    reason: str = ""
    code: str = ""
    about: str = ""
    left_out: dict[str, int] = field(default_factory=dict)
    late: dict[str, int] = field(default_factory=dict)
    behind: dict[str, int] = field(default_factory=dict)
    resets: list[dict[str, Any]] = field(default_factory=list)
    equal: list[int] = field(default_factory=list)
    partitions: dict[str, Any] = field(default_factory=dict)
    functions: list[dict[str, Any]] = field(default_factory=list)
    rounds: dict[str, Any] = field(default_factory=dict)
    drift: float | None = None
    tested_folds: int = 1
    candidates: int = 0
    best_value: float | None = None
    tuning: list[dict[str, Any]] = field(default_factory=list)
    weights_sha256: dict[str, str] = field(default_factory=dict)
    aggregator_sha256: str = ""
    regions: list[str] = field(default_factory=list)
    monitor: str = ""
    ended: deque[Epoch] = field(default_factory=partial(deque, maxlen=MAX_ENDED))

    @classmethod
    def of(cls, spec: RunSpec, plan: Plan, sites: tuple[str, ...]) -> Progress:
        """Return the progress of a run that has not begun, of these sites or regions."""
        study = FoldMetrics(
            spec.task,
            sites,
            plan.references,
            grouped=spec.grouped,
            per_repeat=spec.folds_per_repeat,
            least=least(spec),
            regions=[name for name in sites if name in spec.federation.regions],
        )
        about = (spec.name, spec.trained_by, sites, spec.task, spec.training.epochs, spec.folds)
        made = cls(*about, plan.dense_bytes, study, tested_folds=spec.tested_folds, candidates=len(spec.candidates))
        made.monitor = str(spec.training.monitor)
        made.regions = [name for name in sites if name in spec.federation.regions]
        return made

    @property
    def training(self) -> str:
        """What the present training is called; "" where there is but one."""
        name = training_name(min(self.fold, self.folds - 1), self.tested_folds, self.folds, self.candidates)
        return name * (self.folds > 1)

    def end_epoch(self, epoch: int, *, best: bool) -> None:
        """Take note of the end of an epoch, and of whether it is the fold's best so far."""
        self.epoch = epoch + 1
        self.ended.append(Epoch(self.training, self.epoch, self.train_loss, self.validation))
        if best:
            self.best_epoch = epoch
            self.best_value = self.validation.values.get(self.monitor) if self.validation else None

    def note_problem(self, name: str, problem: str) -> bool:
        """Show what keeps a site, or the aggregator, from going on; "" removes it. Return whether that is new."""
        if self.problems.get(name, "") == problem:
            return False
        others = {known: said for known, said in self.problems.items() if known != name}
        self.problems = others | {name: problem} if problem else others  # a new value: others may be reading
        return True

    def note_drift(self, drift: float) -> None:
        """Take note of how far the sites' weights are apart."""
        self.drift = max(self.drift or 0.0, drift)

    def state(self) -> dict[str, Any]:
        """Return all figures as JSON."""
        others = ("task", "study", "validation", "ended")
        figures = {name: value for name, value in vars(self).items() if name not in others}
        validation = self.validation and self.validation.model_dump(exclude={"scores"})
        return {**figures, "study": self.study.state(), "validation": validation}

    def restore(self, state: Mapping[str, Any]) -> None:
        """Take over the figures that `state` has returned."""
        for name, value in state.items():
            if name == "study":
                self.study.restore(value)
            elif name == "validation":
                self.validation = value and PooledMetrics(**value)
            else:
                setattr(self, name, value)
        self.sites = tuple(self.sites)

    def warn(self, kind: str, sites: Iterable[str]) -> None:
        """Take note of what is odd about some sites' data; a site is named once, however often it is."""
        known = self.warnings.get(kind, [])
        if found := list(dict.fromkeys([*known, *sites])):
            self.warnings[kind] = found
