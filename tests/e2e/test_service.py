"""A service with agents: what is submitted is trained once, and hospitals decide."""

from __future__ import annotations

import json
import re
import socket
import sqlite3
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from rankdad.common.data import read_site
from rankdad.common.documents import load_json
from rankdad.common.protocol.service import State
from rankdad.common.spec import RunSpec
from rankdad.local.config import SiteConfig
from rankdad.local.drivers.http import RefusedError
from rankdad.simulations import lockstep
from tests.conftest import SITES, run_document, run_spec, write_site
from tests.e2e.consortium import Consortium
from tests.ports import free_port
from tests.remote.test_retention import held
from tests.warm import Warm

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]

PAIR = ("alpha", "beta")


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("data")
    for number, (site, count) in enumerate(zip(SITES, (60, 50, 40), strict=True)):
        write_site(folder / site, count, number)
    return folder


def undisturbed(spec: RunSpec, data: Path, folder: Path) -> str:
    """Return the digest of the weights of a run in one process."""
    lockstep.run(spec, {site: read_site(spec, data / site, i) for i, site in enumerate(SITES)}, folder)
    digest: str = load_json(folder / "summary.json")["aggregator_sha256"]
    return digest


def rankdad(*words: object, status: int = 0) -> str:
    """Run a command to its end, and return what it says."""
    process = Warm(*words)
    out, err = process.communicate(120)
    assert process.returncode == status, out + err
    return out + err


def test_two_runs_end_with_the_weights_of_lockstep(tmp_path: Path, data: Path) -> None:
    documents: list[dict[str, Any]] = [run_document(name="first"), run_document(name="second one", seed=5)]
    with Consortium(tmp_path / "all", data, SITES, policies={"beta": {"retain": False}}).started() as all_:
        runs = [all_.submit(document) for document in documents]
        assert runs == ["first-1", "second-one-2"]
        found = all_.until_over(*runs)
        assert {run.state for run in found.values()} == {State.ENDED}, all_.said()
        said = rankdad("serve", all_.folder / "consortium.json", "--output", all_.directory, "--port", 0, status=2)
        assert "is in use by rankdad serve" in said
        said = rankdad("site", all_.folder / "alpha/SITE.json", "--stay", status=2)
        assert "is in use by alpha" in said
        rankdad("fetch", runs[0], "--to", all_.url, "--output", tmp_path / "fetched")
        assert load_json(tmp_path / "fetched/summary.json") == all_.summary(runs[0])
        assert not {"run.sqlite", "checkpoints", "audit.jsonl"} & {
            path.name for path in (tmp_path / "fetched").iterdir()
        }
        listed = rankdad("runs", "--to", all_.url)
        assert "first-1" in listed
        said = rankdad("logs", runs[1], "--to", all_.url)
        assert "epoch 2 of 2" in said
        assert all(f'{runs[1]}/aggregator: accepted hello address="127.0.0.1" site="{site}"' in said for site in SITES)
        assert re.search(r"^weights: equal at all sites, sha256", said, re.MULTILINE), "it ends with the result"
        assert [all_.stop(name) for name in ("alpha", "service")] == [0, 0]
        receipts = [load_json(path) for path in (all_.folder / "alpha").rglob("receipt.json")]
        assert [(one["deleted"], one["contributions"] > 0) for one in receipts] == [(True, True)] * 2
        assert not any(held(path.parent) for path in all_.directory.rglob("run.sqlite"))
    for run, document in zip(runs, documents, strict=True):
        expected = undisturbed(run_spec(**document), data, tmp_path / run)
        assert all_.summary(run)["weights_sha256"] == dict.fromkeys(SITES, expected)


def test_an_agents_log_is_one_for_all_runs_and_its_loss_is_noticed(tmp_path: Path, data: Path) -> None:
    with Consortium(tmp_path / "all", data, ("beta",), policies={"beta": {"keyed_folds": False}}).started() as all_:
        run = all_.submit(run_document(name="first", federation={"sites": ["beta"]}))
        assert all_.until_over(run)[run].state == State.ENDED, all_.said()
    own = all_.folder / "beta"
    config = SiteConfig.read(own / "SITE.json")
    told = [Path(config.output, *where, "disclosed.json").read_text() for where in ((), ("runs", run))]
    assert told[0] == told[1]
    assert "first" in rankdad("disclosures", own / "SITE.json")
    (own / "privacy" / "disclosures.sqlite").unlink()
    Path(config.output, "disclosed.json").unlink()  # that of the run tells of it, too
    assert "log-too-old" in rankdad("disclosures", own / "SITE.json", status=2)


