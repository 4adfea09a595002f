"""Real processes of two versions: a wheel of the tree with another version number, in a folder of its own."""

from __future__ import annotations

import contextlib
import json
import os
import re
import shutil
import subprocess
import sys
import time
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from rankdad.common import __version__
from rankdad.common.data import read_site
from rankdad.common.documents import load_json
from rankdad.common.protocol.versions import WIRE
from rankdad.common.spec import RunSpec
from rankdad.remote.tables import count_of
from rankdad.simulations import lockstep
from tests.conftest import SITES, run_spec, write_policy, write_site
from tests.e2e.test_wheel import PIP, ROOT, built, cloned
from tests.ports import free_port

pytestmark = [pytest.mark.exhaustive, pytest.mark.timeout(600)]
Installed = Callable[..., Path]
LONGEST = 120.0  # seconds
OWN_MAJOR, OWN_MINOR = map(int, __version__.split(".")[:2])
PATCH, NEXT, AFTER_NEXT = (f"{OWN_MAJOR}.{OWN_MINOR + up}.{patch}" for up, patch in ((0, 99), (1, 0), (2, 0)))


def renumber(package: Path, version: str, wire: int) -> None:
    """Give a package's sources another version, and another wire."""
    for path, name, value in (
        (package / "__init__.py", "__version__", f'"{version}"'),
        (package / "protocol" / "versions.py", "WIRE", str(wire)),
    ):
        text, count = re.subn(rf"^{name} = .*$", f"{name} = {value}", path.read_text(), flags=re.MULTILINE)
        assert count == 1, path
        path.write_text(text)


@pytest.fixture(scope="module")
def installed(tmp_path_factory: pytest.TempPathFactory) -> Installed:
    """Return a function that installs a version, and returns the folder that it is in."""
    folder = tmp_path_factory.mktemp("versions")
    source = cloned(folder / "source")
    renumber(source / "common", NEXT, WIRE)
    wheel = built(source, folder)
    assert wheel.name.startswith(f"rankdad-{NEXT}-")
    subprocess.run([*PIP, "install", "--quiet", "--no-deps", "--target", str(folder / "next"), str(wheel)], check=True)

    def install(version: str, wire: int = WIRE) -> Path:
        if version == __version__ and wire == WIRE:
            return ROOT
        target = folder / f"{version}-{wire}"
        if not target.exists():
            shutil.copytree(folder / "next", target)
            renumber(target / "rankdad" / "common", version, wire)
        return target

    return install


class Study:
    """A run whose processes are of versions that a test chooses.

    Args:
        folder: where everything lies.
        spec: the run.
    """

    def __init__(self, folder: Path, spec: RunSpec) -> None:
        self.folder, self.spec, self.directory = folder, spec, folder / "run"
        self.processes: dict[str, subprocess.Popen[bytes]] = {}
        self.port = free_port()
        (folder / "run.json").write_text(spec.model_dump_json())
        for number, site in enumerate(spec.federation.sites):
            write_site(folder / site / "data", 60 - 10 * number, number)
            fields = {"name": site, "aggregator": f"http://127.0.0.1:{self.port}", "data": "data", "output": "out"}
            write_policy(folder / site)
            (folder / site / "SITE.json").write_text(json.dumps(fields | {"policy": "policy.json", "patience": 60}))

    @contextlib.contextmanager
    def open(self) -> Iterator[None]:
        """Leave no process behind."""
        try:
            yield
        finally:
            for process in self.processes.values():
                process.kill()
                process.wait()

    def start(self, name: str, where: Path) -> subprocess.Popen[bytes]:
        """Start the aggregator or a site, of the version that is installed in a folder."""
        words = ["site", str(self.folder / name / "SITE.json")]
        if name == "aggregator":
            words = [name, str(self.folder / "run.json"), "--output", str(self.directory), "--port", str(self.port)]
        with (self.folder / f"{name}.log").open("ab") as log:
            self.processes[name] = subprocess.Popen(
                [sys.executable, "-m", "rankdad", *words],
                cwd=where,
                env=os.environ | {"PYTHONPATH": str(where)},
                stdout=log,
                stderr=log,
            )
        return self.processes[name]

    def said(self, name: str) -> str:
        """Return all that a process has said."""
        return (self.folder / f"{name}.log").read_text()

    def refused(self, name: str, where: Path) -> str:
        """Start a process that is refused, and return its error."""
        before = len(self.said(name)) if (self.folder / f"{name}.log").exists() else 0
        assert self.start(name, where).wait(LONGEST) == 2
        return self.said(name)[before:]

    def status(self) -> dict[str, Any]:
        """Return what the aggregator says of its run."""
        with urllib.request.urlopen(f"http://127.0.0.1:{self.port}/status") as answer:
            found: dict[str, Any] = json.load(answer)
        return found

    def until(self, holds: Callable[[], bool]) -> None:
        """Wait until something holds."""
        end = time.monotonic() + LONGEST
        while time.monotonic() < end:
            with contextlib.suppress(OSError):
                if holds():
                    return
            time.sleep(0.1)
        raise AssertionError({name: self.said(name)[-2000:] for name in self.processes})

    def finish(self) -> dict[str, Any]:
        """Wait for all processes, and return the run's summary."""
        for name, process in self.processes.items():
            assert process.wait(LONGEST) == 0, self.said(name)
        found: dict[str, Any] = load_json(self.directory / "summary.json")
        return found

    def undisturbed(self) -> str:
        """Return the digest of the weights that the run has where everything is of one version."""
        data = {
            site: read_site(self.spec, self.folder / site / "data", place)
            for place, site in enumerate(self.spec.federation.sites)
        }
        lockstep.run(self.spec, data, self.folder / "undisturbed")
        digest: str = load_json(self.folder / "undisturbed" / "summary.json")["aggregator_sha256"]
        return digest


