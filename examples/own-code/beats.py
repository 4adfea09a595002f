"""A custom network and reader, for heartbeats in a monitor's log."""

import json
from pathlib import Path

import numpy as np
import torch
from torch import nn

RHYTHMS = ("regular", "irregular")


def read(folder: Path, file: str) -> dict[str, np.ndarray]:
    """Return a hospital's heartbeats as arrays, named as in an npz file."""
    lines = [json.loads(line) for line in (folder / file).read_text().splitlines()]
    return {
        "x": np.array([line["intervals"] for line in lines], np.float32) - 800,  # milliseconds
        "y": np.array([RHYTHMS.index(line["rhythm"]) for line in lines]),
        "key": np.array([line["recording"] for line in lines]),
        "group": np.array([line["patient"] for line in lines]),
    }


class Differences(nn.Module):
    """Two layers on the differences between neighbouring intervals, which characterise a rhythm."""

    def __init__(self, beats: int, width: int) -> None:
        super().__init__()
        self.hidden, self.output = nn.Linear(beats - 1, width), nn.Linear(width, len(RHYTHMS))

    def forward(self, intervals: torch.Tensor) -> torch.Tensor:
        """Return a logit for each rhythm, [n, rhythms]."""
        return self.output(torch.relu(self.hidden(intervals.diff(dim=1).abs() / 50)))


def network(beats: int, width: int) -> nn.Module:
    """Create the network; its arguments are `model.arguments` of the spec."""
    return Differences(beats, width)
