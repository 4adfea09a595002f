"""The parts of a step on a device."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from rich.console import Console

from benchmarks.devices import NETWORKS, PARTS, bench_devices


@pytest.mark.exhaustive
def test_a_step_has_parts_and_they_take_no_longer_than_it(tmp_path: Path) -> None:
    with (tmp_path / "table").open("w") as file:
        bench_devices("cpu", ("784-1024-1024-10",), 4, 3, Console(file=file, width=120))
    (line,) = [line for line in (tmp_path / "table").read_text().splitlines() if "784-1024" in line]
    numbers = dict(zip(PARTS, map(float, line.strip("│ ").split("│")[1:]), strict=True))
    assert all(value > 0 for value in numbers.values())
    assert numbers["with capture"] + numbers["reduction"] + numbers["exchange"] <= 1.2 * numbers["step"]


def test_every_network_takes_what_is_drawn_for_it() -> None:
    for name in ("784-1024-1024-10", "ViT 128 × 12", "GPT-2 of 2 layers"):
        make, draw = NETWORKS[name]
        x, y = draw("cpu")
        with torch.no_grad():
            assert len(make()(x)) == len(y), name
