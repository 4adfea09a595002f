"""A job's folder, as `nvflare job submit` and `nvflare simulator` take it."""

from __future__ import annotations

import json
import secrets
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from rankdad.common.errors import SpecError, UserError
from rankdad.common.files import cannot_write
from rankdad.common.spec import RunSpec
from rankdad.platforms.nvflare.site import KEY, RUN

INTERVAL = 0.05  # seconds between two looks of a client for its next task: NVFlare itself waits for two
PACKAGE = "rankdad.platforms.nvflare"
CONTROLLER, EXECUTOR = ("controller", "RunController"), ("executor", "SiteExecutor")
BROUGHT = "rankdad_job"  # module of a job that brings code
CODE = '''"""What NVFlare starts of rankdad, which is installed at every node."""

from rankdad.platforms.nvflare.controller import RunController as RunController
from rankdad.platforms.nvflare.executor import SiteExecutor as SiteExecutor
'''


def write_job(spec: RunSpec, output: Path, *, brings_code: bool = False, number: str | None = None) -> str:
    """Write a job, and return the identity of its run: submitted again, the job continues it.

    Args:
        spec: the run.
        output: folder of the job.
        brings_code: whether the job has a module of its own, which takes the right to bring code; without one every
            node's `class_allow_list` has to name the package.
        number: identity of the run; drawn without it.

    Raises:
        UserError: the run cannot be had on NVFlare, or the folder cannot be written.
    """
    if spec.federation.regions:
        said = "an NVFlare server has no regions below it: leave them out"
        raise SpecError("federation.regions", said, code="regions-unsupported")
    if getattr(spec.data, "patterns", ()):
        said = "has patterns: `rankdad resolve` replaces them by the columns that all sites have"
        raise SpecError("data.features", said, code="pattern-unresolved")
    if output.exists() and (not output.is_dir() or any(output.iterdir())):
        raise UserError(
            f"--output: {output} is there already: choose another folder, or remove it",
            code="output-exists",
            field="--output",
        )
    number = number or secrets.token_hex(8)
    sites = spec.federation.sites
    meta = {
        "name": spec.name,
        "min_clients": spec.federation.required_sites,
        "mandatory_clients": list(sites) if spec.federation.required_sites == len(sites) else [],
        "deploy_map": {"app": ["server", *sites]},
        "resource_spec": {},
    }
    server = {
        "format_version": 2,
        "server": {"heart_beat_timeout": 600, "task_request_interval": INTERVAL},
        "workflows": [{"id": KEY, "path": _path(CONTROLLER, brings_code), "args": {}}],
        **_nothing_else(),
    }
    client = {
        "format_version": 2,
        "default_task_fetch_interval": INTERVAL,
        "executors": [{"tasks": [KEY], "executor": {"path": _path(EXECUTOR, brings_code), "args": {}}}],
        **_nothing_else(),
    }
    config = output / "app" / "config"
    files: dict[Path, Mapping[str, Any]] = {
        output / "meta.json": meta,
        config / "config_fed_server.json": server,
        config / "config_fed_client.json": client,
        config / RUN: {"id": number, "run": spec.document()},
    }
    try:
        config.mkdir(parents=True)
        for path, document in files.items():
            path.write_text(json.dumps(document, indent=2) + "\n", encoding="utf-8")
        if brings_code:
            custom = output / "app" / "custom"
            custom.mkdir()
            (custom / f"{BROUGHT}.py").write_text(CODE, encoding="utf-8")
    except OSError as error:
        raise cannot_write(output, error, "--output") from None
    return number


def _path(place: tuple[str, str], brings_code: bool) -> str:
    module, name = place
    return f"{BROUGHT}.{name}" if brings_code else f"{PACKAGE}.{module}.{name}"


def _nothing_else() -> dict[str, list[object]]:
    return {"components": [], "task_data_filters": [], "task_result_filters": []}
