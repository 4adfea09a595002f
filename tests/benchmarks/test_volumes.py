"""Training takes no more memory for more volumes, and is about as fast as with all of them in memory."""

from __future__ import annotations

import shutil
import statistics
import tempfile
from pathlib import Path
from typing import Any

import pytest

from benchmarks.volumes import trained, write_volumes
from rankdad.common.loading import Loading

NETWORK: dict[str, Any] = {"side": 64, "batch_size": 4, "filters": [16, 32, 64], "steps": 24}  # of 1 MiB each
LINEAR: dict[str, Any] = {"side": 64, "batch_size": 4, "filters": []}


@pytest.mark.exhaustive
@pytest.mark.slow
@pytest.mark.timeout(900)
def test_what_is_resident_does_not_grow_with_the_volumes(tmp_path: Path) -> None:
    found = {}
    for count in (32, 512):
        write_volumes(tmp_path / str(count), count, 64)
        found[count] = trained(tmp_path / str(count), LINEAR, Loading(cache_mib=16, workers=1))
    assert found[512]["volumes_mib"] - found[32]["volumes_mib"] == 480
    assert found[512]["peak_mib"] - found[32]["peak_mib"] < 60
    held = trained(tmp_path / "512", LINEAR | {"held": True}, Loading(cache_mib=0))
    assert held["peak_mib"] - found[32]["peak_mib"] > 400, "the measure sees what is held"
    assert held["weights_sha256"] == found[512]["weights_sha256"]


@pytest.mark.slow
@pytest.mark.exhaustive
@pytest.mark.alone
@pytest.mark.timeout(3600)
def test_six_gigabytes_train_within_one_and_a_half_as_fast_as_from_memory() -> None:
    with tempfile.TemporaryDirectory() as folder:
        many, few = Path(folder) / "many", Path(folder) / "few"
        if shutil.disk_usage(folder).free < 9 << 30:
            pytest.skip("needs 9 GiB on the disk")
        write_volumes(many, 6144, 64)
        write_volumes(few, 256, 64)
        weights, seconds = set[str](), {"read": list[float](), "held": list[float]()}
        for workers in (1, 0, 4, 1):
            loading = Loading(cache_mib=128, workers=workers)
            found = trained(many, NETWORK, loading, limit_mib=1500)
            assert found["volumes_mib"] == 6144
            assert max(found["peak_mib"], found["peak_of_a_worker_mib"]) < 1500, "where no control group limits it"
            weights.add(found["weights_sha256"])
            if workers == 1:
                held = trained(few, NETWORK | {"held": True}, Loading(cache_mib=0))
                assert held["steps"] == found["steps"] == NETWORK["steps"]
                for name, one in (("read", found), ("held", held)):
                    seconds[name].append(one["seconds_per_step"])
        assert len(weights) == 1
        assert statistics.median(seconds["held"]) > 0.7 * statistics.median(seconds["read"]), seconds