@pytest.mark.exhaustive
def test_a_service_notices_an_older_log_where_nothing_at_the_site_does(tmp_path: Path, data: Path) -> None:
    with Consortium(tmp_path / "all", data, SITES, policies={"beta": {"keyed_folds": False}}).started() as all_:
        own, copies = all_.folder / "beta", list[bytes]()
        log = own / "privacy" / "disclosures.sqlite"

        def put_back(copy: bytes) -> None:
            all_.stop("beta")
            log.write_bytes(copy)
            for path in (own / "out").rglob("disclosed.json"):
                path.unlink()
            all_.start("beta")

        for number in range(2):
            run = all_.submit(run_document(name="before", seed=number))
            assert all_.until_over(run)[run].state is State.ENDED, all_.said()
            copies.append(log.read_bytes())
        put_back(copies[0])
        run = all_.submit(run_document(name="later"))
        all_.until(lambda _: "a diverged copy" in rankdad("logs", run, "--to", all_.url))
        put_back(copies[1])
        assert all_.until_over(run)[run].state is State.ENDED, all_.said()
        put_back(copies[1])
        log.unlink()
        run = all_.submit(run_document(name="anew"))
        all_.until(lambda _: "is not the log that" in rankdad("logs", run, "--to", all_.url))
        assert "may begin a new log" in rankdad("forget", all_.directory, "beta", "--log")
        assert all_.until_over(run)[run].state is State.ENDED, all_.said()


class Recorder:
    """A proxy that keeps every byte that goes up."""

    def __init__(self, port: int) -> None:
        self.sent, self._to = b"", port
        self._listening = socket.create_server(("127.0.0.1", 0))
        self.port = self._listening.getsockname()[1]
        threading.Thread(target=self._accept, daemon=True).start()

    def _accept(self) -> None:
        while True:
            near, _ = self._listening.accept()
            try:
                far = socket.create_connection(("127.0.0.1", self._to))
            except OSError:
                near.close()
                continue
            for one, other, up in ((near, far, True), (far, near, False)):
                threading.Thread(target=self._carry, args=(one, other, up), daemon=True).start()

    def _carry(self, one: socket.socket, other: socket.socket, up: bool) -> None:
        try:
            while piece := one.recv(1 << 16):
                self.sent += piece * up
                other.sendall(piece)
        except OSError:
            pass
        for end in (one, other):
            end.close()

    def requests(self) -> list[str]:
        """Return verb and path of every request."""
        return [line.decode() for line in re.findall(rb"((?:GET|POST) \S+) HTTP/1.1", self.sent)]


def test_a_run_that_a_policy_forbids_never_gets_a_byte_of_the_sites_data(tmp_path: Path, data: Path) -> None:
    policies = {"beta": {"methods": ["dsgd"]}}
    all_, sites = Consortium(tmp_path / "all", data, PAIR, policies=policies), {"sites": PAIR}
    wire = Recorder(all_.port)
    file = all_.folder / "beta/SITE.json"
    file.write_text(json.dumps(load_json(file) | {"aggregator": f"http://127.0.0.1:{wire.port}"}))
    with all_.started():
        method = {"name": "rank-dad", "rank": 2}
        forbidden = all_.submit(run_document(name="forbidden", method=method, federation=sites))
        found = all_.until_over(forbidden)[forbidden]
        before = wire.sent
        allowed = all_.submit(run_document(name="allowed", federation=sites))
        assert all_.until_over(allowed)[allowed].state is State.ENDED, all_.said()
    assert found.state is State.REFUSED
    assert found.reason.startswith(
        "beta: method.name: the run asks for rank-dad, but this site's policy allows dsgd (methods)"
    )
    agent = {"POST /agents/beta", f"GET /agents/beta/runs/{forbidden}", f"POST /agents/beta/runs/{forbidden}"}
    seen = {request for request in wire.requests() if forbidden in request or "/rounds/" not in request}
    assert {request for request in seen if allowed not in request} == agent
    bodies = re.findall(rb"\r\n\r\n(\{[^{}]*\})", before)
    assert set().union(*(json.loads(body).keys() for body in bodies)) == {
        "version",
        "wire",
        "known",
        "id",
        "answer",
        "reason",
    }
    assert len(before) < 40_000
    assert any(f"/runs/{allowed}/rounds/beta" in request for request in wire.requests()), "the wire shows what is sent"
    assert not (all_.folder / "beta/out/runs" / forbidden / "log.txt").exists(), "nothing was started for it"
    assert [line["what"] for line in all_.audited("beta") if line["run"] == forbidden] == ["refused"]


