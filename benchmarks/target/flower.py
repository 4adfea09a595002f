"""Flower's own FedAvg, as its documentation has a user run it, with the same network, samples and optimizer.

Flower is no dependency: an interpreter that has `flwr[simulation]` and torch runs `flower_app.py` beside this.
"""

from __future__ import annotations

import json
import os
import subprocess
import tempfile
from collections.abc import Mapping
from pathlib import Path

import numpy as np
import torch

from benchmarks.target.curves import HeldOut, Point
from rankdad.common.data import SiteData
from rankdad.common.errors import RankdadError
from rankdad.common.files import write_json
from rankdad.common.preparation import in_memory
from rankdad.common.spec import RunSpec
from rankdad.simulations.pooling import first_rows

LABEL = "Flower FedAvg"


def train_with_flower(python: Path, spec: RunSpec, data: Mapping[str, SiteData]) -> list[Point]:
    """Train for the run's epochs, each one a round, with a new optimizer in every round as in Flower's quick start.

    Args:
        python: an interpreter that has Flower.
        spec: of the run; its method is not used.
        data: of the sites.

    Returns:
        A test after every round; none where that interpreter has no Flower. Bytes are those of arrays alone.

    Raises:
        RankdadError: Flower failed.
    """
    if subprocess.run([python, "-c", "import flwr, ray, torch"], capture_output=True, check=False).returncode:
        return []
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        write_json(folder / "run.json", spec.model_dump(mode="json"))
        for place, samples in enumerate(first_rows(spec, data).values()):
            np.savez(folder / f"site-{place}.npz", x=in_memory(samples.inputs).numpy(), y=samples.labels.numpy())
        tests = HeldOut.of(spec, data)
        np.savez(folder / "test.npz", x=tests.inputs.numpy())
        environment = os.environ | {"FLWR_TELEMETRY_ENABLED": "0", "RAY_USAGE_STATS_ENABLED": "0"}
        words = [str(python), "-m", "benchmarks.target.flower_app", name]
        done = subprocess.run(words, capture_output=True, text=True, env=environment, check=False)
        if done.returncode:
            raise RankdadError(
                f"Flower: {done.stderr.strip().splitlines()[-1] if done.stderr else done.returncode}",
                code="flower-failed",
            )
        return [
            Point(
                step=found["round"],
                exchanges=found["round"],
                epoch=found["round"],
                bytes_up=found["bytes"] * found["round"],
                bytes_down=found["bytes"] * found["round"],
                seconds=found["seconds"],
                parallel=found["seconds"],
                values=tests.metrics(torch.from_numpy(np.load(folder / f"outputs-{found['round']}.npy"))),
            )
            for found in map(json.loads, (folder / "rounds.jsonl").read_text(encoding="utf-8").splitlines())
        ]
