"""Training on volumes that do not fit into memory: its peak and its speed, beside those of volumes held in memory."""

from __future__ import annotations

import json
import resource
import statistics
import sys
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import nibabel
import numpy as np
import torch
from rich.console import Console

from benchmarks.limited import run_limited
from rankdad.common.data import Samples, read_site
from rankdad.common.documents import validate
from rankdad.common.loading import Loading
from rankdad.common.models import build_model
from rankdad.common.preparation import in_memory
from rankdad.common.spec import RunSpec
from rankdad.common.tensors import weights_sha256
from rankdad.local.alone import alone_spec, train_alone

WARM = 2  # steps before time is taken
SITE = "hospital-a"


def write_volumes(folder: Path, count: int, side: int) -> None:
    """Write a site's volumes, [side, side, side] each, as far as they are not there: noise in the middle of nothing."""
    folder.mkdir(parents=True, exist_ok=True)
    middle, rows = slice(side // 8, side - side // 8), ["image,ill"]
    for number in range(count):
        path = folder / f"{number}.nii.gz"
        if not path.exists():
            generator = np.random.default_rng(number)
            voxels = np.zeros((side,) * 3, np.int16)  # as scanners write them
            part = voxels[middle, middle, middle]
            part[:] = generator.normal(100 + 10 * (number % 2), 10, part.shape)
            nibabel.Nifti1Image(voxels, np.eye(4)).to_filename(path)
        rows.append(f"{path.name},{number % 2}")
    (folder / "scans.csv").write_text("\n".join(rows))


def volumes_run(side: int, batch_size: int, filters: Sequence[int]) -> RunSpec:
    """Return the run of one site that is trained on them: a linear model, or a network of these filters."""
    model = {"name": "cnn3d", "filters": list(filters)} if filters else {"name": "linear"}
    document = {
        "name": "volumes",
        "task": {"name": "classification", "classes": 2},
        "model": model,
        "data": {
            "reader": "nifti",
            "file": "scans.csv",
            "shape": [side] * 3,
            "normalise": "volume",
            "label": "ill",
            "values": [0, 1],
        },
        "training": {"epochs": 1, "batch_size": batch_size, "validation": 0.02, "test": 0.02},
        "federation": {"sites": [SITE]},
    }
    return alone_spec(validate(RunSpec, document), SITE)


def train_site(
    folder: Path,
    side: int,
    batch_size: int,
    filters: Sequence[int],
    loading: Loading,
    *,
    held: bool = False,
    steps: int | None = None,
) -> dict[str, Any]:
    """Train one epoch, and return its samples and seconds, peak memory in MiB and the weights' digest.

    Peaks are of what this process had resident, and of that of the processes that read ahead which had most.

    Args:
        folder: of the volumes.
        side: of a volume.
        batch_size: volumes of a step.
        filters: of the network's blocks; none is a linear model.
        loading: how they are read.
        held: whether all are held in memory.
        steps: after which it ends; None for the whole epoch, with validation and test.
    """
    torch.set_num_threads(1)
    spec = volumes_run(side, batch_size, filters)
    model = build_model(spec)
    before, began = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss, time.perf_counter()
    data = read_site(spec, folder, 0, (), loading)
    read = time.perf_counter()
    if held:
        data = replace(data, samples=Samples(in_memory(data.samples.inputs), data.samples.labels))
    made = [time.perf_counter()]
    for outputs in train_alone(spec, data, model):
        if outputs is None:
            made.append(time.perf_counter())
            if len(made) - 1 == steps:
                break
    peaks = [resource.getrusage(who).ru_maxrss / 1024 for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    measured = len(made) - 1 - WARM
    return {
        "samples": len(data.samples),
        "volumes_mib": round(len(data.samples) * side**3 * 4 / 2**20),
        "steps": len(made) - 1,
        "seconds_per_step": (made[-1] - made[WARM]) / max(1, measured),
        "seconds_to_read": read - began,
        "seconds_to_prepare": made[1] - made[0],
        "before_mib": round(before / 1024),
        "peak_mib": round(peaks[0]),
        "peak_of_a_worker_mib": round(peaks[1]),
        "weights_sha256": weights_sha256(model.state_dict()),
    }


def trained(folder: Path, options: dict[str, Any], loading: Loading, limit_mib: int | None = None) -> dict[str, Any]:
    """Train in a process of its own, which is limited to so much memory, and return what `train_site` does.

    Args:
        folder: of the volumes.
        options: of `train_site`.
        loading: how volumes are read.
        limit_mib: see `benchmarks.limited.run_limited`.
    """
    return run_limited(__spec__.name, [str(folder), loading.model_dump_json(), json.dumps(options)], limit_mib)


def bench_volumes(
    folder: Path,
    gib: float,
    held_gib: float,
    options: dict[str, Any],
    loading: Loading,
    limit_mib: int | None,
    pairs: int,
    console: Console,
) -> float | None:
    """Print what training takes, read batch by batch, and beside it what it takes with volumes held in memory.

    Args:
        folder: of the volumes, which are written there.
        gib: that all volumes take in memory.
        held_gib: that the volumes take that are held in memory, to compare the speed with; 0 holds none.
        options: of `train_site`.
        loading: how volumes are read.
        limit_mib: of the training that reads; None does not limit it.
        pairs: of trainings, one after the other.
        console: where to print.

    Returns:
        How many times as fast it is as with volumes held in memory; None where none are.
    """
    sizes = {"read": gib, "held": held_gib}
    seconds: dict[str, list[float]] = {name: [] for name, size in sizes.items() if size}
    for name in seconds:
        write_volumes(folder / name, max(16, round(sizes[name] * 2**30 / (4 * options["side"] ** 3))), options["side"])
    for _ in range(pairs):
        for name, taken in seconds.items():
            if name == "read":
                found = trained(folder / name, options, loading, limit_mib)
            else:
                found = trained(folder / name, options | {"held": True}, Loading(cache_mib=0))
            taken.append(found["seconds_per_step"])
            console.print(f"{name}: {json.dumps(found)}", soft_wrap=True, highlight=False)
    if "held" not in seconds:
        return None
    ratio = statistics.median(seconds["held"]) / statistics.median(seconds["read"])
    console.print(f"{ratio:.2f} times as fast as with volumes held in memory", highlight=False)
    return ratio


if __name__ == "__main__":
    place, given, chosen = sys.argv[1:]
    print(json.dumps(train_site(Path(place), loading=Loading.model_validate_json(given), **json.loads(chosen))))
