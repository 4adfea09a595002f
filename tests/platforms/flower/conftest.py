from __future__ import annotations

import json
import tomllib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from rankdad.platforms.flower.job import write_job
from tests.conftest import OPEN, SITES, run_spec, write_site
from tests.platforms.flower.engine import Engine, stubs

COUNTS = (48, 32, 17)
ID = "0123456789abcdef"


@pytest.fixture(autouse=True)
def _no_flower() -> Iterator[None]:
    with stubs():
        yield


@pytest.fixture
def consortium(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., Engine]:
    """Return what makes a job over settings that stay: asked again, it is the same run."""

    def make(server: dict[str, Any] | None = None, policy: dict[str, Any] | None = None, **changes: Any) -> Engine:
        monkeypatch.setenv("RANKDAD_FLOWER", str(tmp_path))
        for index, (site, count) in enumerate(zip(SITES, COUNTS, strict=True)):
            if not (tmp_path / site).exists():
                write_site(tmp_path / site / "data", count, index)
                (tmp_path / site / "policy.json").write_text(json.dumps(OPEN | (policy or {})))
                places = {key: f"{site}/{key}" for key in ("data", "privacy")} | {"output": f"{site}/out"}
                own = {"name": site, "aggregator": "flower", "policy": f"{site}/policy.json", **places}
                (tmp_path / f"{site}.json").write_text(json.dumps(own))
        (tmp_path / "server.json").write_text(json.dumps({"directory": "runs", **(server or {})}))
        if not (tmp_path / "job").exists():
            write_job(run_spec(**changes), tmp_path / "job", number=ID)
        project = tomllib.loads((tmp_path / "job" / "pyproject.toml").read_text())
        return Engine(tmp_path, project["tool"]["flwr"]["app"]["config"], dict(enumerate(SITES, 1)))

    return make
