"""What a run's tuning has tried and chosen, as `summary.json` has it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from rankdad.common.run.study import chosen
from rankdad.common.spec import RunSpec

Samples = Sequence[Sequence[int]]  # [folds, 3]


def began(spec: RunSpec, samples: Sequence[Samples]) -> list[dict[str, Any]]:
    """Return an entry for every model that the run makes, before anything is tried; none without tuning.

    Args:
        spec: the run.
        samples: of every site: how many each training trains on, validates and tests with.
    """
    entries, each = [], 1 + len(spec.candidates)
    for first in range(0, spec.folds if spec.candidates else 0, each):
        tried, rows = (sum(site[fold][0] for site in samples) for fold in (first, first + each - 1))
        entries.append(
            {
                "model": spec.training_name(first + each - 1) or "model",
                "samples": rows,
                "held_out": rows - tried,
                "metric": spec.training.monitor,
                "candidates": [],
                "chosen": None,
            }
        )
    return entries


def note(spec: RunSpec, entries: list[dict[str, Any]], fold: int, value: float | None, epoch: int) -> None:
    """Add a candidate that has been trained to its model's entry, and after the last which one is chosen.

    Args:
        spec: the run.
        entries: as `began` made them; changed in place.
        fold: which of the run's trainings it was.
        value: its best validation metric.
        epoch: when that was, from 0.
    """
    model, candidate = spec.place(fold)
    assert candidate is not None
    tried = entries[model]["candidates"]
    settings = spec.with_settings(spec.candidates[candidate])
    named = {
        "weight_decay": settings.training.optimizer.weight_decay,
        "rank": getattr(settings.method, "rank", None),
        "epochs": settings.training.epochs,
    }
    tried.append({**named, "best_epoch": epoch + 1, "validation": value})  # epochs as people count them
    if len(tried) == len(spec.candidates):
        entries[model]["chosen"] = 1 + chosen(spec, [(one["validation"], one["best_epoch"]) for one in tried])
