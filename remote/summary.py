"""`summary.json`: the figures of a run."""

from __future__ import annotations

import platform
from typing import Any

import torch

from rankdad.common import __version__
from rankdad.common.metrics.summary import Metrics
from rankdad.common.rounds.evaluation import PooledMetrics
from rankdad.remote.progress import Progress


def summary(progress: Progress) -> dict[str, Any]:
    """Return the figures of a run as JSON."""
    return {
        "name": progress.name,
        "status": progress.status,
        "reason": progress.reason,
        "code": progress.code,
        "field": progress.about,
        "method": progress.method,
        "sites": list(progress.sites),
        "regions": progress.regions,
        "steps": progress.step,
        "epochs": progress.epoch,
        "best_epoch": progress.best_epoch + 1 if progress.epoch else 0,  # as people count them; 0 is none
        "seconds": progress.seconds,
        "seconds_per_step": progress.step_seconds / max(1, progress.step),
        "bytes_up_per_site_step": progress.per_site_step(progress.up),
        "bytes_down_per_site_step": progress.per_site_step(progress.down),
        "dense_bytes": progress.dense_bytes,
        "times_fewer_bytes_than_dense": progress.ratio if progress.step else None,
        "solver": progress.solver,
        "undertrained": progress.undertrained,
        "train_loss": progress.train_loss,
        "folds": progress.folds,
        "partitions": progress.partitions,
        "metrics": {
            "validation": _metrics(progress.validation),
            "test": _metrics(progress.study.pooled, progress.study.groups()),
            **progress.study.summary(),
        },
        "coefficients": progress.coefficients,
        "tuning": progress.tuning,
        "problems": progress.problems,
        "rows_dropped": progress.dropped,
        "warnings": progress.warnings,
        "table1": progress.table1,
        "left_out": progress.left_out,
        "late": progress.late,
        "resets": progress.resets,
        "drift": progress.drift,
        "weights_sha256": progress.weights_sha256,
        "aggregator_sha256": progress.aggregator_sha256,
        "versions": {"rankdad": __version__, "torch": torch.__version__, "python": platform.python_version()},
        "functions": progress.functions,
        **({"rounds": progress.rounds} if progress.rounds else {}),
        "machine": {"processor": platform.machine(), "capability": torch.backends.cpu.get_cpu_capability()},
    }


def _metrics(metrics: PooledMetrics | Metrics | None, groups: int | None = None) -> dict[str, Any] | None:
    if metrics is None:
        return None
    values = {str(name): value for name, value in metrics.values.items()}
    counted = {} if groups is None else {"groups": groups}
    return {"samples": metrics.samples, **counted, **values, "auc_error": metrics.auc_error, "absent": metrics.absent}
