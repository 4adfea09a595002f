"""Run directories that earlier versions have left: this one goes on with them and reads them, or says why not."""

from __future__ import annotations

import tarfile
from pathlib import Path

import pytest
import torch

from rankdad.common.documents import load_json
from rankdad.common.errors import UserError
from rankdad.common.protocol import plan as plans
from rankdad.common.protocol.versions import WIRE
from rankdad.remote import run_reader
from rankdad.remote.check_run import faults_of
from rankdad.remote.export import export
from rankdad.remote.page_document import past_page
from rankdad.remote.report.run_report import report
from rankdad.remote.tables import count_of
from rankdad.simulations import lockstep
from tests.conftest import SITES, written_data
from tests.fixtures.make_run import FOLDER, SPEC
from tests.simulations.recovering import Run

pytestmark = pytest.mark.slow
STEPS = 12
ARCHIVES = sorted(FOLDER.glob("run-*.tar.xz"))


@pytest.fixture(params=ARCHIVES, ids=lambda path: path.name.removesuffix(".tar.xz"))
def left(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    """The folder of what a version has left."""
    with tarfile.open(request.param) as archive:
        archive.extractall(tmp_path / "left", filter="data")
    return tmp_path / "left"


def of_this_torch(directory: Path) -> bool:
    """Tell whether torch is of the version of the run: another one might give other numbers."""
    found: str = load_json(directory / "plan.json")["torch"]
    return found == torch.__version__.split("+")[0]


def test_a_finished_run_is_whole_and_is_shown(left: Path) -> None:
    directory = left / "finished" / "run"
    faults, what = faults_of(directory)
    assert faults == []
    assert f"{STEPS} steps" in what
    document, _ = past_page(directory, "ended", "", [])
    assert document["stand"]["status"] == "completed"
    assert [row["version"] for row in document["sites"]] == ["0.1.0"] * len(SITES)
    assert SPEC.name in report(directory)


def test_a_model_is_rebuilt_where_torch_is_the_same_and_refused_elsewhere(left: Path, tmp_path: Path) -> None:
    directory = left / "finished" / "run"
    if of_this_torch(directory):
        state = export(directory, None, tmp_path / "model")
        assert state.steps == STEPS
        return
    with pytest.raises(UserError) as refused:
        export(directory, None, tmp_path / "model")
    assert refused.value.code == "ledger-of-another-run"


def test_a_run_in_its_middle_goes_on_to_its_end(left: Path, tmp_path: Path) -> None:
    folder = left / "unfinished"
    assert faults_of(folder / "run")[0] == []
    before, data = count_of(folder / "run", "steps"), written_data(tmp_path / "data", SPEC)
    assert 0 < before < STEPS
    if not of_this_torch(folder / "run"):
        with pytest.raises(UserError) as refused:
            Run(SPEC, data, folder)
        assert refused.value.code == "ledger-of-another-run"
        return
    digest = Run(SPEC, data, folder).go(lambda message: None)
    assert count_of(folder / "run", "steps") == STEPS
    summary = load_json(folder / "run" / "summary.json")
    assert summary["status"] == "completed"
    if "replay-differs" not in summary["warnings"]:  # of another processor
        lockstep.run(SPEC, data, tmp_path / "undisturbed")
        assert load_json(tmp_path / "undisturbed" / "summary.json")["aggregator_sha256"] == digest


@pytest.mark.parametrize(("what", "said"), [("wire", "is of wire 1, this rankdad has"), ("format", "has format 1")])
def test_a_directory_of_another_wire_or_format_is_refused_and_stays_as_it_is(
    left: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, what: str, said: str
) -> None:
    if what == "wire":
        monkeypatch.setattr(plans, "WIRE", WIRE + 1)
        monkeypatch.setattr(run_reader, "WIRE", WIRE + 1)
    else:
        monkeypatch.setattr(run_reader, "FORMAT", "3")
        monkeypatch.setattr(run_reader, "EARLIER", "2")
    folder, data = left / "unfinished", written_data(tmp_path / "data", SPEC)
    held = {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()}
    with pytest.raises(UserError) as refused:
        Run(SPEC, data, folder)
    assert refused.value.code == "ledger-of-earlier-version"
    assert said in str(refused.value)
    assert {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()} == held