def test_a_hospital_approves_by_hand_and_its_audit_log_says_what_leaves(tmp_path: Path, data: Path) -> None:
    all_, sites = Consortium(tmp_path / "all", data, ("alpha", "gamma")), {"sites": ["alpha", "gamma"]}
    file = all_.folder / "gamma/SITE.json"
    file.write_text(json.dumps(load_json(file) | {"approval": "manual"}))
    with all_.started():
        wanted, unwanted = (all_.submit(run_document(name=one, federation=sites)) for one in ("wanted", "unwanted"))
        for run in (wanted, unwanted):
            all_.until_state(run, State.WAITING, "^approval at gamma$")
        all_.kill("gamma")  # what waits there still does afterwards
        said = rankdad("refuse", unwanted, file, "--reason", "not for this purpose")
        all_.start("gamma")
        assert "its owner receives this reason: not for this purpose" in said
        assert all_.until_over(unwanted)[unwanted].reason == "gamma: not for this purpose"
        said = rankdad("approve", wanted, file, status=1)  # whose input ends without an answer
        assert "Let this site take part?" in said
        said = rankdad("approve", wanted, file, "--yes")
        for words in ("shape [6]", "method: dsgd", "bytes up", "2 epochs"):
            assert words in said
        assert all_.until_over(wanted)[wanted].state is State.ENDED, all_.said()
        assert "[decided-already]" in rankdad("approve", unwanted, file, "--yes", status=2)
    lines = [line for line in all_.audited("gamma") if line["run"] == wanted]
    assert [line["what"] for line in lines if line["what"] != "asked"] == ["accepted", "finished"]
    accepted = next(line for line in lines if line["what"] == "accepted")
    assert accepted["by"]
    assert any("the whole gradient of each layer" in words for words in accepted["leaves"])


def test_a_running_run_that_a_hospital_refuses_ends_at_the_others_without_a_failure(tmp_path: Path, data: Path) -> None:
    with Consortium(tmp_path / "all", data, PAIR).started() as all_:
        run = all_.submit(run_document(name="long", training={"epochs": 99_999}, federation={"sites": PAIR}))
        folders = [all_.folder / site / "out/runs" / run for site in PAIR]
        all_.until(lambda client: all((one / "checkpoints").exists() for one in folders))
        rankdad("refuse", run, all_.folder / "alpha/SITE.json", "--reason", "ethics")
        all_.until(lambda client: not any((one / "checkpoints").exists() for one in folders))
        said = all_.said()
        assert "the run was ended: alpha refused it: ethics" in said
        assert not re.search(r"aggregator failed|ethics; retrying", said)


def test_from_nothing_to_a_second_run_with_one_command_a_hospital(tmp_path: Path, data: Path) -> None:
    """Certificates and tokens, a run of an unknown reader in the queue, and a token that is revoked."""
    port = free_port()
    url, consortium = f"https://127.0.0.1:{port}", tmp_path / "consortium.json"
    members = {"sites": list(SITES), "owners": ["anna", "otto"], "viewers": ["vera"]}
    consortium.write_text(json.dumps({"name": "study", "aggregator": url, **members}))
    kits = tmp_path / "kits"
    rankdad("provision", consortium, "--output", kits)
    run = tmp_path / "run.json"
    run.write_text(
        json.dumps(
            run_document(
                name="tls",
                model={"name": "mlp", "hidden": [4]},
                method={"name": "rank-dad", "rank": 1},
                training={"batch_size": 32},
            )
        )
    )
    own = kits / "aggregator"
    words: list[object] = ["serve", own / "consortium.json", "--output", tmp_path / "service", "--port", port]
    words += ["--tls-cert", own / "server.pem", "--tls-key", own / "server.key", "--client-ca", own / "ca.pem"]
    words += ["--tokens", own / "tokens.json"]
    anna, otto, vera = (kits / place / "OWNER.json" for place in ("owners/anna", "owners/otto", "viewers/vera"))
    with processes(tmp_path) as start:
        start(*words)
        assert "no run yet: rankdad submit RUN.json" in rankdad("runs", "--to", anna)
        alpha = kits / "sites/alpha/SITE.json"
        assert "knows this site, and has 0 runs for it; start the site with --stay" in rankdad("check", alpha)
        assert "a service of several runs: start the site with --stay" in rankdad("site", alpha, status=1)
        assert "name certificate and key" in rankdad("runs", "--to", url, "--ca", own / "ca.pem", status=2)
        for site in SITES:
            (kits / "sites" / site / "data/data.npz").write_bytes((data / site / "data.npz").read_bytes())
            start("site", kits / "sites" / site / "SITE.json", "--stay")
        rankdad("submit", run, "--to", anna)
        assert "tls-1: ended" in rankdad("logs", "tls-1", "--to", anna, "--follow")
        with sqlite3.connect(tmp_path / "service/queue.sqlite") as database:  # as from a newer version
            spec = json.dumps(run_document() | {"data": {"reader": "hologram", "shape": [6]}})
            values = (7, "odd-7", "0" * 16, "odd", "anna", spec, json.dumps(list(SITES)), "queued", "", 0.0)
            database.execute(f"insert into runs values ({', '.join('?' * 10)}, null, null)", values)
        rankdad("submit", run, "--to", anna, "--set", "seed=3")
        assert "tls-8: ended" in rankdad("logs", "tls-8", "--to", vera, "--follow")
        assert re.search(r"odd-7: failed: odd-7: data: .*hologram", rankdad("logs", "odd-7", "--to", anna))
        assert "belongs to anna" in rankdad("fetch", "tls-1", "--to", otto, "--output", tmp_path / "stolen", status=1)
        assert "it is reserved for owners" in rankdad("submit", run, "--to", vera, status=1)
        tokens = load_json(own / "tokens.json")
        (own / "tokens.json").write_text(json.dumps({name: tokens[name] for name in tokens if name != "anna"}))
        assert "the token is not known here" in rankdad("runs", "--to", anna, status=1)
        assert "tls-8" in rankdad("runs", "--to", otto)


