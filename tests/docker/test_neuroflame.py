"""The image of NeuroFLAME's computation, whose containers are started as its central and edge clients start them.

Singularity's rules are imitated: a root that is only read, a user whom the image does not know, no environment.
"""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import sys
import uuid
from pathlib import Path
from typing import Any

import pytest

from tests.conftest import OPEN
from tests.docker.images import ROOT, docker, network, neuroflame

pytestmark = [
    pytest.mark.exhaustive,
    pytest.mark.docker,
    pytest.mark.xdist_group("containers"),
    pytest.mark.timeout(1500),
]
SPEC = ROOT / "simulations" / "specs" / "digits.json"
SETS = ("run.training.epochs=1", "run.training.batch_size=64", 'run.model={"name":"mlp","hidden":[16]}')
SITES = ("hospital-a", "hospital-b", "hospital-c", "hospital-d")
IDS = dict(zip(("64b7c0ffee01", "64b7c0ffee02", "64b7c0ffee03", "640700000004"), SITES, strict=True))
USER = "4321:4321"
SINGULARITY = ("--user", USER, "--read-only", "--tmpfs", "/tmp", "--cap-drop", "ALL")
NOTHING = ("env", "-i", "PATH=/usr/local/bin:/usr/bin:/bin")


@pytest.fixture
def kits(tmp_path: Path) -> Path:
    """Simulate a run, and return the folder of a workspace for every node."""
    output = tmp_path / "simulated"
    sets = [word for one in (*SETS, f"simulation.policy={json.dumps(OPEN)}") for word in ("--set", one)]
    words = [sys.executable, "-m", "rankdad", "simulate", str(SPEC), "--lockstep", "--quiet", "--output", str(output)]
    subprocess.run([*words, *sets], check=True, cwd=ROOT)
    run = json.loads((output / "run.json").read_text())
    given: dict[str, Any] = {
        "users": [{"id": id_, "name": f"Site {site[-1]}"} for id_, site in IDS.items()],
        "computation_parameters": json.dumps({"spec": run}),
        "fed_learn_port": 3010,
        "host_identifier": "central.test",
    }
    made = tmp_path / "run"
    made.mkdir()
    (made / "provision_input.json").write_text(json.dumps(given))
    opened(made)
    docker("run", "--rm", *SINGULARITY, "-v", f"{made}:/provisioning/", neuroflame(), *started("provision"))
    shutil.copytree(made / "runKits" / "centralNode", tmp_path / "central" / "runKit")
    for id_, site in IDS.items():
        own = tmp_path / site
        shutil.copytree(made / "runKits" / id_, own / "runKit")
        shutil.copytree(output / "sites" / site / "data", own / "data")
        (own / "data" / "local_parameters.json").write_text(json.dumps({"name": site, "policy": OPEN}))
        (own / "output").mkdir()
    for node in ("central", *SITES):
        opened(tmp_path / node)
    return tmp_path


def opened(folder: Path) -> None:
    """Let the containers' user write, as folders of the platform's do."""
    subprocess.run(["chmod", "-R", "a+rwX", str(folder)], check=True)


def started(node: str) -> tuple[str, ...]:
    return (*NOTHING, "python", f"/workspace/system/entry_{node}.py")


def run(kits: Path) -> dict[str, tuple[int, str]]:
    """Start all nodes, and return how each has ended, and what it has printed."""
    names = {node: f"rankdad-test-{uuid.uuid4().hex[:8]}" for node in ("central", *SITES)}
    ended = dict[str, tuple[int, str]]()
    with network() as net:
        try:
            for node, name in names.items():
                kind, alias = ("central", ("--network-alias", "central.test")) if node == "central" else ("edge", ())
                mounts = ("runKit",) if node == "central" else ("runKit", "output", "data")
                volumes = [word for mount in mounts for word in ("-v", f"{kits / node / mount}:/workspace/{mount}")]
                options = ("--detach", "--name", name, "--network", net, *alias, *SINGULARITY, *volumes)
                docker("run", *options, neuroflame(), *started(kind))
            for node, name in names.items():
                code = int(docker("wait", name).splitlines()[-1])
                ended[node] = code, docker("logs", name)
        finally:
            for name in names.values():
                docker("rm", "--force", name, check=False)
    return ended


def test_containers_end_with_the_weights_of_lockstep(kits: Path) -> None:
    ended = run(kits)
    assert {node: code for node, (code, _) in ended.items()} == dict.fromkeys(ended, 0), ended["central"][1][-3000:]
    digests, ours = (
        set(json.loads((folder / "summary.json").read_text())["weights_sha256"].values())
        for folder in (kits / "simulated", kits / "central" / "runKit" / "rankdad" / "run")
    )
    assert ours == digests
    for site in SITES:
        output = kits / site / "output"
        assert "report.html" in (output / "index.html").read_text()
        assert "auc" in (output / "metrics.csv").read_text()
        assert list((output / "global_stats").glob("*.png"))


def test_the_page_s_check_of_a_member_s_data(tmp_path: Path) -> None:
    page = (ROOT / "docs" / "how-to" / "neuroflame.md").read_text(encoding="utf-8")
    parameters, own = re.findall(r"```json\n(.*?)```", page, re.DOTALL)
    (command,) = re.findall(r"^    (docker run --rm .*?check)$", page, re.MULTILINE | re.DOTALL)
    for name, text in (("runKit/parameters.json", parameters), ("data/local_parameters.json", own)):
        path = tmp_path / "check" / name
        path.parent.mkdir(parents=True)
        path.write_text(text)
    rows = [f"{row},{row % 7},{('benign', 'malignant')[row * 3 % 5 > 2]}" for row in range(300)]
    (tmp_path / "check" / "data" / "patients.csv").write_text("\n".join(["age,marker,diagnosis", *rows]))
    words = ["bash", "-c", command.replace("NAME/rankdad-neuroflame", neuroflame())]
    done = subprocess.run(words, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout.splitlines()[-1:]) == (0, ["the data can be used"]), done.stderr
    (tmp_path / "check" / "data" / "patients.csv").unlink()
    assert subprocess.run(words, cwd=tmp_path, capture_output=True, check=False).returncode == 1


def test_a_member_whose_data_cannot_be_used_ends_the_run_and_its_words_stay_there(kits: Path) -> None:
    (kits / SITES[1] / "data" / "data.npz").write_bytes(b"secret words")
    ended = run(kits)
    assert all(code == 1 for code, _ in ended.values())
    assert "npz-unreadable" in ended["central"][1]
    assert "data.npz" in (kits / SITES[1] / "output" / "error.txt").read_text()
    for _, said in ended.values():
        assert "secret words" not in said
    assert len(ended[SITES[1]][1].splitlines()) == 1
