"""Runs on volumes that are read batch by batch: the weights of those in memory, and errors that name the file."""

from __future__ import annotations

import os
import signal
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from torch.utils.data import get_worker_info

from rankdad.common.data import SiteData
from rankdad.common.data.lazy import Lazy
from rankdad.common.errors import RankdadError, RunFailedError
from rankdad.common.loading import Loading
from rankdad.common.spec import RunSpec
from rankdad.local.prediction import predict_file
from rankdad.simulations.lockstep import run
from rankdad.simulations.pooling import SITE, pooled_data, pooled_spec
from tests.conftest import sampled
from tests.volumes import held, read_volumes, volumes_spec, write_volumes

pytestmark = pytest.mark.slow


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    for seed, site in enumerate(("alpha", "beta")):
        write_volumes(tmp_path / "data" / site, 14 + 3 * seed, seed)
    return tmp_path / "data"


def digest(spec: RunSpec, data: dict[str, SiteData], output: Path) -> str:
    found = {one for result in run(spec, data, output).values() for one in result.weights_sha256.values()}
    assert len(found) == 1
    return found.pop()


KINDS: list[dict[str, Any]] = [
    {},
    {"training": {"accumulate": 2}, "data": {"group": "family"}},
    {"method": {"name": "rank-dad", "rank": 2, "local_steps": "epoch"}, "preparation": {"standardise": "site"}},
    {"evaluation": {"name": "k-fold", "folds": 3, "references": ["local"]}, "preparation": {"standardise": "none"}},
]


@pytest.mark.parametrize("changes", sampled(KINDS, 4), ids=["plain", "accumulated", "local steps", "folds"])
def test_weights_are_those_of_data_in_memory_whatever_is_cached(
    tmp_path: Path, folder: Path, changes: dict[str, Any]
) -> None:
    changes = {**changes, "data": volumes_spec().data.model_dump(mode="json") | changes.get("data", {})}
    spec = volumes_spec(**changes)
    whole = held(read_volumes(spec, folder))
    found = [whole, read_volumes(spec, folder, cache_mib=0), read_volumes(spec, folder, cache_mib=1)]
    assert len({data["beta"].sha256() for data in found}) == 1
    assert len({digest(spec, data, tmp_path / str(place)) for place, data in enumerate(found)}) == 1
    together = pooled_spec(spec, whole)
    pooled = [pooled_data(data) for data in found[:2]]
    assert pooled[0].order_key(0) == pooled[1].order_key(0)
    if not changes.get("evaluation"):
        assert len({digest(together, {SITE: own}, tmp_path / f"p{at}") for at, own in enumerate(pooled)}) == 1


def test_weights_do_not_depend_on_the_number_of_workers(tmp_path: Path, folder: Path) -> None:
    spec = volumes_spec(training={"epochs": 1}, preparation={"standardise": "none"})
    found = {
        workers: digest(spec, read_volumes(spec, folder, workers=workers, cache_mib=0), tmp_path / str(workers))
        for workers in (0, 1, 4)
    }
    assert len(set(found.values())) == 1, found


def test_what_fits_into_the_cache_is_read_once(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    spec, read = volumes_spec(), list[int]()
    data = read_volumes(spec, folder, cache_mib=1)["alpha"].samples.inputs
    assert isinstance(data, Lazy)
    source = data.files.read

    def noted(row: int) -> Any:
        read.append(row)
        return source(row)

    monkeypatch.setitem(data.files.__dict__, "read", noted)
    assert sum(len(batch) for batch in data.split(4)) == len(data)
    assert read == []
    monkeypatch.setitem(data.files.__dict__, "cache", None)
    assert sum(len(batch) for batch in data.split(4)) == len(data)
    assert read == list(range(len(data)))


@pytest.mark.parametrize("workers", [0, 2])
def test_a_volume_that_cannot_be_read_in_the_midst_of_training_is_named(
    tmp_path: Path, folder: Path, workers: int
) -> None:
    spec = volumes_spec(training={"epochs": 50})
    data = read_volumes(spec, folder, workers=workers, cache_mib=0)

    def damage(aggregator: Any) -> None:
        if aggregator.state.steps == 3:
            for file in (folder / "beta").glob("*.nii*"):
                file.write_bytes(file.read_bytes()[:200])

    said = r"^beta failed: .*scans.csv: row \d+, column image: '\d+\.nii.*' is truncated, damaged or no NIfTI"
    began = time.monotonic()
    with pytest.raises(RunFailedError, match=said):
        run(spec, data, tmp_path / "run", on_round=damage)
    assert time.monotonic() - began < 60
    assert "beta" in (tmp_path / "run" / "summary.json").read_text()


@pytest.mark.slow
def test_predictions_do_not_depend_on_how_volumes_are_read(tmp_path: Path, folder: Path) -> None:
    spec = volumes_spec(training={"epochs": 1})
    run(spec, read_volumes(spec, folder), tmp_path / "run")
    (folder / "alpha" / "3.nii.gz").write_bytes(b"nothing")
    found = []
    for at, loading in enumerate((Loading(), Loading(cache_mib=0), Loading(cache_mib=0, workers=2))):
        table = tmp_path / f"{at}.csv"
        refused = predict_file(tmp_path / "run", folder / "alpha", table, "best", loading=loading)
        assert refused == 1
        found.append(table.read_text())
    assert "is truncated, damaged or no NIfTI file" in found[0]
    assert found[0].count("\n") == 15
    assert len(set(found)) == 1


def test_a_process_that_reads_ahead_and_is_killed_is_named_with_what_to_do(folder: Path) -> None:
    data = read_volumes(volumes_spec(), folder, workers=2, cache_mib=0)["alpha"].samples.inputs
    assert isinstance(data, Lazy)
    source = data.files.read

    def read(row: int) -> Any:
        if row == 9 and get_worker_info() is not None:
            os.kill(os.getpid(), signal.SIGKILL)
        return source(row)

    files = replace(data.files, read=read)
    began = time.monotonic()
    with pytest.raises(RankdadError, match=r"^loading.workers: a worker process was killed.*fewer"):
        list(Lazy(files, data._loading).split(2))
    assert time.monotonic() - began < 30
