"""A run's story, told once: `summary.json` is it; terminal, pages, Prometheus, report and library show parts of it."""

from __future__ import annotations

import platform
from typing import Any, Self

import torch
from pydantic import Field

from rankdad.common import __version__
from rankdad.common.documents import Part
from rankdad.common.errors import counted
from rankdad.common.metrics.intervals import Interval
from rankdad.common.metrics.paired_sums import Difference
from rankdad.common.metrics.sites import Spread
from rankdad.common.metrics.summary import Metrics
from rankdad.common.rounds.evaluation import PooledMetrics
from rankdad.common.spec.tasks import Metric
from rankdad.remote.results.progress import Progress


class StateLoss(Part):
    """A site that has lost its state."""

    site: str
    """Its name."""
    round: int
    """The round in which it went on without residuals."""


Values = dict[str, int | float | None]


class ReferenceMetrics(Part, extra="allow"):
    """Test metrics of what the model is measured against, over all sites."""

    samples: int = 0
    """That were tested: fewer than the model's where a site has no such reference."""
    values: Values = Field(default={})
    """By metric."""
    intervals: dict[str, Interval] = Field(default={})
    """By metric; some have none."""
    within_sites: Values = Field(default={})
    """As of the model."""


class RunMetrics(Part, extra="allow"):
    """Test metrics of all folds together; empty before the first test."""

    validation: Values | None = None
    """Of the last epoch."""
    test: Values | None = None
    """Of all samples tested so far, with their number."""
    folds: dict[str, Spread] = Field(default={})
    """By metric, over folds."""
    sites: dict[str, Spread] = Field(default={})
    """By metric, over sites."""
    intervals: dict[str, Interval] = Field(default={})
    """By metric; some have none."""
    within_sites: Values = Field(default={})
    """With each site's mean taken out; an AUC over pairs of samples of one site."""
    site_alone: Values = Field(default={})
    """AUC of a guess that gives each sample its site's share of the outcome."""
    baseline: Values = Field(default={})
    """Of a guess that knows only the site."""
    references: dict[str, ReferenceMetrics] = Field(default={})
    """By name, of those that the spec asks for."""
    differences: dict[str, dict[str, Difference]] = Field(default={})
    """The model's metrics less those of a reference, or of the guess, on the same rows: by name and metric."""
    confusion: tuple[tuple[int | tuple[int, int], ...], ...] = ()
    """Counts by true and predicted class; or by label, true and predicted value."""
    risks: tuple[dict[str, Any], ...] = ()
    """What predicted risks of each outcome are worth: see `common.metrics.risk.risk_summary`."""
    calibration_by_site: tuple[dict[str, Any], ...] = ()
    """Of each outcome's risks: see `common.metrics.site_calibration.calibration_by_site`."""
    smooth_scores: bool = False
    """Whether scores have left sites as smooth curves, so that what depends on single ones is near, not exact."""
    agreement: dict[str, Any] = Field(default={})
    """How predicted numbers differ from true ones: see `common.metrics.agreement.agreement`."""


class TriedCandidate(Part, extra="allow"):
    """A candidate of settings, as it was trained for one model."""

    weight_decay: float
    rank: int | None = None
    epochs: int
    best_epoch: int
    validation: float | None = None


class TunedModel(Part, extra="allow"):
    """What was tried for one model, and which candidate was chosen, counted from 1."""

    model: str
    samples: int
    held_out: int
    metric: Metric
    candidates: tuple[TriedCandidate, ...] = ()
    chosen: int | None = None


