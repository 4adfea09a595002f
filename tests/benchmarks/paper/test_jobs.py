from __future__ import annotations

import io
import os
import re
import signal
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, ClassVar

import pytest
from rich.console import Console

from benchmarks.paper.jobs import CurveJob, Job
from benchmarks.paper.parts import PARTS, check_data, tables
from benchmarks.paper.queue import do
from benchmarks.paper.settings import SETTINGS
from rankdad.common.errors import DataError, RankdadError, UserError
from tests.benchmarks.paper.plugged import with_plugins


@dataclass(frozen=True)
class Count(Job):
    """Says how often it has been asked, by a file."""

    name: str
    value: int = 0
    fails: str = ""

    @property
    def place(self) -> str:
        return f"counts/{self.name}"

    @property
    def words(self) -> str:
        return f"count {self.name}"

    @property
    def description(self) -> dict[str, Any]:
        return {"value": self.value}

    def perform(self, data: Path) -> dict[str, Any]:
        if self.fails == "error":
            raise DataError(data / "x.npz", "is damaged", code="damaged")
        if self.fails == "killed":
            os.kill(os.getpid(), signal.SIGKILL)
        path = data / self.name
        asked = int(path.read_text()) + 1 if path.exists() else 1
        path.write_text(str(asked))
        return {"asked": asked}


@dataclass(frozen=True)
class Alone(Count):
    alone: ClassVar[bool] = True


def done(found: list[Count], folder: Path, processes: int = 1) -> str:
    """What is said of them."""
    text = io.StringIO()
    do(found, folder / "output", folder, processes, Console(file=text, width=200))
    return text.getvalue()


def test_what_was_done_is_not_done_again_unless_its_description_changes(tmp_path: Path) -> None:
    found: list[Count] = [Alone("a"), Alone("b"), Alone("a")]
    assert "2/2 count b" in done(found, tmp_path)
    said = done([*found, Alone("c")], tmp_path)
    assert "2 of 3 results are there from before" in said
    assert "1/1 count c" in said
    done([Alone("a", value=1)], tmp_path)
    asked = {name: int((tmp_path / name).read_text()) for name in "abc"}
    assert asked == {"a": 2, "b": 1, "c": 1}
    assert Alone("a").result(tmp_path / "output") is None
    assert Alone("a", value=1).result(tmp_path / "output") == {"asked": 2}


def test_an_error_loses_nothing_that_was_done(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"count b: .*x.npz: is damaged"):
        done([Alone("a"), Alone("b", fails="error"), Alone("c")], tmp_path)
    assert Alone("a").result(tmp_path / "output") == {"asked": 1}
    done([Alone("a"), Alone("b"), Alone("c")], tmp_path)
    assert int((tmp_path / "a").read_text()) == 1


@pytest.mark.exhaustive
@pytest.mark.slow
def test_jobs_in_processes_of_their_own(tmp_path: Path) -> None:
    done([Count("a"), Count("b"), Alone("c")], tmp_path, processes=2)
    assert [(tmp_path / name).read_text() for name in "abc"] == ["1", "1", "1"]
    with pytest.raises(UserError, match=r"count d: .*x.npz: is damaged"):
        done([Count("d", fails="error"), Count("e")], tmp_path, processes=1)
    with pytest.raises(RankdadError, match="was killed"):
        done([Count("f", fails="killed")], tmp_path, processes=1)


VALIDATED = """
from benchmarks.paper.jobs import CurveJob
from benchmarks.paper.parts import PARTS, jobs
from benchmarks.paper.settings import SETTINGS
from rankdad.common.documents import validate
from rankdad.common.spec import RunSpec
runs = [job.description["run"] for key in SETTINGS for job in jobs(PARTS, SETTINGS[key]) if isinstance(job, CurveJob)]
assert [validate(RunSpec, run) for run in runs]
"""


@pytest.mark.slow
def test_every_setting_has_specifications() -> None:
    with_plugins("-c", VALIDATED)


def test_a_result_counts_for_the_same_job_and_the_same_data(tmp_path: Path) -> None:
    panel = SETTINGS["quick"].panels["mnist"]
    job, other = (CurveJob(replace(panel, methods=methods), "dsgd", 0) for methods in (("dsgd",), ("dsgd", "dad")))
    assert job.digest == other.digest
    assert job.digest != CurveJob(replace(panel, epochs=panel.epochs + 1), "dsgd", 0).digest
    assert job.digest != CurveJob(panel, "dsgd", 1).digest
    result = {"auc": [], "spectra": [], "seconds": 1}
    (tmp_path / panel.file).write_bytes(b"series")
    job.keep(tmp_path, tmp_path, result)
    assert job.result(tmp_path, tmp_path) == result
    (tmp_path / panel.file).write_bytes(b"others")
    assert job.result(tmp_path, tmp_path) is None


def test_data_that_are_not_there(tmp_path: Path) -> None:
    for name in ("natops.npz", "pendigits.npz", "cifar10_subset.npz"):
        (tmp_path / name).touch()
    check_data(["figure-4", "figure-5", "figure-6"], SETTINGS["quick"], tmp_path)
    with pytest.raises(UserError) as caught:
        check_data(PARTS, SETTINGS["quick"], tmp_path)
    assert re.findall(r"(\w+\.npz): does not exist", str(caught.value)) == ["mnist.npz", "spoken_arabic_digits.npz"]


def test_tables_have_folds_beyond_those_of_the_setting(tmp_path: Path) -> None:
    quick = SETTINGS["quick"]
    row = {"epoch": 1, "step": 10, "site": "site-1", "auc": 0.5, "bytes_up": 1, "bytes_down": 1}
    panel = quick.panels["natops"]
    (tmp_path / panel.file).write_bytes(b"series")
    result = {"auc": [row], "spectra": [], "seconds": 1}
    for fold in (0, 2):
        CurveJob(panel, "dsgd", fold).keep(tmp_path, tmp_path, result)
    assert tables(quick, tmp_path)["figure-4"]["fold"].tolist() == [1, 3]