def test_neighbours_run_together_and_others_are_refused_by_both_ends(tmp_path: Path, installed: Installed) -> None:
    study = Study(tmp_path, run_spec(method={"name": "rank-dad", "rank": 2}))
    with study.open():
        study.start("aggregator", installed(__version__))
        study.start("alpha", installed(__version__))
        study.start("beta", installed(PATCH))
        study.until(lambda: study.status()["waiting_for"] == ["gamma"])
        before = study.status()
        for version, wire in ((AFTER_NEXT, WIRE), (__version__, WIRE + 1)):
            said = study.refused("gamma", installed(version, wire))
            assert "[version-differs]" in said
            assert f"rankdad {__version__} (wire {WIRE}), this site {version} (wire {wire})" in said
            assert "Traceback" not in said
            now = study.status()
            assert now["problems"]["gamma"].startswith("version: version-differs")
            same = ("round", "waiting_for", "status", "step")
            assert {name: now[name] for name in same} == {name: before[name] for name in same}
        study.start("gamma", installed(NEXT))
        summary = study.finish()
    assert summary["status"] == "completed"
    assert summary["site_versions"] == dict(zip(SITES, (__version__, PATCH, NEXT), strict=True))
    assert summary["weights_sha256"] == dict.fromkeys(SITES, study.undisturbed())


def test_a_run_is_begun_by_one_version_and_ended_by_the_next(tmp_path: Path, installed: Installed) -> None:
    study = Study(tmp_path, run_spec(method={"name": "rank-dad", "rank": 2}, training={"epochs": 60}))
    with study.open():
        study.start("aggregator", installed(__version__))
        for site in SITES:
            study.start(site, installed(__version__))
        study.until(lambda: study.directory.exists() and count_of(study.directory, "steps") > 20)
        for name in ("aggregator", "beta"):
            study.processes[name].kill()
            study.processes[name].wait()
        assert count_of(study.directory, "steps") < 60 * 8, "it has not ended yet"
        held = {path: path.read_bytes() for path in study.directory.rglob("*") if path.is_file()}
        said = study.refused("aggregator", installed(NEXT, WIRE + 1))
        assert "[ledger-of-earlier-version]" in said
        assert f"of wire {WIRE}, this rankdad has wire {WIRE + 1}" in said
        after = {path: path.read_bytes() for path in study.directory.rglob("*") if path.is_file()}
        kept = [path for path in held if not path.name.startswith("run.sqlite")]  # a killed process leaves a journal
        assert [after[path] for path in kept] == [held[path] for path in kept]
        study.start("aggregator", installed(NEXT))
        study.start("beta", installed(NEXT))
        summary = study.finish()
    assert summary["versions"]["rankdad"] == NEXT
    assert summary["weights_sha256"] == dict.fromkeys(SITES, study.undisturbed())
