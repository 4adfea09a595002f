"""A run's summary: one value behind `summary.json`, terminal, pages, Prometheus, report and library."""

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
from rankdad.remote.results.pace import pace
from rankdad.remote.results.progress import Progress


class StateLoss(Part):
    """A site that lost its state."""

    site: str
    round: int
    """The round in which it continued without residuals."""


Values = dict[str, int | float | None]


class ReferenceMetrics(Part, extra="allow"):
    """Test metrics of a reference over all sites."""

    samples: int = 0
    """Tested samples; fewer than the model's if a site lacks the reference."""
    values: Values = Field(default={})
    """By metric."""
    intervals: dict[str, Interval] = Field(default={})
    """By metric, where one is known."""
    within_sites: Values = Field(default={})
    """See `RunMetrics`."""


class RunMetrics(Part, extra="allow"):
    """Test metrics of all folds together; empty before the first test."""

    validation: Values | None = None
    """Of the last epoch."""
    test: Values | None = None
    """Of all samples tested so far, with `samples`, their number."""
    folds: dict[str, Spread] = Field(default={})
    """By metric, over folds."""
    sites: dict[str, Spread] = Field(default={})
    """By metric, over sites."""
    intervals: dict[str, Interval] = Field(default={})
    """By metric, where one is known."""
    within_sites: Values = Field(default={})
    """After subtracting each site's mean; the AUC is over pairs of samples of the same site."""
    site_alone: Values = Field(default={})
    """AUC of predicting each sample by its site's prevalence."""
    baseline: Values = Field(default={})
    """Of a guess that knows only the site."""
    references: dict[str, ReferenceMetrics] = Field(default={})
    """By name, for the references in the spec."""
    differences: dict[str, dict[str, Difference]] = Field(default={})
    """The model's metrics minus those of a reference or of the guess, on the same rows, by name and metric."""
    confusion: tuple[tuple[int | tuple[int, int], ...], ...] = ()
    """Counts by true and predicted class; or by label, true and predicted value."""
    risks: tuple[dict[str, Any], ...] = ()
    """Of each outcome's predicted risks: see `common.metrics.risk.risk_summary`."""
    calibration_by_site: tuple[dict[str, Any], ...] = ()
    """Of each outcome's risks: see `common.metrics.site_calibration.calibration_by_site`."""
    smooth_scores: bool = False
    """Whether sites sent smoothed scores, so that figures at single scores are approximate."""
    agreement: dict[str, Any] = Field(default={})
    """Of predicted with true numbers: see `common.metrics.agreement.agreement`."""


class TriedCandidate(Part, extra="allow"):
    """A candidate of settings, trained for one model."""

    weight_decay: float
    rank: int | None = None
    epochs: int
    best_epoch: int
    validation: float | None = None


class TunedModel(Part, extra="allow"):
    """The candidates tried for one model, and the number of the chosen one, from 1."""

    model: str
    samples: int
    held_out: int
    metric: Metric
    candidates: tuple[TriedCandidate, ...] = ()
    chosen: int | None = None


