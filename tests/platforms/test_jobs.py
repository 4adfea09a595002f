"""The folder of an engine's job: who may have one."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner, Result

from rankdad.__main__ import app
from rankdad.common.errors import SpecError, UserError
from rankdad.local.config import SiteConfig
from rankdad.platforms.flower.job import write_job as for_flower
from rankdad.platforms.flower.settings import FlowerSettings
from rankdad.platforms.nvflare.job import write_job as for_nvflare
from tests.conftest import SITES, run_document, run_spec, write_policy

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


def command(folder: Path, engine: str, *more: str) -> Result:
    words = ["job", engine, str(folder / "run.json"), "-o", str(folder / "job"), "--settings", str(folder / "settings")]
    return CliRunner().invoke(app, [*words, *more])


@pytest.mark.parametrize("engine", ["nvflare", "flower"])
def test_settings_for_a_trial_are_those_of_the_simulation_s_sites(tmp_path: Path, engine: str) -> None:
    (tmp_path / "run.json").write_text(json.dumps(run_document()))
    for site in SITES:
        (tmp_path / "sites" / site / "data").mkdir(parents=True)
    write_policy(tmp_path / "sites" / SITES[0], min_rows=3)
    (tmp_path / "sites" / SITES[1] / "privacy").mkdir()
    assert command(tmp_path, engine).exit_code == 0
    settings = tmp_path / "settings"
    configs = {site: SiteConfig.read(settings / f"{site}.json") for site in SITES}
    for site, config in configs.items():
        assert (config.name, config.aggregator) == (site, engine)
        assert config.data == str(tmp_path / "sites" / site / "data")
        assert config.output == str(settings / "out" / site)
    assert configs[SITES[0]].policy == str(tmp_path / "sites" / SITES[0] / "policy.json")
    assert configs[SITES[1]].privacy == str(tmp_path / "sites" / SITES[1] / "privacy")
    assert configs[SITES[2]].policy is None
    server = FlowerSettings.read(settings / "server.json")
    assert (server.directory, server.registered) == (str(settings / "runs"), engine == "nvflare")


@pytest.mark.parametrize("more", [[], ["--data", "hospitals"], ["--data", "gone"]])
def test_settings_need_the_data_of_all_sites(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, more: list[str]) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "run.json").write_text(json.dumps(run_document()))
    for site in SITES[1:]:
        (tmp_path / "hospitals" / site).mkdir(parents=True)
    done = command(tmp_path, "nvflare", *more)
    assert isinstance(done.exception, UserError)
    assert (done.exception.code, done.exception.field) == ("data-missing", "--settings")
    assert not (tmp_path / "job").exists()


def test_settings_for_a_trial_name_a_folder_s_data(tmp_path: Path) -> None:
    (tmp_path / "run.json").write_text(json.dumps(run_document()))
    (tmp_path / "hospitals").mkdir()
    for site in SITES:
        (tmp_path / "hospitals" / f"{site}.csv").write_text("y\n1\n")
    assert command(tmp_path, "flower", "--data", str(tmp_path / "hospitals")).exit_code == 0
    places = {site: SiteConfig.read(tmp_path / "settings" / f"{site}.json").data for site in SITES}
    assert places == {site: str(tmp_path / "hospitals" / f"{site}.csv") for site in SITES}
