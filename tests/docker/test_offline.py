"""The archive for machines without internet: verified, then installed and run where no address is reached."""

from __future__ import annotations

import hashlib
import json
import os
import platform
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from rankdad.common import __version__
from tests.conftest import run_document, write_policy, write_site
from tests.docker.images import HARDENED, ROOT, container, docker, image, logs_of, torch_index, wait_for

ALONE = run_document(federation={"sites": ["alpha"]}, training={"epochs": 1})
Damage = Callable[[Path], object]


def sums(folder: Path) -> None:
    """Write the checksums of an unpacked archive."""
    files = sorted(path for path in folder.rglob("*") if path.is_file() and path.name != "SHA256SUMS")
    lines = (f"{hashlib.sha256(path.read_bytes()).hexdigest()}  ./{path.relative_to(folder)}\n" for path in files)
    (folder / "SHA256SUMS").write_text("".join(lines))


@pytest.fixture
def unpacked(tmp_path: Path) -> Path:
    """An archive without wheels in its folder of wheels."""
    folder = tmp_path / "unpacked"
    (folder / "wheels").mkdir(parents=True)
    (folder / "install").write_bytes((ROOT / "docker" / "offline-install").read_bytes())
    (folder / "install").chmod(0o755)
    here = " ".join([*platform.python_version_tuple()[:2], platform.machine()])
    (folder / "wheels" / "python.txt").write_text(f"{here}\n")
    (folder / "wheels" / "requirements.txt").write_text("rankdad==9.9\n")
    sums(folder)
    return folder


def install(folder: Path, *words: str) -> tuple[int, str]:
    environment = os.environ | {"PYTHON": sys.executable}
    done = subprocess.run(
        [folder / "install", *words], capture_output=True, text=True, check=False, env=environment, cwd=folder.parent
    )
    return done.returncode, done.stderr


def other_python(folder: Path) -> None:
    (folder / "wheels" / "python.txt").write_text("2 7 vax\n")
    sums(folder)


def by_a_link(folder: Path) -> None:
    """Let the same bytes lie elsewhere, where they can be changed once they are verified."""
    (folder / "wheels" / "requirements.txt").rename(folder.parent / "elsewhere")
    (folder / "wheels" / "requirements.txt").symlink_to(folder.parent / "elsewhere")


@pytest.mark.parametrize(
    ("damage", "said"),
    [
        (lambda folder: (folder / "wheels" / "requirements.txt").write_text("evil\n"), "files are damaged"),
        (lambda folder: (folder / "wheels" / "rankdad-9.9.9-py3-none-any.whl").touch(), "does not list the files"),
        (lambda folder: (folder / "wheels" / "more").symlink_to("/etc"), "neither a file nor a folder"),
        (by_a_link, "neither a file nor a folder"),
        (lambda folder: (folder / "wheels" / "requirements.txt").unlink(), "does not list the files"),
        (other_python, "the wheels are for Python 2 7 vax"),
        (lambda folder: (folder.parent / "made").mkdir(), "already exists"),
    ],
)
def test_nothing_is_installed_of_an_archive_that_is_damaged_or_another_machines(
    unpacked: Path, damage: Damage, said: str
) -> None:
    damage(unpacked)
    status, error = install(unpacked, "wheels", "made")
    assert (status, said in error) == (2, True), error
    assert not (unpacked.parent / "made" / "bin").exists()


@pytest.mark.parametrize("words", [(), ("image",), ("wheels",), ("else",)])
def test_what_to_install_is_one_of_what_is_there(unpacked: Path, words: tuple[str, ...]) -> None:
    status, error = install(unpacked, *words)
    assert (status, error.startswith("error: ")) == (2, True), error


