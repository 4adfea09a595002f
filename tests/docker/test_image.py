"""The image: what it holds, what it takes, how it ends."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.docker.images import HARDENED, HEALTH, container, docker, image, logs_of, memory_of, network, wait_for

pytestmark = [pytest.mark.slow, pytest.mark.docker, pytest.mark.xdist_group("docker"), pytest.mark.timeout(600)]

SIZE = 950e6  # bytes
IDLE = 400.0  # MB of memory of a site that waits
SPEC = "/opt/rankdad/lib/python3.11/site-packages/rankdad/simulations/specs/digits.json"
OUT = {"output": "/tmp/out", "privacy": "/tmp/privacy"}
DIGITS = ("--set", 'simulation.source={"name": "npz", "path": "/opt/rankdad/digits.npz"}')  # there is no scikit-learn
ADDRESS = "{{range .NetworkSettings.Networks}}{{.IPAddress}}{{end}}"


def run(*arguments: str) -> str:
    return docker("run", "--rm", *HARDENED, *arguments)


@pytest.fixture(scope="module")
def waiting(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[str, str]]:
    """An aggregator, and one site that waits for the three others."""
    folder = tmp_path_factory.mktemp("kit")
    folder.chmod(0o777)
    plain = ("--host", "0.0.0.0", "--exposed", "--allow-plain-http", "--allow-anyone")
    with (
        network() as net,
        container("--network", net, image(), "aggregator", SPEC, "--output", "/tmp/run", *plain) as aggregator,
    ):
        run("--volume", f"{folder}:/kit", image(), "split", SPEC, *DIGITS, "--output", "/kit/all")
        address = f"http://{docker('inspect', '--format', ADDRESS, aggregator)}:8765"
        site = {"name": "hospital-a", "aggregator": address, "allow_plain_http": True}
        (folder / "SITE.json").write_text(
            json.dumps(site | {"data": "all/hospital-a/data", "policy": "all/hospital-a/policy.json"} | OUT)
        )
        with container("--network", net, "--volume", f"{folder}:/kit:ro", image(), "site", "/kit/SITE.json") as name:
            wait_for(lambda: "samples to train on" in logs_of(name), 60, lambda: logs_of(name))
            wait_for(lambda: "waiting for" in logs_of(aggregator), 60, lambda: logs_of(aggregator))
            yield aggregator, name


def test_the_image_is_small() -> None:
    size = int(docker("image", "inspect", "--format", "{{.Size}}", image()))
    print(f"\nimage: {size / 1e6:.0f} MB")
    assert size <= SIZE


def test_it_holds_what_runs_and_nothing_that_builds() -> None:
    script = (
        "! command -v pip && ! command -v gcc && ! command -v cc && ! python -m pip 2>/dev/null && "
        "test -z \"$(find / -xdev '(' -name '*.whl' -o -name tests -path '*site-packages*' ')' 2>/dev/null)\" && "
        'test -z "$(find / -xdev -type f -perm /6000 2>/dev/null)" && '
        "! touch /opt/rankdad/x 2>/dev/null && touch /tmp/x && echo in order"
    )
    assert run("--entrypoint", "sh", image(), "-c", script).endswith("in order")


def test_a_waiting_site_takes_little_memory_and_is_healthy(waiting: tuple[str, str]) -> None:
    for name in waiting:
        docker("exec", name, *HEALTH)
        print(f"\nmemory: {memory_of(name):.0f} MB")
    assert memory_of(waiting[1]) < IDLE


def test_who_does_not_serve_what_it_should_is_not_healthy(waiting: tuple[str, str]) -> None:
    with container("--entrypoint", "sleep", image(), "60") as name:
        assert "no rankdad runs here" in docker("exec", name, *HEALTH, check=False)


@pytest.mark.exhaustive
def test_it_runs_under_any_user(waiting: tuple[str, str]) -> None:
    out = run(
        "--user",
        "4321:4321",
        image(),
        "simulate",
        SPEC,
        *DIGITS,
        "--output",
        "/tmp/r",
        "--set",
        "run.training.epochs=1",
    )
    assert "weights: equal at all sites" in out


@pytest.mark.exhaustive
def test_a_users_package_is_found_whatever_its_name(tmp_path: Path) -> None:
    (tmp_path / "common.py").write_text("from torch import nn\nmake = lambda: nn.Sequential(nn.Linear(64, 10))\n")
    tmp_path.chmod(0o755)
    mount = ("--volume", f"{tmp_path}:/models:ro", "--workdir", "/models", "--env", "PYTHONPATH=/models")

    def check(factory: str) -> str:
        model = json.dumps({"name": "factory", "factory": factory})
        options = (*DIGITS, "--set", f"run.model={model}", "--allow-factory", factory)
        return docker("run", "--rm", *HARDENED, *mount, image(), "check", SPEC, *options, check=False)

    assert "0.weight" in check("common:make")
    assert check("rankdad.nets:make").endswith("[factory-cannot-be-imported]")