class RunFigures(Part, extra="ignore"):
    """Where a run stands, in figures that take no time to make; the defaults are those of a run that has just begun."""

    name: str = ""
    status: str = "running"
    """Or completed, failed, interrupted, or refused before its first round."""
    reason: str = ""
    """Why it did not complete."""
    code: str = ""
    """Of the error that ended it."""
    field: str = ""
    """That the error is about."""
    method: str = ""
    sites: tuple[str, ...] = ()
    """That send to this aggregator; regions among them count as one each."""
    regions: tuple[str, ...] = ()
    """Which of them are regions."""
    rows: dict[str, int] = Field(default={})
    """That each takes part with; none before all have said hello."""
    site_versions: dict[str, str] = Field(default={})
    """Of rankdad, that each takes part with."""
    training: str = ""
    """What the present one is called, where there are several."""
    folds: int = 1
    """How many trainings there are."""
    steps: int = 0
    """That were done, of all trainings."""
    planned_steps: int = 0
    """If no training stops early; 0 until all sites have said hello."""
    epochs: int = 0
    """That were done of the present training."""
    planned_epochs: int = 0
    best_epoch: int = 1
    """Of the present training, from 1; 0 is none."""
    best_value: float | None = None
    """Of the validation metric that chooses it."""
    seconds: float = 0.0
    """Of all rounds."""
    seconds_per_step: float = 0.0
    bytes_up: int = 0
    """Of all steps' contributions."""
    bytes_down: int = 0
    """Of all steps' updates, every site's copy."""
    bytes_up_per_site_step: float = 0.0
    bytes_down_per_site_step: float = 0.0
    dense_bytes: int = 0
    """Of one full gradient in float32."""
    times_fewer_bytes_than_dense: float | None = None
    loss: float | None = None
    """Pooled, of the last step."""
    train_loss: float | None = None
    """Pooled mean of the last whole epoch."""
    solver: dict[str, Any] = Field(default={})
    """Which one trained the model, and why: see `remote.results.solving`."""
    undertrained: dict[str, Any] = Field(default={})
    """What to say of a run whose last epoch was the best."""
    metrics: RunMetrics = RunMetrics()
    """Here of the last epoch's validation alone."""
    problems: dict[str, str] = Field(default={})
    """What sites have to mend before they can take part, by site."""
    rows_dropped: dict[str, int] = Field(default={})
    warnings: dict[str, tuple[str, ...]] = Field(default={})
    """Sites by what is odd about their data."""
    left_out: dict[str, int] = Field(default={})
    """Of how many steps each site has been left out."""
    late: dict[str, int] = Field(default={})
    """How many contributions of each site have joined a later step."""
    resets: tuple[StateLoss, ...] = ()
    drift: float | None = None
    """Largest distance of a site's weights from the aggregator's, relative to their size."""
    weights_sha256: dict[str, str] = Field(default={})
    """Final digest of every site and region."""
    aggregator_sha256: str = ""
    """Of the aggregator's own replica, which follows the updates."""

    @classmethod
    def of(cls, progress: Progress) -> Self:
        """Return where a run stands; what is called here as in its progress is the same."""
        same = {name: getattr(progress, name) for name in cls.model_fields if hasattr(progress, name)}
        return cls.model_validate(same | cls._made(progress))

    @classmethod
    def _made(cls, p: Progress) -> dict[str, Any]:
        """Return what has another name in a run's progress, or is made of several of its figures."""
        up, down = (total / max(1, p.step) / len(p.sites) for total in (p.up, p.down))
        dense = 2 * p.dense_bytes * p.batches / max(1, p.steps)  # of full gradients of every batch of a step
        return {
            "field": p.about,
            "steps": p.step,
            "planned_steps": p.steps,
            "epochs": p.epoch,
            "planned_epochs": p.epochs,
            "best_epoch": p.best_epoch + 1 if p.epoch else 0,
            "seconds_per_step": p.step_seconds / max(1, p.step),
            "bytes_up": p.up,
            "bytes_down": p.down,
            "bytes_up_per_site_step": up,
            "bytes_down_per_site_step": down,
            "times_fewer_bytes_than_dense": dense / max(1.0, up + down) if p.step else None,
            "metrics": {"validation": _values(p.validation)},
            "rows_dropped": p.dropped,
        }

    @property
    def exact(self) -> bool:
        """Whether the model was solved exactly, without steps."""
        return self.solver.get("name") == "exact"

    @property
    def members(self) -> str:
        """How many send to this aggregator, in words."""
        return counted(len(self.sites), self.member)

    @property
    def member(self) -> str:
        """What is called who sends to this aggregator."""
        return "member" if self.regions else "site"

    @property
    def where(self) -> tuple[str, ...]:
        """Which training and epoch the run is in, in words."""
        if not self.planned_steps and not self.exact:
            return ("waiting for all sites to say hello",)
        place = f"epoch {min(self.epochs + 1, self.planned_epochs)} of {self.planned_epochs}"
        if self.exact:
            place = "solved exactly, without steps"
        return (self.training, place) if self.training else (place,)

    @property
    def seconds_left(self) -> float:
        """Estimate from the mean time of all rounds per step so far."""
        return (self.planned_steps - self.steps) * self.seconds / max(1, self.steps)


class RunSummary(RunFigures):
    """All figures of a run; metrics are of the test, too."""

    coefficients: dict[str, Any] = Field(default={})
    """Of a linear model: see `remote.results.coefficients`."""
    tuning: tuple[TunedModel, ...] = ()
    """Of each model the candidates so far: see `remote.results.tuning`."""
    table1: dict[str, Any] = Field(default={})
    """What the sites' tables hold: see `remote.results.table_one`."""
    partitions: dict[str, Any] = Field(default={})
    """How many repeats of the folds there are, are run, and are different partitions at each site."""
    versions: dict[str, str] = Field(default={})
    functions: tuple[dict[str, Any], ...] = ()
    """Where functions of the users' own come from: name, distribution, version, and the sites that load them."""
    machine: dict[str, str] = Field(default={})
    rounds: dict[str, Any] = Field(default={})
    """What rounds of other packages have found, by name."""

    @classmethod
    def _made(cls, p: Progress) -> dict[str, Any]:
        made, study = super()._made(p), p.study
        tested = {"test": _values(study.pooled, study.groups()), **study.summary()}
        return made | {
            "metrics": made["metrics"] | tested,
            "versions": {"rankdad": __version__, "torch": torch.__version__, "python": platform.python_version()},
            "machine": {"processor": platform.machine(), "capability": torch.backends.cpu.get_cpu_capability()},
        }

    @property
    def repeats_left_out(self) -> int:
        """How many repeats of the folds are equal to one before at every site, and not run."""
        known = self.partitions
        return known["repeats"] - known["run"] if known else 0


def _values(metrics: PooledMetrics | Metrics | None, groups: int | None = None) -> dict[str, Any] | None:
    if metrics is None:
        return None
    values = {str(name): value for name, value in metrics.values.items()}
    counted = {} if groups is None else {"groups": groups}
    return {"samples": metrics.samples, **counted, **values, "auc_error": metrics.auc_error, "absent": metrics.absent}