def packed(folder: Path, part: str, **variables: str) -> Path:
    """Make an archive, and return the folder that it unpacks to."""
    archive = folder / "archive.tar"
    environment = os.environ | {"PYTHON": sys.executable} | variables
    done = subprocess.run(
        [ROOT / "docker" / "offline", archive, part], capture_output=True, text=True, check=False, env=environment
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines()[-1].split() == [hashlib.sha256(archive.read_bytes()).hexdigest(), archive.name]
    subprocess.run(["tar", "--extract", "--file", archive, "--directory", folder], check=True)
    return folder / f"rankdad-{__version__}-offline"


@pytest.fixture
def hospital(tmp_path: Path) -> Path:
    """A folder with a run, and the data and policy of its one site."""
    folder = tmp_path / "hospital"
    write_site(folder / "data", 40, 0)
    write_policy(folder)
    (folder / "run.json").write_text(json.dumps(ALONE))
    site = {"name": "alpha", "aggregator": "http://127.0.0.1:8765", "data": "data", "output": "out"}
    (folder / "SITE.json").write_text(json.dumps(site | {"policy": "policy.json", "privacy": "privacy"}))
    return folder


PATH_OF_WHEELS = """
set -eu
ip link set lo up
test -z "$(ip route)"
! "$PYTHON" -c "import socket; socket.create_connection(('192.0.2.1', 443), 2)" 2>/dev/null
"$1/install" wheels "$2/environment"
cd "$2"
environment/bin/rankdad aggregator run.json --output run &
aggregator=$!
environment/bin/rankdad check SITE.json
environment/bin/rankdad site SITE.json
wait "$aggregator"
"""


@pytest.mark.exhaustive
@pytest.mark.timeout(1200)
def test_wheels_are_installed_and_take_part_where_no_address_is_reached(tmp_path: Path, hospital: Path) -> None:
    """In a network namespace that has the loopback interface alone."""
    if subprocess.run(["unshare", "--net", "true"], check=False, capture_output=True).returncode:
        pytest.skip("no network namespace may be made here")
    index = torch_index()
    unpacked = packed(tmp_path, "wheels", **({} if index is None else {"TORCH_INDEX": index}), EXTRAS="demo")
    environment = {name: value for name, value in os.environ.items() if not name.startswith(("PIP_", "PYTHONPATH"))}
    done = subprocess.run(
        ["unshare", "--net", "bash", "-c", PATH_OF_WHEELS, "bash", unpacked, hospital],
        capture_output=True,
        text=True,
        check=False,
        env=environment | {"PYTHON": sys.executable},
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert f"rankdad {__version__}" in done.stdout
    ended = json.loads((hospital / "run" / "summary.json").read_text())
    assert ended["status"] == "completed"
    assert (hospital / "out" / "model" / "best.safetensors").exists()


@pytest.mark.exhaustive
@pytest.mark.docker
@pytest.mark.xdist_group("docker")
@pytest.mark.timeout(1200)
def test_the_image_is_loaded_and_takes_part_without_network(tmp_path: Path, hospital: Path) -> None:
    image()
    docker("tag", "rankdad:test", "rankdad:offline-test")
    try:
        unpacked = packed(tmp_path, "image", RANKDAD_IMAGE="rankdad:offline-test")
        docker("rmi", "rankdad:offline-test")
        status, error = install(unpacked, "image")
        assert status == 0, error
        hospital.chmod(0o777)
        kit = ("--volume", f"{hospital}:/kit", "--workdir", "/kit")
        serve = ("rankdad:offline-test", "aggregator", "/kit/run.json", "--output", "/kit/run")
        with container("--network", "none", *kit, *serve) as aggregator:
            docker(
                *("run", "--rm", *HARDENED, "--network", f"container:{aggregator}", *kit),
                *("rankdad:offline-test", "site", "/kit/SITE.json"),
            )
            wait_for(
                lambda: docker("inspect", "--format", "{{.State.Running}}", aggregator) == "false",
                60,
                lambda: logs_of(aggregator),
            )
        told = docker("run", "--rm", "--network", "none", *kit, "--entrypoint", "cat", image(), "/kit/run/summary.json")
        assert json.loads(told)["status"] == "completed"
    finally:
        docker("rmi", "--force", "rankdad:offline-test", check=False)