@contextmanager
def processes(folder: Path) -> Iterator[Any]:
    """Yield what starts a process; none is left afterwards."""
    started: list[Warm] = []

    def start(*words: object) -> None:
        with (folder / f"{len(started)}.log").open("ab") as log:
            started.append(Warm(*words, log=log))

    try:
        yield start
    finally:
        for process in started:
            process.kill()
        for process in started:
            process.wait(30)


def test_a_run_of_another_version_or_of_strangers_is_refused_and_figures_are_given(tmp_path: Path, data: Path) -> None:
    all_ = Consortium(tmp_path / "all", data, ())
    try:
        all_.sites = ()
        (all_.folder / "consortium.json").write_text(
            json.dumps({"name": "t", "aggregator": "https://unused.example", "sites": list(SITES), "max_queue": 1})
        )
        all_.start("service")
        with pytest.raises(RefusedError, match=r"federation.sites: gone not in this consortium, expected some"):
            all_.submit(run_document(federation={"sites": ["gone"]}))
        with pytest.raises(RefusedError, match=r"data: got the name 'hologram', expected one of"):
            all_.submit(run_document() | {"data": {"reader": "hologram", "shape": [6]}})
        first = all_.submit(run_document())
        with pytest.raises(RefusedError, match=r"the queue is full: 1 of your runs are open, as max_queue allows"):
            all_.submit(run_document())
        all_.until_state(first, State.WAITING, "^answers from alpha, beta, gamma$")
        said = rankdad("cancel", first, "--to", all_.url)
        assert said.strip() == f"{first}: cancelled"
        with all_.client() as client:
            for path in ("healthz", "readyz"):
                assert client._send(client._make("GET", f"{all_.url}/{path}")).content == b"ok\n"
            figures = client._send(client._make("GET", f"{all_.url}/metrics")).content.decode()
        assert 'rankdad_runs{state="cancelled"} 1.0' in figures
    finally:
        for process in all_.processes.values():
            process.kill()


@pytest.mark.exhaustive
def test_an_owner_asks_all_sites_before_the_run_and_nothing_of_it_is_submitted_or_read(
    tmp_path: Path, data: Path
) -> None:
    policies: dict[str, dict[str, Any]] = {
        "beta": {"methods": ["dsgd"], "min_rows": 999},
        "alpha": {"runs": 1, "keyed_folds": False},
    }
    spec = tmp_path / "run.json"
    spec.write_text(json.dumps(run_document(name="draft", method={"name": "rank-dad", "rank": 2})))
    all_ = Consortium(tmp_path / "all", tmp_path, SITES, policies=policies, tokens=True)  # a folder without any data
    to = ["--to", all_.url, "--token-file", str(all_.token)]
    try:
        for name in ("service", "alpha", "beta"):
            all_.start(name)
        all_.until(lambda client: client.runs().runs == ())
        answers = [rankdad("ask", spec, *to, "--wait", 20, status=3) for _ in range(2)]
        assert answers[0] == answers[1]
        rows = [line.split() for line in answers[0].splitlines()]
        assert ["alpha", "would", "take", "part"] in rows, all_.said()
        refused = {row[4]: row for row in rows if row[:3] == ["beta", "would", "refuse"]}
        assert refused.keys() == {"methods", "min_rows"}
        assert [row[1:4] for row in rows if row[:1] == ["gamma"]] == [["has", "not", "answered:"]]
        all_.start("gamma")
        assert "has not answered" not in rankdad("ask", spec, *to, status=3)
        with all_.client() as client:
            assert client.runs().runs == ()
        assert not list((all_.folder / "alpha").rglob("disclosures.sqlite")), "an answer makes no log"
        assert not all_.audited("alpha")
    finally:
        for process in all_.processes.values():
            process.kill()
            process.wait(30)
