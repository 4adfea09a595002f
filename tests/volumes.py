"""Sites whose samples are volumes, a file each, and a run that trains on them."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import nibabel
import numpy as np

from rankdad.common.data import Samples, SiteData, read_site
from rankdad.common.loading import Loading
from rankdad.common.preparation import in_memory
from rankdad.common.spec import RunSpec
from tests.conftest import run_spec

SHAPE = (6, 7, 8)


def volumes_spec(**changes: Any) -> RunSpec:
    document: dict[str, Any] = {
        "task": {"name": "classification", "classes": 2},
        "model": {"name": "cnn3d", "filters": [4, 4]},
        "data": {"reader": "nifti", "file": "scans.csv", "shape": list(SHAPE), "label": "ill", "values": ["no", "yes"]},
        "preparation": {"standardise": "federated"},
        "method": {"name": "rank-dad", "rank": 2},
        "federation": {"sites": ["alpha", "beta"]},
    }
    training = {"batch_size": 3} | changes.pop("training", {})
    return run_spec(**document | changes, training=training)


def write_volumes(folder: Path, count: int, seed: int, shape: tuple[int, ...] = SHAPE) -> Path:
    """Write noise, brighter where somebody is ill, compressed and not."""
    folder.mkdir(parents=True, exist_ok=True)
    generator, rows = np.random.default_rng(seed), ["image,ill,family"]
    for number in range(count):
        ill = number % 3 == 0
        name = f"{number}.nii" + ".gz" * (number % 2)
        voxels = generator.normal(size=shape).astype(np.float32) + ill
        nibabel.Nifti1Image(voxels, np.eye(4)).to_filename(folder / name)
        rows.append(f"{name},{'yes' if ill else 'no'},{number // 2}")
    (folder / "scans.csv").write_text("\n".join(rows))
    return folder


def read_volumes(spec: RunSpec, folder: Path, **loading: int) -> dict[str, SiteData]:
    sites = enumerate(spec.federation.sites)
    return {site: read_site(spec, folder / site, index, (), Loading(**loading)) for index, site in sites}


def held(data: dict[str, SiteData]) -> dict[str, SiteData]:
    """Return the same samples in memory."""
    return {
        site: replace(own, samples=Samples(in_memory(own.samples.inputs), own.samples.labels))
        for site, own in data.items()
    }
