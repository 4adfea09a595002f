from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from rankdad.simulations.lockstep import run
from tests.conftest import run_spec, written_data


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run's directory that nobody may change."""
    folder = tmp_path_factory.mktemp("trained")
    spec = run_spec(method={"name": "rank-dad", "rank": 2}, training={"epochs": 3})
    run(spec, written_data(folder / "data", spec, (90, 60, 31)), folder / "run")
    return folder / "run"


@pytest.fixture
def finished(trained: Path, tmp_path: Path) -> Path:
    return shutil.copytree(trained, tmp_path / "run")


@pytest.fixture
def no_figures(monkeypatch: pytest.MonkeyPatch) -> None:
    """Leave out what takes most of a page's time."""
    monkeypatch.setattr("rankdad.remote.report.run_report.plotter", lambda: None)
