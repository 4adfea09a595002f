"""A job's folder, as `nvflare job submit` and `nvflare simulator` take it."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from rankdad.common.spec import RunSpec
from rankdad.platforms.jobs import checked, write_files
from rankdad.platforms.nvflare.site import KEY, RUN

INTERVAL = 0.05  # seconds between two looks of a client for its next task: NVFlare itself waits for two
PACKAGE = "rankdad.platforms.nvflare"
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
    number = checked(spec, "an NVFlare server", number)
    modules = [BROUGHT, BROUGHT] if brings_code else [f"{PACKAGE}.{module}" for module in ("controller", "executor")]
    paths = f"{modules[0]}.RunController", f"{modules[1]}.SiteExecutor"
    files = job_files(spec.name, spec.federation.sites, *paths, spec.federation.required_sites)
    files[f"app/config/{RUN}"] = {"id": number, "run": spec.document()}
    brought = {f"app/custom/{BROUGHT}.py": CODE} if brings_code else {}
    write_files(output, brought | {name: json.dumps(file, indent=2) + "\n" for name, file in files.items()})
    return number


def job_files(
    name: str, sites: Sequence[str], controller: str, executor: str, required: int
) -> dict[str, dict[str, Any]]:
    """Return the files of a job, but for what is the run's own: by their paths, what they say.

    Args:
        name: of the job.
        sites: names of the clients.
        controller: path of the server's class.
        executor: path of the clients' class.
        required: how many clients the job needs.
    """
    return {
        "meta.json": {
            "name": name,
            "min_clients": required,
            "mandatory_clients": list(sites) if required == len(sites) else [],
            "deploy_map": {"app": ["server", *sites]},
            "resource_spec": {},
        },
        "app/config/config_fed_server.json": {
            "format_version": 2,
            "server": {"heart_beat_timeout": 600, "task_request_interval": INTERVAL},
            "workflows": [{"id": KEY, "path": controller, "args": {}}],
        },
        "app/config/config_fed_client.json": {
            "format_version": 2,
            "default_task_fetch_interval": INTERVAL,
            "executors": [{"tasks": [KEY], "executor": {"path": executor, "args": {}}}],
        },
    }
