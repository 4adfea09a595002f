"""The folder of a job, and who may have one."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from rankdad.__main__ import app
from rankdad.common.errors import SpecError
from rankdad.local.config import SiteConfig
from rankdad.local.drivers.http import AggregatorClient
from rankdad.platforms.nvflare.job import write_job
from tests.conftest import SITES, run_document, run_spec


def make(folder: Path, *options: str, **changes: Any) -> Path:
    (folder / "run.json").write_text(json.dumps(run_document(**changes)))
    done = CliRunner().invoke(app, ["job", "nvflare", str(folder / "run.json"), "-o", str(folder / "job"), *options])
    assert done.exit_code == 0, done.output
    return folder / "job"


def test_the_command_makes_a_job_for_the_sites_of_the_run(tmp_path: Path) -> None:
    job = make(tmp_path)
    meta = json.loads((job / "meta.json").read_text())
    assert meta["deploy_map"] == {"app": ["server", *SITES]}
    assert meta["min_clients"] == len(SITES)
    config = job / "app" / "config"
    run = json.loads((config / "run.json").read_text())
    assert run["run"]["name"] == "small"
    server = json.loads((config / "config_fed_server.json").read_text())
    client = json.loads((config / "config_fed_client.json").read_text())
    assert server["server"]["task_request_interval"] == client["default_task_fetch_interval"] == 0.05
    assert server["workflows"][0]["path"].startswith("rankdad.platforms.nvflare.")
    assert not (job / "app" / "custom").exists()  # which would take the right to bring code


def test_a_job_may_bring_the_code_that_starts_what_is_installed(tmp_path: Path) -> None:
    job = make(tmp_path, "--bring-code")
    server = json.loads((job / "app" / "config" / "config_fed_server.json").read_text())
    module, name = server["workflows"][0]["path"].split(".")
    assert f"import {name}" in (job / "app" / "custom" / f"{module}.py").read_text()


def test_two_jobs_are_two_runs(tmp_path: Path) -> None:
    spec = run_spec()
    assert write_job(spec, tmp_path / "one") != write_job(spec, tmp_path / "two")


def test_a_quorum_is_the_engine_s_too(tmp_path: Path) -> None:
    spec = run_spec(federation={"sites": list(SITES), "quorum": 2})
    write_job(spec, tmp_path / "job")
    meta = json.loads((tmp_path / "job" / "meta.json").read_text())
    assert (meta["min_clients"], meta["mandatory_clients"]) == (2, [])


def test_a_site_of_nvflare_s_is_not_started_by_hand(tmp_path: Path) -> None:
    document = {"name": "alpha", "aggregator": "nvflare", "data": "data", "output": "out"}
    (tmp_path / "site.json").write_text(json.dumps(document))
    with pytest.raises(SpecError) as error:
        AggregatorClient(SiteConfig.read(tmp_path / "site.json"))
    assert error.value.code == "engine-starts"
