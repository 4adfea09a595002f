"""The folder of an engine's job: who may have one."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from rankdad.common.errors import SpecError, UserError
from rankdad.platforms.flower.job import write_job as for_flower
from rankdad.platforms.nvflare.job import write_job as for_nvflare
from tests.conftest import SITES, run_spec

Write = Callable[..., str]
ENGINES = pytest.mark.parametrize("write", [for_flower, for_nvflare])


@pytest.mark.parametrize(
    ("changes", "code"),
    [
        ({"federation": {"sites": list(SITES), "regions": {"north": list(SITES[:2])}}}, "regions-unsupported"),
        (
            {"data": {"reader": "csv", "file": "d.csv", "features": ["a*"], "label": "y", "values": [0, 1, 2]}},
            "pattern-unresolved",
        ),
    ],
)
@ENGINES
def test_what_cannot_be_had_there_is_said_before_a_job_is_made(
    tmp_path: Path, write: Write, changes: dict[str, Any], code: str
) -> None:
    with pytest.raises(SpecError) as error:
        write(run_spec(**changes), tmp_path / "job")
    assert error.value.code == code
    assert not (tmp_path / "job").exists()


@ENGINES
def test_a_folder_that_is_there_stays_as_it_is(tmp_path: Path, write: Write) -> None:
    (tmp_path / "job").mkdir()
    (tmp_path / "job" / "notes.txt").write_text("")
    with pytest.raises(UserError) as error:
        write(run_spec(), tmp_path / "job")
    assert error.value.field == "--output"
    assert [path.name for path in (tmp_path / "job").iterdir()] == ["notes.txt"]