class RunFigures(Part, extra="ignore"):
    """A run's progress in figures that are cheap to compute; defaults are those of a new run."""

    name: str = ""
    status: str = "running"
    """`running`, `completed`, `failed`, `interrupted`, or `refused` before its first round."""
    reason: str = ""
    """Why it did not complete."""
    code: str = ""
    """Code of the error that ended it."""
    field: str = ""
    """Field of that error."""
    method: str = ""
    sites: tuple[str, ...] = ()
    """Direct members of this aggregator; a region counts as one."""
    regions: tuple[str, ...] = ()
    """Members that are regions."""
    rows: dict[str, int] = Field(default={})
    """Rows by site; empty before all have said hello."""
    site_versions: dict[str, str] = Field(default={})
    """Version of rankdad by site."""
    training: str = ""
    """Name of the present training, if there are several."""
    folds: int = 1
    """Number of trainings."""
    steps: int = 0
    """Done in all trainings."""
    planned_steps: int = 0
    """Without early stopping; 0 until all sites have said hello."""
    epochs: int = 0
    """Done in the present training."""
    planned_epochs: int = 0
    best_epoch: int = 1
    """Of the present training, from 1; 0 if there is none."""
    best_value: float | None = None
    """Of the monitored validation metric."""
    seconds: float = 0.0
    """Of all rounds."""
    seconds_per_step: float = 0.0
    pace: float = Field(default=0.0, exclude=True)
    """Seconds per step with all rounds but those of an outage: see `remote.results.pace`."""
    bytes_up: int = 0
    """Of all steps' contributions."""
    bytes_down: int = 0
    """Of all steps' updates, summed over sites."""
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
    """See `remote.results.solving`."""
    undertrained: dict[str, Any] = Field(default={})
    """Warning for a run whose last epoch was the best."""
    metrics: RunMetrics = RunMetrics()
    """Only of the last epoch's validation."""
    problems: dict[str, str] = Field(default={})
    """What blocks each site."""
    rows_dropped: dict[str, int] = Field(default={})
    warnings: dict[str, tuple[str, ...]] = Field(default={})
    """Sites by kind of warning about their data."""
    left_out: dict[str, int] = Field(default={})
    """Number of missed steps by site."""
    late: dict[str, int] = Field(default={})
    """Number of contributions by site that joined a later step."""
    resets: tuple[StateLoss, ...] = ()
    drift: float | None = None
    """Largest distance of a site's weights from the aggregator's, relative to their size."""
    weights_sha256: dict[str, str] = Field(default={})
    """Final digest of every site and region."""
    aggregator_sha256: str = ""
    """Of the aggregator's replica."""

    @classmethod
    def of(cls, progress: Progress) -> Self:
        """Take a run's figures from its progress; equal names mean the same."""
        same = {name: getattr(progress, name) for name in cls.model_fields if hasattr(progress, name)}
        return cls.model_validate(same | cls._derived(progress))

    @classmethod
    def _derived(cls, p: Progress) -> dict[str, Any]:
        """Compute the fields that have another name in the progress, or derive from several."""
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
            "pace": pace(p.counts, p.latest) or p.seconds / max(1, p.step),
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
        """The number of members of this aggregator, in words."""
        return counted(len(self.sites), self.member)

    @property
    def member(self) -> str:
        """The noun for a member of this aggregator."""
        return "member" if self.regions else "site"

    @property
    def where(self) -> tuple[str, ...]:
        """The present training and epoch, in words."""
        if not self.planned_steps and not self.exact:
            return ("waiting for all sites to say hello",)
        place = f"epoch {min(self.epochs + 1, self.planned_epochs)} of {self.planned_epochs}"
        if self.exact:
            place = "solved exactly, without steps"
        return (self.training, place) if self.training else (place,)

    @property
    def seconds_left(self) -> float:
        """Estimated remaining time, from the pace."""
        return (self.planned_steps - self.steps) * self.pace


class RunSummary(RunFigures):
    """All figures of a run, with the metrics of its tests."""

    coefficients: dict[str, Any] = Field(default={})
    """Of a linear model: see `remote.results.coefficients`."""
    tuning: tuple[TunedModel, ...] = ()
    """Candidates by model so far: see `remote.results.tuning`."""
    table1: dict[str, Any] = Field(default={})
    """See `remote.results.table_one`."""
    partitions: dict[str, Any] = Field(default={})
    """Number of repeats that were asked for, were run, and differ at each site."""
    versions: dict[str, str] = Field(default={})
    functions: tuple[dict[str, Any], ...] = ()
    """Users' functions: name, distribution, version, and the sites that load them."""
    machine: dict[str, str] = Field(default={})
    rounds: dict[str, Any] = Field(default={})
    """Results of rounds from other packages, by name."""

    @classmethod
    def _derived(cls, p: Progress) -> dict[str, Any]:
        made, study = super()._derived(p), p.study
        tested = {"test": _values(study.pooled, study.groups()), **study.summary()}
        return made | {
            "metrics": made["metrics"] | tested,
            "versions": {"rankdad": __version__, "torch": torch.__version__, "python": platform.python_version()},
            "machine": {"processor": platform.machine(), "capability": torch.backends.cpu.get_cpu_capability()},
        }

    @property
    def repeats_left_out(self) -> int:
        """Number of repeats that equal an earlier one at every site and are skipped."""
        known = self.partitions
        return known["repeats"] - known["run"] if known else 0


def _values(metrics: PooledMetrics | Metrics | None, groups: int | None = None) -> dict[str, Any] | None:
    if metrics is None:
        return None
    values = {str(name): value for name, value in metrics.values.items()}
    counted = {} if groups is None else {"groups": groups}
    return {"samples": metrics.samples, **counted, **values, "auc_error": metrics.auc_error, "absent": metrics.absent}
