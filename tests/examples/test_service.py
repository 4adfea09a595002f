"""The service of the examples in containers: the commands of its page."""

from __future__ import annotations

import json
import os
import re
import subprocess
import uuid
from pathlib import Path

import pytest

from tests.docker.images import ROOT, docker, image, nginx
from tests.docker.test_compose import USER, check_installed

pytestmark = [pytest.mark.exhaustive, pytest.mark.docker, pytest.mark.xdist_group("docker"), pytest.mark.timeout(600)]
TOOL = "docker-compose"
EXAMPLE = ROOT / "examples" / "service"


def test_an_owner_submits_a_run_that_a_hospital_approves_by_hand(tmp_path: Path) -> None:
    image()
    check_installed(TOOL)
    for above in (tmp_path, *tmp_path.parents[:2]):
        above.chmod(0o755)
    project = f"rankdad-example-{uuid.uuid4().hex[:8]}"
    environment = os.environ | {
        **{"RANKDAD_RESULTS": str(tmp_path / "results"), "RANKDAD_IMAGE": image(), "RANKDAD_NGINX": nginx()},
        **{"RANKDAD_UID": str(USER), "RANKDAD_GID": str(USER), "COMPOSE_PROJECT_NAME": project},
    }
    page = (EXAMPLE / "README.md").read_text()
    commands = "".join(re.findall(r"^```sh\n(.*?)^```$", page, re.MULTILINE | re.DOTALL)).splitlines()
    assert "down --volumes" in commands[-1]
    try:
        for command in commands[:-1]:
            own = command.replace("docker compose", TOOL).replace("up --detach", "up --detach --no-build")
            done = subprocess.run(
                own,
                shell=True,
                cwd=EXAMPLE,
                env=environment,
                stdout=-1,
                stderr=subprocess.STDOUT,
                text=True,
                check=False,
            )
            assert done.returncode == 0, f"{own}: {done.stdout}"
        results = tmp_path / "results" / "readmitted-1"
        summary = json.loads((results / "summary.json").read_text())
        assert (summary["status"], len(set(summary["weights_sha256"].values()))) == ("completed", 1)
        assert summary["metrics"]["test"]["auc"] == pytest.approx(0.755, abs=0.01)
        assert (results / "summary.json").stat().st_uid == USER
        service = docker("ps", "--quiet", "--filter", f"name={project}.service", "--filter", "status=running")
        assert json.loads(docker("inspect", service))[0]["HostConfig"]["NetworkMode"] == "none"
    finally:
        down = commands[-1].replace("docker compose", TOOL) + " --timeout 1"
        subprocess.run(down, shell=True, cwd=EXAMPLE, env=environment, capture_output=True, check=False)
        if os.geteuid() != USER:
            mount = ("--volume", f"{tmp_path}:/x", "--entrypoint", "rm")
            docker("run", "--rm", "--user", "0", *mount, image(), "-rf", "/x/results")
