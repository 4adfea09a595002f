"""What befalls one agent, one run or the disk: each is said in a sentence, and the other runs go on."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from rankdad.common.data import read_site
from rankdad.common.documents import load_json
from rankdad.common.protocol.service import State
from rankdad.common.protocol.versions import OUR_VERSION
from rankdad.remote.tables import count_of
from rankdad.simulations import lockstep
from tests.conftest import SITES, run_document, run_spec, write_policy, write_site
from tests.e2e.consortium import Consortium
from tests.remote.test_retention import held

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]

TWO = {"sites": ["alpha", "gamma"]}
LONG: dict[str, Any] = {"training": {"epochs": 200}}
OTHER_VERSION = """
import sys
import rankdad.common
rankdad.common.__version__ = "0.9.0"
from rankdad.__main__ import app
app(sys.argv[1:])
"""


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("data")
    for number, (site, count) in enumerate(zip(SITES, (60, 50, 40), strict=True)):
        write_site(folder / site, count, number)
    return folder


def steps_of(all_: Consortium, run: str) -> int:
    return count_of(all_.directory / "runs" / run, "steps")


def ended_as_undisturbed(all_: Consortium, run: str, document: dict[str, Any], data: Path, folder: Path) -> None:
    """Compare a run's weights with those of one in one process, where nothing befalls anybody."""
    spec = run_spec(**document)
    sites = spec.federation.sites
    lockstep.run(spec, {site: read_site(spec, data / site, index) for index, site in enumerate(sites)}, folder)
    digest = load_json(folder / "summary.json")["aggregator_sha256"]
    assert all_.summary(run)["weights_sha256"] == dict.fromkeys(sites, digest)


@pytest.mark.exhaustive
def test_an_agent_of_another_version_is_told_and_others_go_on_without_it(tmp_path: Path, data: Path) -> None:
    with Consortium(tmp_path / "all", data, SITES).started() as all_:
        all_.kill("beta")
        with (tmp_path / "other.log").open("wb") as log:
            words = [sys.executable, "-c", OTHER_VERSION, "site", str(all_.folder / "beta/SITE.json"), "--stay"]
            other = subprocess.Popen(words, stderr=log)
        try:
            whole, part = (
                all_.submit(run_document(name="whole")),
                all_.submit(run_document(name="part", federation=TWO)),
            )
            assert all_.until_over(part)[part].state is State.ENDED, all_.said()
            all_.until(lambda _: "agent" in (tmp_path / "other.log").read_text())
            all_.until_state(whole, State.WAITING, "^answers from beta$")
            assert other.poll() is None, "it stays, and is let in once the service is of its version"
        finally:
            other.kill()
            other.wait()
        said = (tmp_path / "other.log").read_text()
        assert "beta's agent is rankdad 0.9.0 (wire 1), the service 0.1.0 (wire 1): install one version" in said
        assert "Traceback" not in said
        all_.start("beta")
        assert all_.until_over(whole)[whole].state is State.ENDED, all_.said()


@pytest.mark.exhaustive
def test_a_token_that_is_revoked_in_mid_run_stops_that_run_alone(tmp_path: Path, data: Path) -> None:
    document = run_document(name="whole", **LONG)
    with Consortium(tmp_path / "all", data, SITES, tokens=True).started() as all_:
        whole = all_.submit(document)
        all_.until(lambda _: steps_of(all_, whole) > 20)
        all_.revoke("beta")
        all_.until(lambda _: "the token is not known here" in all_.said())
        part = all_.submit(run_document(name="part", federation=TWO))
        assert all_.until_over(part)[part].state is State.ENDED, all_.said()
        stood = steps_of(all_, whole)
        assert stood < 200 * 6
        with all_.client() as client:
            assert client.run(whole).state is State.RUNNING
        assert steps_of(all_, whole) == stood, "nobody goes on without it"
        all_.revoke()
        assert all_.until_over(whole)[whole].state is State.ENDED, all_.said()
    ended_as_undisturbed(all_, whole, document, data, tmp_path / "undisturbed")
    assert "Traceback" not in all_.said()


