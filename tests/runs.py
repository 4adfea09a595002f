"""What a run has left: its summary, the rows of its tables, its weights."""

from __future__ import annotations

import csv
import json
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from rankdad.local.training import Result


def summary_of(directory: Path) -> dict[str, Any]:
    document: dict[str, Any] = json.loads((directory / "summary.json").read_text())
    return document


def rows_of(path: Path) -> list[dict[str, str]]:
    with path.open(newline="") as file:
        return list(csv.DictReader(file))


def final_weights(results: dict[str, Result]) -> dict[str, Tensor]:
    first, *others = (result.final for result in results.values())
    for other in others:
        assert all(torch.equal(first[name], other[name]) for name in first)
    return first
