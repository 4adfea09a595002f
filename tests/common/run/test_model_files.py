"""A model's files are whole, whatever ends the process that writes them."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

from rankdad.common.models import build_model
from rankdad.common.preparation import Fit
from rankdad.common.run import artifacts
from tests.common.faults import fault
from tests.conftest import run_spec


def test_a_write_that_breaks_off_leaves_the_model_that_was_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = {"weight": torch.ones(3)}
    artifacts.save_model(tmp_path, run_spec(), before, before)

    def full(_: Any, path: Path) -> None:
        Path(path).write_bytes(b"half")
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(artifacts, "save_file", full)
    assert (
        fault(lambda: artifacts.save_model(tmp_path, run_spec(), {"weight": torch.zeros(3)}, {}))[0] == "cannot-write"
    )
    assert load_file(tmp_path / "best.safetensors")["weight"].tolist() == [1.0, 1.0, 1.0]


def test_what_takes_a_models_place_is_on_the_disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    synced, sync = set[int](), os.fsync

    def syncing(file: int) -> None:
        synced.add(os.fstat(file).st_ino)
        sync(file)

    monkeypatch.setattr(os, "fsync", syncing)
    weights = {"weight": torch.ones(3)}
    artifacts.save_model(tmp_path, run_spec(), weights, weights)
    files = [tmp_path, *(tmp_path / name for name in ("best.safetensors", "final.safetensors", "model.json"))]
    assert {path.stat().st_ino for path in files} <= synced


def test_the_model_of_a_run_that_was_cut_short_says_so(tmp_path: Path) -> None:
    spec = run_spec(evaluation={"name": "k-fold", "folds": 3})
    weights = dict(build_model(spec).state_dict())
    where_, said = artifacts.place_in(spec, 7, 1), ", of a run that was interrupted after step 7, in fold 2 of 3"
    for where, words in ((where_, said), ("", "")):
        artifacts.save_model(tmp_path, spec, weights, weights, Fit(), cut_short=where)
        assert artifacts.load_model(tmp_path, "best", ()).source == f"{tmp_path}/best.safetensors{words}"