def test_a_run_that_trains_is_cancelled_at_all_sites_and_the_next_one_begins(tmp_path: Path, data: Path) -> None:
    policies, one_at_once, sites = {"beta": {"retain": False}}, {"runs_at_once": 1}, ("alpha", "beta")
    with Consortium(tmp_path / "all", data, sites, consortium=one_at_once, policies=policies).started() as all_:
        first = all_.submit(run_document(name="first", federation={"sites": sites}, **LONG))
        second = all_.submit(run_document(name="second", federation={"sites": sites}))
        all_.until(lambda _: steps_of(all_, first) > 20)
        with all_.client() as client:
            assert client.run(second).state is not State.RUNNING, "there is room for one"
            assert client.cancel(first).state is State.CANCELLED
        assert all_.until_over(second)[second].state is State.ENDED, all_.said()
        assert 20 < steps_of(all_, first) < 200 * 6
        all_.until(lambda _: all_.summary(first)["status"] == "interrupted")  # once all sites have heard of it
        for site in sites:
            assert "cancelled" in (all_.folder / site / "out/runs" / first / "log.txt").read_text()
        told = [all_.folder / site / "out/runs" / first / "receipt.json" for site in sites]
        all_.until(lambda _: all(path.exists() for path in told))
        assert {(one["status"], one["deleted"]) for one in map(load_json, told)} == {("interrupted", True)}
        assert not any(held(path.parent) for path in all_.directory.rglob("run.sqlite"))
        before = steps_of(all_, first)
        all_.kill("service")
        all_.start("service")  # which does not take it up again
        third = all_.submit(run_document(name="third", federation={"sites": sites}))
        assert all_.until_over(third)[third].state is State.ENDED, all_.said()
        assert steps_of(all_, first) == before
    assert "Traceback" not in all_.said()


class Hostile(ThreadingHTTPServer):
    """A service that offers a run without ever saying what it is, and another one as it should."""

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), HostileHandler)
        self.replies: dict[str, dict[str, Any]] = {}
        self.released = threading.Event()


class HostileHandler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server: Hostile

    def do_GET(self) -> None:
        run = self.path.rpartition("/")[2]
        if run == "stuck-1":
            self.server.released.wait(60)
        spec = run_document(federation={"sites": ["alpha"]})
        self.say({"run": run, "id": "0" * 16, "owner": "eve", **OUR_VERSION, "spec": spec})

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["content-length"])))
        if self.path == "/agents/alpha":
            if body["known"]:
                self.server.released.wait(60)
            runs = [{"run": run, "id": "0" * 16, "state": "waiting"} for run in ("stuck-1", "good-2")]
            self.say({"digest": "same", "runs": runs})
        else:
            self.server.replies.setdefault(self.path.rpartition("/")[2], body)
            self.say({})

    def say(self, document: dict[str, Any]) -> None:
        text = json.dumps(document).encode()
        with suppress(OSError):
            self.send_response(200)
            self.send_header("content-length", str(len(text)))
            self.end_headers()
            self.wfile.write(text)

    def log_message(self, format: str, *args: Any) -> None:
        pass


IMPATIENT = """
import sys
from rankdad.local.agent import agent
agent.CONSIDERING = 15.0
from rankdad.__main__ import app
app(sys.argv[1:])
"""


