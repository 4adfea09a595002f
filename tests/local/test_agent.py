"""What an agent keeps of a run, and what it says of it."""

from __future__ import annotations

import json
import resource
import socket
import time
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from rankdad.common.documents import load_json
from rankdad.common.errors import RankdadError, RunFailedError, UnreachableError, UserError
from rankdad.common.files import write_json
from rankdad.common.logs import LogOptions
from rankdad.common.models import build_model, build_network
from rankdad.common.policy import EVERYTHING, Policy
from rankdad.common.protocol.plan import make_plan
from rankdad.common.protocol.retention import Receipt
from rankdad.common.protocol.service import Offer, Offered, Offers
from rankdad.common.protocol.versions import OUR_VERSION
from rankdad.local.agent.agent import ENDING, Agent, _Run
from rankdad.local.agent.listening import listen
from rankdad.local.agent.processes import Outcome, Worker
from rankdad.local.agent.state import AUDIT, Considered, Decision, RunFolder, unsettled
from rankdad.local.agent.tasks import _failed
from rankdad.local.agent.words import TWO_SITES, what_is_read, what_leaves
from rankdad.local.drivers.http import RefusedError
from rankdad.local.drivers.service import ServiceClient
from tests.conftest import run_spec, site_config, write_policy

ROOT = Path(__file__).parents[2]


def test_a_line_of_the_audit_log_is_whole_or_not_there(tmp_path: Path) -> None:
    folder, path = RunFolder(site_config(1, output=str(tmp_path)), "small-1"), tmp_path / AUDIT
    folder.audit("asked")
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (path.stat().st_size + 20, before[1]))  # as a disk that is full there
    try:
        with pytest.raises(UserError, match=r"audit.jsonl: cannot be written: No space left on device"):
            folder.audit("accepted", by="somebody")
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    folder.audit("refused", by="somebody")
    assert [json.loads(line)["what"] for line in path.read_text().splitlines()] == ["asked", "refused"]


def test_a_run_that_waits_names_its_file_and_leaves_no_checkpoints_once_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """In a container SITE.json was not there, and checkpoints outlasted a refusal, here or by another hospital."""
    config = site_config(1, output=str(tmp_path), approval="manual")
    agent, folder = Agent(config, LogOptions(), Path("/kit/my SITE.json")), RunFolder(config, "small-1")
    monkeypatch.setattr(agent, "_reply", lambda *_: None)
    offered = Offered(run="small-1", id="0" * 16, state="running")
    run, offer = _Run(folder, offered), Offer(run="small-1", id="0" * 16, owner="anna", **OUR_VERSION, spec={})
    folder.keep(Considered(offer=offer, words=()))
    with caplog.at_level("INFO"):
        agent._do_what_is_due(run, offered)
    assert "`rankdad approve small-1 '/kit/my SITE.json'`" in caplog.text
    (folder.path / "checkpoints").mkdir()
    agent._settle(run, Outcome(kind="ended", reason="the run was ended: beta refused it"))
    agent._do_what_is_due(run, offered)
    assert not (folder.path / "checkpoints").exists()
    assert "retrying" not in caplog.text
    assert "failed" not in str(RunFailedError("aggregator", "beta refused it", code="stopped"))


