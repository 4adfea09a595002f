"""Panels: a data set with a network, trained as in the paper."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from benchmarks.paper.compared_methods import ComparedMethod

FOLDS = 5  # of the cross-validation
SITES = ("site-1", "site-2", "site-3", "site-4")
BATCH, RATE = 64, 1e-4  # samples per site and step; Adam's learning rate


@dataclass(frozen=True)
class Panel:
    """One data set with one network.

    Args:
        key: its name in tables.
        title: its name in figures and text.
        source: name of the data set, in `ARCHIVES`.
        file: of the data set, in the folder of data.
        classes: of the labels.
        data: `run.data`.
        model: `run.model`.
        epochs: passes over the data.
        every: epochs between two tests.
        methods: keys of what is compared.
        samples: how many are taken, at random; None takes all.
    """

    key: str
    title: str
    source: str
    file: str
    classes: int
    data: Mapping[str, Any]
    model: Mapping[str, Any]
    epochs: int
    methods: tuple[str, ...]
    every: int = 1
    samples: int | None = None


def run_document(panel: Panel, method: ComparedMethod, seed: int) -> dict[str, Any]:
    """Return a run's spec as the paper has it: Adam at a fixed rate, 64 samples per site."""
    return {
        "name": panel.key,
        "seed": seed,
        "task": {"name": "classification", "classes": panel.classes},
        "model": dict(panel.model),
        "data": dict(panel.data),
        "training": {
            "epochs": panel.epochs,
            "batch_size": BATCH,
            "optimizer": {"name": "adam", "lr": RATE},
            "validation": 0.0,
        },
        "method": dict(method.document or {"name": "dsgd"}),
        "federation": {"sites": list(SITES), "compare_every": 0},
    }
