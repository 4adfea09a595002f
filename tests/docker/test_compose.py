"""The composed consortium: the weights of the simulator, also when a process is killed; no site sees another."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from rankdad.remote.tables import count_of
from tests.docker.images import ROOT, docker, image, nginx, wait_for

pytestmark = [pytest.mark.exhaustive, pytest.mark.docker, pytest.mark.xdist_group("docker"), pytest.mark.timeout(600)]

SITES = ("hospital-a", "hospital-b", "hospital-c", "hospital-d")
PARTIES = ("aggregator", *SITES)
TOOLS = ("docker compose", "docker-compose")
EPOCHS = 12
USER = 1000
ADDRESS = "{{range .NetworkSettings.Networks}}{{.IPAddress}}{{end}}"
LISTEN = "import socket; s = socket.create_server(('0.0.0.0', 9999), backlog=8)\nwhile True: s.accept()"
REACH = """
import socket
for place in {}:
    try:
        socket.create_connection(place, timeout=1)
    except OSError as error:
        print(type(error).__name__)
    else:
        print("yes")
"""


class Consortium:
    """The project of compose.yaml, or of compose-regions.yaml, under a name of its own."""

    def __init__(self, tool: str, folder: Path, regions: tuple[str, ...] = ()) -> None:
        self._tool, self.regions = tool.split(), regions
        self.parties = (*PARTIES, *regions)
        self.containers = self.parties if regions else (*PARTIES, "nginx")
        self._file = f"docker/compose{'-regions' * bool(regions)}.yaml"
        document = json.loads((ROOT / "simulations" / "specs" / f"digits{'-regions' * bool(regions)}.json").read_text())
        document["run"]["training"]["epochs"] = EPOCHS
        self.spec, self.results = folder / "run.json", folder / "results"
        self.spec.write_text(json.dumps(document))
        self._name = f"rankdad-test-{uuid.uuid4().hex[:8]}"  # two may be up at once
        self._containers: dict[str, str] = {}
        self._environment = os.environ | {
            **{"RANKDAD_RUN": str(self.spec), "RANKDAD_RESULTS": str(self.results)},
            **{"RANKDAD_UID": str(USER), "RANKDAD_GID": str(USER), "RANKDAD_IMAGE": image()},
            "RANKDAD_NGINX": nginx(),
        }

    def do(self, *arguments: str) -> str:
        command = [*self._tool, "--project-name", self._name, "--file", self._file, *arguments]
        done = subprocess.run(
            command, cwd=ROOT, env=self._environment, stdout=-1, stderr=subprocess.STDOUT, text=True, check=False
        )
        assert done.returncode == 0, done.stdout
        return done.stdout

    def container(self, party: str) -> str:
        if party not in self._containers:
            self._containers[party] = self.do("ps", "--all", "--quiet", party).split()[0]
        return self._containers[party]

    def state(self, party: str) -> dict[str, Any]:
        state: dict[str, Any] = json.loads(docker("inspect", self.container(party)))[0]
        return state

    def steps(self) -> int:
        return count_of(self.results / "aggregator", "steps")

    def reached(self, party: str, places: list[tuple[str, int]]) -> list[str]:
        """Tell which places are reached from within a container, or the name of the error."""
        return docker("exec", self.container(party), "python", "-c", REACH.format(places), check=False).split()

    def wait(self) -> None:
        """Wait until all have ended."""

        def ended() -> bool:
            return all(self.state(one)["State"]["Status"] == "exited" for one in self.containers)

        wait_for(ended, 180, lambda: self.do("logs", "--tail", "20"))

    def check(self, expected: str | None) -> str:
        """Check that all have ended well, with these weights, or with some; return their digest."""
        for one in self.containers:
            assert self.state(one)["State"]["ExitCode"] == 0, self.do("logs", "--tail", "20", one)
        summary = json.loads((self.results / "aggregator" / "summary.json").read_text())
        assert summary["status"] == "completed"
        digest: str = expected or next(iter(summary["weights_sha256"].values()))
        assert summary["weights_sha256"] == dict.fromkeys((*SITES, *self.regions), digest)
        for party in self.parties:
            assert (self.results / party / "model" / "best.safetensors").stat().st_uid == USER
        return digest


def check_installed(tool: str) -> None:
    """Skip the test where one of the two is not there."""
    try:
        subprocess.run([*tool.split(), "version"], capture_output=True, check=True)
    except (OSError, subprocess.CalledProcessError):
        pytest.skip(f"{tool} is not installed")


@pytest.fixture(scope="module", params=TOOLS)
def consortium(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Consortium]:
    image()
    check_installed(request.param)
    with started(request.param, tmp_path_factory.mktemp("consortium")) as made:
        yield made


@contextlib.contextmanager
def started(tool: str, folder: Path, regions: tuple[str, ...] = ()) -> Iterator[Consortium]:
    """Make a consortium of which nothing is left afterwards."""
    for above in (folder, *folder.parents[:2]):
        above.chmod(0o755)
    made = Consortium(tool, folder, regions)
    try:
        yield made
    finally:
        made.do("down", "--volumes", "--timeout", "1")
        if os.geteuid() != USER:  # what belongs to another user is removed by root
            mount = ("--volume", f"{folder}:/x", "--entrypoint", "rm")
            docker("run", "--rm", "--user", "0", *mount, image(), "-r", "/x/results")


@pytest.fixture(scope="module")
def expected(consortium: Consortium, tmp_path_factory: pytest.TempPathFactory) -> str:
    return simulated(consortium, tmp_path_factory.mktemp("simulated") / "run")


def simulated(consortium: Consortium, output: Path) -> str:
    """The weights of the simulator on this machine."""
    from rankdad.__main__ import app

    done = CliRunner().invoke(app, ["simulate", str(consortium.spec), "--output", str(output), "--lockstep", "--json"])
    assert done.exit_code == 0, done.output
    (digest,) = set(json.loads((output / "summary.json").read_text())["weights_sha256"].values())
    return str(digest)


def test_no_site_sees_another_and_what_is_killed_changes_nothing(consortium: Consortium, expected: str) -> None:
    killed = ("hospital-c", "nginx", "aggregator")
    consortium.do("up", "--detach", "--no-build")
    assert all(consortium.container(one) for one in consortium.containers)  # asked for now: it takes a while
    wait_for(lambda: consortium.steps() > 2, 120, lambda: consortium.do("logs", "--tail", "20"))
    for party in killed:
        process = consortium.state(party)["State"]["Pid"]
        assert process > 1, f"the run was over before {party} could be killed"
        try:
            os.kill(process, signal.SIGKILL)
        except PermissionError:
            pytest.skip("only root may kill a container's process")
    docker("exec", "--detach", consortium.container("hospital-b"), "python", "-c", LISTEN)
    address = docker("inspect", "--format", ADDRESS, consortium.container("hospital-b"))
    places = [("aggregator", 8765), (address, 9999), ("hospital-b", 9999)]
    wait_for(lambda: consortium.reached("nginx", places[1:]) == ["yes", "yes"], 20, lambda: address)
    wait_for(lambda: consortium.reached("hospital-a", places) == ["yes", "TimeoutError", "gaierror"], 20, str)
    assert consortium.state("aggregator")["HostConfig"]["NetworkMode"] == "none"
    mounts = {party: {m["Source"] for m in consortium.state(party)["Mounts"]} for party in PARTIES}
    assert all(not mounts[one] & mounts[other] for one in SITES for other in PARTIES if one != other)
    consortium.wait()
    assert [consortium.state(party)["RestartCount"] for party in killed] == [1, 1, 1]
    consortium.check(expected)


def test_a_second_start_puts_the_results_aside_and_draws_other_batches(consortium: Consortium, expected: str) -> None:
    said = consortium.do("up", "--no-build")
    assert "the results of the run that has ended are now in results/earlier/" in said
    assert "the kits of an earlier start are used" in said
    assert consortium.check(None) != expected
    (earlier,) = (consortium.results / "earlier").iterdir()
    assert sorted(path.name for path in earlier.iterdir()) == sorted(PARTIES)
    assert (earlier / "aggregator" / "summary.json").exists()


@pytest.mark.parametrize("tool", TOOLS)
def test_two_regions_of_two_hospitals_end_with_the_weights_of_the_simulator(tool: str, tmp_path: Path) -> None:
    image()
    check_installed(tool)
    with started(tool, tmp_path, ("east", "west")) as consortium:
        consortium.do("up", "--no-build")
        consortium.check(simulated(consortium, tmp_path / "simulated"))