@pytest.mark.exhaustive
def test_a_run_that_a_service_never_describes_is_refused_and_holds_up_no_other(tmp_path: Path) -> None:
    write_policy(tmp_path)
    with Hostile() as service:
        serving = threading.Thread(target=service.serve_forever, args=(0.05,))
        serving.start()
        fields = {"name": "alpha", "aggregator": f"http://127.0.0.1:{service.server_port}", "data": "data"}
        (tmp_path / "SITE.json").write_text(json.dumps(fields | {"output": "out", "policy": "policy.json"}))
        agent = subprocess.Popen([sys.executable, "-c", IMPATIENT, "site", str(tmp_path / "SITE.json"), "--stay"])
        try:
            end, first = time.monotonic() + 60, ""
            while service.replies.keys() != {"good-2", "stuck-1"} and time.monotonic() < end:
                first = first or next(iter(service.replies), "")
                time.sleep(0.05)  # another process does the work
        finally:
            service.released.set()
            agent.terminate()
            assert agent.wait(30) == 0
            service.shutdown()
            serving.join()
    assert first == "good-2"
    assert service.replies["good-2"]["answer"] == "accepted"
    assert service.replies["stuck-1"]["reason"] == "considering the run took longer than 15 s"
    audited = [json.loads(line) for line in (tmp_path / "out/audit.jsonl").read_text().splitlines()]
    assert {(line["run"], line["what"]) for line in audited} == {("good-2", "accepted"), ("stuck-1", "refused")}


@contextmanager
def small_disk(folder: Path) -> Iterator[None]:
    """Mount a disk of 64 MiB."""
    folder.mkdir(parents=True)
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=64m", "tmpfs", str(folder)], check=True)
    try:
        yield
    finally:
        subprocess.run(["umount", "--lazy", str(folder)], check=True)


@pytest.mark.exhaustive
@pytest.mark.skipif(os.geteuid() != 0, reason="only root may mount a small disk")
def test_an_older_copy_of_the_services_directory_cannot_go_on_and_the_newest_can(tmp_path: Path, data: Path) -> None:
    document = run_document(name="long", **LONG)
    with Consortium(tmp_path / "all", data, SITES).started() as all_:
        run = all_.submit(document)
        all_.until(lambda _: steps_of(all_, run) > 20)
        older, newest = all_.folder / "older", all_.folder / "newest"
        all_.stop("service")
        shutil.copytree(all_.directory, older)
        all_.start("service")
        reached = steps_of(all_, run) + 60
        later = all_.submit(run_document(name="later", training={"epochs": 10_000}))
        all_.until_state(later, State.RUNNING)
        all_.until(lambda _: steps_of(all_, run) > reached)
        all_.stop("service")
        all_.directory.rename(newest)
        older.rename(all_.directory)
        all_.start("service")
        said = "an aggregator cannot resume from an older or damaged copy of its directory: use the newest"
        assert said in all_.until_over(run)[run].reason
        assert all_.submit(run_document(name="later")) == later
        assert "offered another run by this name before: submit it again" in all_.until_over(later)[later].reason
        again = all_.submit(run_document(name="later"))
        assert all_.until_over(again)[again].state is State.ENDED, all_.said()
        all_.stop("service")
        all_.directory.rename(older)
        newest.rename(all_.directory)
        all_.start("service")
        assert all_.until_over(run)[run].state is State.ENDED, all_.said()
        with all_.client() as client:
            assert client.run(later).state is State.RUNNING, "nobody took the other run for it"
    ended_as_undisturbed(all_, run, document, data, tmp_path / "undisturbed")


@pytest.mark.exhaustive
def test_a_full_disk_of_the_service_is_waited_for_and_nothing_is_lost(tmp_path: Path, data: Path) -> None:
    document = run_document(name="long", **LONG)
    with small_disk(tmp_path / "all/service"), Consortium(tmp_path / "all", data, SITES).started() as all_:
        run = all_.submit(document)
        all_.until(lambda _: steps_of(all_, run) > 20)
        ballast = all_.directory / "ballast"
        with ballast.open("wb", buffering=0) as file, suppress(OSError):  # somebody else's file fills the disk
            while file.write(bytes(1 << 16)):
                pass
        all_.until(lambda _: "No space left on device" in (all_.folder / "service.log").read_text())
        stood = steps_of(all_, run)
        time.sleep(2)
        assert steps_of(all_, run) <= stood + 1
        assert all_.processes["service"].poll() is None, all_.said()
        ballast.unlink()
        assert all_.until_over(run)[run].state is State.ENDED, all_.said()
        ended_as_undisturbed(all_, run, document, data, tmp_path / "undisturbed")
    assert "Traceback" not in all_.said()
