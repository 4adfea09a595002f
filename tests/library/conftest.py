from __future__ import annotations

from pathlib import Path

import pandas as pd
import pytest

import rankdad
from tests.library.frames import RUN, SIMULATION, patients


@pytest.fixture(scope="package")
def frame() -> pd.DataFrame:
    return patients(120, 0)


@pytest.fixture(scope="package")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("library")


@pytest.fixture(scope="package")
def run(frame: pd.DataFrame, folder: Path) -> rankdad.Run:
    return rankdad.simulate({"run": RUN, "simulation": SIMULATION}, data=frame, output=folder / "run")
