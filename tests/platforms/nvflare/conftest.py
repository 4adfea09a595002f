from __future__ import annotations

import json
import logging
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from rankdad.common.spec import RunSpec
from rankdad.platforms.nvflare.job import write_job
from tests.conftest import OPEN, SITES, run_spec, write_site
from tests.platforms.nvflare.engine import Engine, stubs

COUNTS = (48, 32, 17)
ID = "0123456789abcdef"


@pytest.fixture(autouse=True)
def _no_nvflare() -> Iterator[None]:
    logger = logging.getLogger("rankdad")
    with stubs():
        yield
    logger.propagate = True


@pytest.fixture
def consortium(tmp_path: Path) -> Callable[..., Engine]:
    """Return what makes a job over kits that stay: asked again, it is the same job."""

    def make(
        settings: dict[str, dict[str, Any]] | None = None, policy: dict[str, Any] | None = None, **changes: Any
    ) -> Engine:
        spec: RunSpec = run_spec(**changes)
        for index, (site, count) in enumerate(zip(SITES, COUNTS, strict=True)):
            kit = tmp_path / site
            if not kit.exists():
                write_site(kit / "data", count, index)
                own = {"name": site, "aggregator": "nvflare", "data": "data", "output": "out", "policy": "policy.json"}
                (kit / "policy.json").write_text(json.dumps(OPEN | (policy or {})))
                (kit / "rankdad.json").write_text(json.dumps(own | (settings or {}).get(site, {})))
        server = tmp_path / "server"
        if not server.exists():
            server.mkdir()
            (server / "rankdad.json").write_text(json.dumps({"directory": "runs"}))
            write_job(spec, tmp_path / "job", number=ID)
        return Engine(tmp_path, tmp_path / "job" / "app" / "config", SITES)

    return make