@pytest.mark.slow
def test_a_process_of_an_agent_shows_nobody_its_proxy_and_ends_with_the_agent(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is ours, whatever lies in the current folder."""
    (tmp_path / "rankdad.py").write_text("raise SystemExit(7)")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    with socket.create_server(("127.0.0.1", 0)) as proxy:
        address = f"http://anna:secret@127.0.0.1:{proxy.getsockname()[1]}"
        config = site_config(1, output=str(tmp_path)).model_copy(
            update={"proxy": address, "aggregator": "https://unused.example"}
        )
        worker = Worker(config, LogOptions(), "consider", "small-1", "0" * 16)
        proxy.settimeout(60)
        with proxy.accept()[0] as asked:
            assert b"unused.example" in asked.recv(1000)
            words = Path(f"/proc/{worker._process.pid}/cmdline").read_bytes()
            expected = b"-P -m rankdad site - --task consider small-1".split()
            assert words.split(b"\0")[1:9] == expected
            assert b"secret" not in words
            assert worker.outcome() is None
            assert worker._process.stdin is not None
            worker._process.stdin.close()  # as when the agent is killed
            assert worker._process.wait(30) == 1
    ended = worker.outcome()
    assert ended is not None
    assert (ended.kind, ended.told) == ("crashed", "its process ended with status 1")


@pytest.mark.slow
@pytest.mark.parametrize(
    ("script", "kind"),
    [
        ("printf 'a package prints'; printf '\\n{\"kind\": \"again\"}\\n'", "again"),
        ("printf 'nothing else'", "crashed"),
        ("head -c 200000 /dev/zero; exit 3", "crashed"),
        ('sleep 60 & printf \'\\n{"kind": "done"}\\n\'', "done"),
        ("exit 7", "crashed"),
    ],
)
def test_whatever_a_process_prints_or_leaves_ends_it_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, script: str, kind: str
) -> None:
    program = tmp_path / "python"
    program.write_text(f"#!/bin/sh\n{script}\n")
    program.chmod(0o700)
    monkeypatch.setattr("sys.executable", str(program))
    config = site_config(1, output=str(tmp_path)).model_copy(update={"aggregator": "a" * 70_000})  # over a pipe's size
    worker = Worker(config, LogOptions(), "train", "small-1", "0" * 16)
    end = time.monotonic() + 20
    while (outcome := worker.outcome()) is None and time.monotonic() < end:
        time.sleep(0.02)
    assert outcome is not None
    assert outcome.kind == kind
    program.unlink()
    with pytest.raises(RankdadError) as caught:
        Worker(config, LogOptions(), "answer", "", "0" * 16)
    assert caught.value.code == "no-process"


def test_a_service_that_answers_at_once_is_not_asked_all_the_time(monkeypatch: pytest.MonkeyPatch) -> None:
    times = list[float]()

    def heard(_: Offers) -> None:
        times.append(time.monotonic())
        if len(times) == 4:
            raise KeyboardInterrupt

    monkeypatch.setattr(ServiceClient, "offers", lambda self, known: Offers(digest="same", runs=()))
    with pytest.raises(KeyboardInterrupt):
        listen(site_config(1), heard)
    assert times[-1] - times[0] > 0.5


def test_a_run_with_a_thousand_sites_and_columns_is_told_in_short_lines() -> None:
    many = [f"{'n' * 40}{number}" for number in range(1000)]
    data = {"reader": "csv", "file": "d.csv", "features": many, "label": "y", "values": [0, 1, 2]}
    spec = run_spec(federation={"sites": many}, data=data, training={"batch_size": 2000})
    lines = what_leaves(spec.at(many[0]), make_plan(spec, build_model(spec)), EVERYTHING, "anna")
    assert "and 990 more" in lines[0]
    assert max(map(len, lines)) < 4000


def test_all_that_a_run_reads_and_selects_rows_by_is_told_on_one_screen() -> None:
    """S9."""
    data = {
        "reader": "csv",
        "file": "visits.csv",
        "covariates": ["people.csv"],
        "features": ["age", "sex", "seen", *(f"x{number}" for number in range(40))],
        "categorical": {"sex": ["f", "m"], "ward": ["1", "2"]},
        "dates": {"seen": {"since": "born"}},
        "clip": {"age": [18, 90]},
        "log": ["x3"],
        "missing": "impute",
        "missing_values": {"x4": ["-9"]},
        "label": "ill",
        "values": ["healthy", "sick"],
        "merge": {"sick": ["1", "2"]},
        "key": "visit",
        "group": "patient",
    }
    spec = run_spec(
        task={"name": "classification", "classes": 2},
        data=data,
        preparation={"standardise": "federated", "harmonise": {"keep": ["ward"]}},
        evaluation={"name": "k-fold", "folds": 7, "references": ["local", "linear"]},
        model={"name": "mlp", "hidden": [4], "pretrained": {"file": "w.safetensors", "sha256": "a1" * 32}},
        federation={"sites": ["alpha", "beta"], "overrides": {"beta": {"epochs": 1}}},
        method={"name": "rank-dad", "rank": 9},
    )
    lines = what_leaves(spec, make_plan(spec, build_network(spec)), EVERYTHING, "anna")
    told = "\n".join(lines)
    assert lines[0] == TWO_SITES
    assert f"w.safetensors, sha256 {'a1' * 32}" in told
    assert len(lines) <= 40
    for word in ("visits.csv, people.csv", "patient", "visit", "born", "ward", "ill", "sick is 1 or 2", "x4: -9"):
        assert word in told
    for word in ("48 columns", "age from 18", "x3", "7 folds", "beta (epochs 1)", "smallest step", "owner could still"):
        assert word in told
    assert "x39" not in told
    assert "x39" in "\n".join(what_is_read(spec, most=None))


def test_what_is_said_to_leave_and_to_be_learned_holds_under_its_condition() -> None:
    """It was said that products leave in every training, ranks have no limit and counts are exact."""
    data = {"reader": "csv", "file": "t.csv", "features": ["age", "sex"], "categorical": {"sex": ["f", "m"]}}
    data |= {"label": "ill", "values": ["no", "yes"], "missing": "impute"}
    study = {"task": {"name": "classification", "classes": 2}, "data": data, "model": {"name": "linear"}}
    study["evaluation"] = {"name": "k-fold", "folds": 5}

    def told(policy: Policy, solver: str, **changes: Any) -> str:
        training = {"epochs": 40, "batch_size": 16, "validation": 0.2, "solver": solver}
        spec = run_spec(**study | {"training": training} | changes)
        return "\n".join(what_leaves(spec, make_plan(spec, build_model(spec)), policy, "anna"))

    steps = told(Policy(), "steps")
    for condition in (
        "of rank 2 at most",
        "rounded",
        "about how many",
        "that 3 or more have",
        "loss of the validation rows",
    ):
        assert condition in steps
    assert not [word for word in ("any rank", "products", "coefficients", "thousands") if word in steps]
    exact = told(EVERYTHING, "exact")
    assert "of all rows together" in exact
    assert "site_coefficients" in exact
    assert not [word for word in ("rounded", "about how many", "or more have", "linear-1") if word in exact]
    assert "site_coefficients" not in told(EVERYTHING.model_copy(update={"site_coefficients": False}), "exact")
    listed = told(Policy(columns=("*",)), "steps", data={**data, "group": "patient"})
    assert "other files, by further runs" in listed
    assert "if patient does not identify a person" in listed


@pytest.mark.parametrize("batches", ["full", "even"])
def test_rows_of_a_step_are_told_as_the_most_that_there_are(batches: str) -> None:
    spec = run_spec(training={"batch_size": 27, "batches": batches})
    lines = what_leaves(spec, make_plan(spec, build_model(spec)), EVERYTHING, "anna")
    (step,) = (line for line in lines if line.startswith("sends in every step"))
    assert "at most 27 rows" in step
    assert ("even" in step) == (batches == "even")


def test_what_is_owed_of_a_run_that_ended_is_settled_after_a_restart_and_tried_until_it_is(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """A run was cancelled while the agent or the service was away, or on a full disk: it stayed open without a word."""
    config = site_config(1, output=str(tmp_path), policy=write_policy(tmp_path, retain=False))
    offer = Offer(run="small-1", id="0" * 16, owner="anna", **OUR_VERSION, spec={})
    folder, other, failed = (RunFolder(config, name) for name in ("small-1", "other-2", "worse-3"))
    for one in (folder, other, failed):
        one.keep(Considered(offer=offer, words=()))
        one.decide(Decision(id="0" * 16, decision="accepted", by="policy"))
        (one.path / "checkpoints").mkdir()
        one.log.touch()
    receipt = Receipt(run="0" * 16, site="alpha", status="interrupted", deleted=True, contributions=1, bytes=2, time="")
    receipts = {folder.run: receipt, failed.run: receipt.model_copy(update={"status": "failed"})}
    failures = [UserError("the disk is full", code="cannot-write"), UnreachableError("nobody", code="")]

    def failing(then: Callable[..., Any], number: int) -> Callable[..., Any]:
        def call(*values: object, **named: object) -> Any:
            if len(failures) == number:
                raise failures.pop()
            return then(*values, **named)

        return call

    ids = {folder.run: "0" * 16, other.run: "f" * 16, failed.run: "0" * 16}  # restored, with another run by a name
    monkeypatch.setattr(ServiceClient, "offer", lambda _, run: offer.model_copy(update={"id": ids[run]}))
    monkeypatch.setattr(ServiceClient, "receipt", failing(lambda _, run: receipts[run], 2))
    monkeypatch.setattr("rankdad.local.drivers.receipts.write_json", failing(write_json, 1))
    agent = Agent(config, LogOptions(), Path("SITE.json"))
    agent._take_up()
    for run in agent._runs.values():
        agent._advance(run)  # it may still be offered
    agent._take(Offers(digest="", runs=()))
    for _ in range(3):
        for run in [*agent._runs.values()]:
            run.retry_at = 0.0
            agent._advance(run)
    assert load_json(folder.path / "receipt.json")["deleted"] is True
    assert [json.loads(line)["what"] for line in (tmp_path / AUDIT).read_text().splitlines()][3:] == ["refused"]
    assert not (folder.path / "checkpoints").exists()
    assert [(one.path / "checkpoints").exists() for one in (other, failed)] == [True] * 2, "they may go on"
    assert load_json(failed.path / "receipt.json")["status"] == "failed"
    assert not agent._runs
    assert [line.partition("; ")[0] for line in caplog.messages] == [
        "small-1: nobody",
        "worse-3: the disk is full",
        "small-1: the run has ended",
    ]
    assert [one.run for one in unsettled(config)] == ["other-2", "worse-3"]


def test_a_process_that_outlasts_its_run_is_killed(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """One that was stopped stayed, and nobody said so."""
    config, killed = site_config(1, output=str(tmp_path)), list[bool]()
    agent = Agent(config, LogOptions(), Path("SITE.json"))
    worker = SimpleNamespace(kill=lambda: killed.append(True))
    agent._runs["small-1"] = run = _Run(RunFolder(config, "small-1"), worker=cast(Any, worker))
    agent._take(Offers(digest="", runs=()))
    agent._keep_out()
    assert not killed
    assert run.over is not None
    run.over -= ENDING + 1
    agent._keep_out()
    assert (killed, run.worker) == ([True], None)
    assert caplog.messages == ["small-1: its process had not ended 20 s after the run: killed"]


def test_an_agent_that_another_has_replaced_does_not_replace_it_in_turn(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config, begun = site_config(1, output=str(tmp_path)), list[bool]()
    agent, folder = Agent(config, LogOptions(), Path("SITE.json")), RunFolder(config, "small-1")
    monkeypatch.setattr(agent, "_reply", lambda *_: None)
    monkeypatch.setattr(agent, "_start", lambda *_, considers: begun.append(considers))
    offered = Offered(run="small-1", id="0" * 16, state="running")
    run, offer = _Run(folder, offered), Offer(run="small-1", id="0" * 16, owner="anna", **OUR_VERSION, spec={})
    folder.keep(Considered(offer=offer, words=()))
    folder.decide(Decision(id="0" * 16, decision="accepted", by="policy"))
    agent._do_what_is_due(run, offered)
    agent._settle(run, _failed(RefusedError("another has replaced this one", 409, code="process-replaced")))
    agent._do_what_is_due(run, offered)
    assert begun == [False], "once"
