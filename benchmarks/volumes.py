"""Training on volumes that do not fit into memory: its peak and its speed, beside those of volumes held in memory."""

from __future__ import annotations

import json
import os
import resource
import subprocess
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

from rankdad.common.documents import validate
from rankdad.common.models import build_model
from rankdad.common.preparation import in_memory
from rankdad.common.spec import RunSpec
from rankdad.local.alone import alone_spec, train_alone
from rankdad.local.data import Samples, read_site
from rankdad.local.data.loading import Loading

DISTINCT = 16  # files, of which the others are further names
SITE = "hospital-a"


def write_volumes(folder: Path, count: int, side: int) -> None:
    """Write a site's volumes, [side, side, side] each: noise in the middle of nothing, so that files are small."""
    folder.mkdir(parents=True, exist_ok=True)
    generator, rows = np.random.default_rng(0), ["image,ill"]
    for number in range(count):
        path, first = folder / f"{number}.nii.gz", folder / f"{number % DISTINCT}.nii.gz"
        if path == first:
            voxels, middle = np.zeros((side,) * 3, np.float32), slice(side // 4, side // 2)
            voxels[middle, middle, middle] = generator.normal(size=(side // 2 - side // 4,) * 3) + number % 2
            nibabel.Nifti1Image(voxels, np.eye(4)).to_filename(path)
        elif not path.exists():
            path.hardlink_to(first)
        rows.append(f"{path.name},{number % 2}")
    (folder / "scans.csv").write_text("\n".join(rows))


def volumes_run(side: int, batch_size: int, filters: Sequence[int]) -> RunSpec:
    """Return the run of one site that is trained on them: a linear model, or a network of these filters."""
    model = {"name": "cnn3d", "filters": list(filters)} if filters else {"name": "linear"}
    document = {
        "name": "volumes",
        "task": {"name": "classification", "classes": 2},
        "model": model,
        "data": {"reader": "nifti", "file": "scans.csv", "shape": [side] * 3, "label": "ill", "values": [0, 1]},
        "training": {"epochs": 1, "batch_size": batch_size, "validation": 0.05, "test": 0.05},
        "federation": {"sites": [SITE]},
    }
    return alone_spec(validate(RunSpec, document), SITE)


def train_site(
    folder: Path, side: int, batch_size: int, filters: Sequence[int], loading: Loading, *, held: bool
) -> dict[str, Any]:
    """Train one epoch, and return its samples and seconds, peak memory in MiB and the weights' digest.

    The peak is of what this process had resident; each of those that read ahead has its own.
    """
    torch.set_num_threads(1)
    spec = volumes_run(side, batch_size, filters)
    model = build_model(spec)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    data = read_site(spec, folder, 0, (), loading)
    if held:
        data = replace(data, samples=Samples(in_memory(data.samples.inputs), data.samples.labels))
    made, steps, began = [time.perf_counter()], 0, time.perf_counter()
    for outputs in train_alone(spec, data, model):
        if outputs is None:
            steps += 1
            made.append(time.perf_counter())
    peaks = [resource.getrusage(who).ru_maxrss / 1024 for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    weights = torch.cat([value.detach().reshape(-1) for value in model.parameters()])
    return {
        "samples": len(data.splits[0].train),
        "volumes_mib": round(len(data.samples) * side**3 * 4 / 2**20),
        "seconds_per_sample": (made[-1] - made[2]) / max(1, steps - 1) / batch_size,  # after the first step
        "seconds": time.perf_counter() - began,
        "before_mib": round(before / 1024),
        "peak_mib": round(peaks[0]),
        "peak_of_a_worker_mib": round(peaks[1]),
        "weights": float(weights.double().sum()),
    }


def bench_volumes(
    folder: Path,
    gib: float,
    held_gib: float,
    side: int,
    batch_size: int,
    filters: Sequence[int],
    loading: Loading,
    console: Console,
) -> None:
    """Print what training takes, read batch by batch, and held in memory as far as that is allowed.

    Args:
        folder: of the volumes, which are written there.
        gib: that all volumes take in memory.
        held_gib: that the volumes take that are held in memory, to compare the speed with; 0 holds none.
        side: of a volume.
        batch_size: volumes of a step.
        filters: of the network's blocks; none is a linear model.
        loading: how they are read.
        console: where to print.
    """
    for name, size in (("read", gib), ("held", held_gib)):
        if not size:
            continue
        write_volumes(folder / name, max(DISTINCT, round(size * 2**30 / (4 * side**3))), side)
        own = loading if name == "read" else Loading(cache_mib=0)
        document = {"side": side, "batch_size": batch_size, "filters": filters, "held": name == "held"}
        words = [str(folder / name), own.model_dump_json(), json.dumps(document)]
        done = subprocess.run(
            [sys.executable, "-m", __spec__.name, *words], check=True, stdout=subprocess.PIPE, text=True, env=os.environ
        )
        console.print(f"{name}: {done.stdout.strip()}", soft_wrap=True, highlight=False)


if __name__ == "__main__":
    place, given, options = sys.argv[1:]
    print(json.dumps(train_site(Path(place), loading=Loading.model_validate_json(given), **json.loads(options))))
