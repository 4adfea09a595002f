"""Progress of a run, from which the live view, status page and summary are built."""

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
from rankdad.remote.results.pace import LATEST

if TYPE_CHECKING:
    from rankdad.remote.barrier import Barrier

AGGREGATOR = "aggregator"  # no site may have this name
MAX_ENDED = 1000  # epochs not yet shown by a view


@dataclass(frozen=True)
class Status:
    """Immutable snapshot of a run's progress, which other threads may read.

    Args:
        round: the open round.
        round_began: seconds on the aggregator's clock.
        waiting_for: sites whose contributions are missing.
        without: departed sites that the round does not need.
        oldest: first round whose update is still stored.
        status: see `Progress`, as for all fields below.
        epoch: of the next step.
        step: optimizer steps done.
        steps: planned steps of the whole run.
        problems: what blocks a site or the aggregator, by name.
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
        """Take a snapshot."""
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
    """A completed epoch.

    Args:
        training: name of its training; "" if there is only one.
        number: from 1 in every training.
        train_loss: pooled mean training loss.
        validation: pooled metrics; None if nothing was measured.
    """

    training: str
    number: int
    train_loss: float | None
    validation: PooledMetrics | None


@dataclass
class Progress:
    """Figures of a run, kept up to date by the recorder.

    `remote.results.run_summary.RunSummary` describes fields of the same name that are missing here.

    Args:
        method: its name, `exact`, or both until policies decide.
        task: the prediction task.
        epochs: maximum for each fold.
        folds: number of trainings.
        tested_folds: number of tested models.
        candidates: number of trainings before each model.
        study: tests of all folds so far.
        steps: planned for the whole run; 0 until all sites have said hello.
        batches: of the whole run; equals `steps` without local steps.
        steps_per_epoch: of every fold's first epoch; empty until all sites have said hello.
        fold: of the next step, from 0.
        epoch: of the next step, from 0 in every fold.
        step: optimizer steps done in all folds.
        validation: of the last epoch.
        best_epoch: of the present fold, from 0.
        problems: what blocks a site or the aggregator, by name.
        dropped: rows excluded by sites.
        measured: validated trainings.
        unmeasured: trainings with validation samples, but without a value of the monitored metric.
        best_is_last: measured trainings whose best epoch was the last.
        step_seconds: total of all steps.
        counts: completed rounds by kind and exchange, without hello.
        latest: seconds of the last of them.
        up: bytes of the contributions to all steps.
        down: bytes of the updates of all steps, summed over sites.
        about: field of the error that ended the run.
        behind: consecutive steps that each site has missed.
        equal: repeats that equal an earlier one at every site and are skipped.
        monitor: validation metric that selects the best epoch.
        ended: epochs not yet shown by a view.
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
    counts: dict[str, int] = field(default_factory=dict)
    latest: dict[str, list[float]] = field(default_factory=dict)
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
        """Create the progress of a run that has not begun, for the given sites or regions."""
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
        """Name of the present training; "" if there is only one."""
        name = training_name(min(self.fold, self.folds - 1), self.tested_folds, self.folds, self.candidates)
        return name * (self.folds > 1)

    def end_epoch(self, epoch: int, *, best: bool) -> None:
        """Record the end of an epoch, and whether it is the best of its fold so far."""
        self.epoch = epoch + 1
        self.ended.append(Epoch(self.training, self.epoch, self.train_loss, self.validation))
        if best:
            self.best_epoch = epoch
            self.best_value = self.validation.values.get(self.monitor) if self.validation else None

    def note_problem(self, name: str, problem: str) -> bool:
        """Set what blocks a site or the aggregator; "" clears it. Return whether it changed."""
        if self.problems.get(name, "") == problem:
            return False
        others = {known: old for known, old in self.problems.items() if known != name}
        self.problems = others | {name: problem} if problem else others  # not in place: other threads read it
        return True

    def note_round(self, kind: str, seconds: float) -> None:
        """Count a round, and the seconds it took."""
        self.seconds += seconds
        self.latest = self.latest | {kind: [*self.latest.get(kind, ()), seconds][-LATEST:]}  # other threads read it
        self.counts = self.counts | {kind: self.counts.get(kind, 0) + 1}

    def note_drift(self, drift: float) -> None:
        """Keep the largest distance between sites' weights."""
        self.drift = max(self.drift or 0.0, drift)

    def state(self) -> dict[str, Any]:
        """Return all figures as JSON for `restore`."""
        others = ("task", "study", "validation", "ended")
        figures = {name: value for name, value in vars(self).items() if name not in others}
        validation = self.validation and self.validation.model_dump(exclude={"scores"})
        return {**figures, "study": self.study.state(), "validation": validation}

    def restore(self, state: Mapping[str, Any]) -> None:
        """Restore the figures that `state` returned."""
        for name, value in state.items():
            if name == "study":
                self.study.restore(value)
            elif name == "validation":
                self.validation = value and PooledMetrics(**value)
            else:
                setattr(self, name, value)
        self.sites = tuple(self.sites)

    def warn(self, kind: str, sites: Iterable[str]) -> None:
        """Add sites to a kind of warning, each once."""
        known = self.warnings.get(kind, [])
        if found := list(dict.fromkeys([*known, *sites])):
            self.warnings[kind] = found
