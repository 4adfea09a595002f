"""A run on Flower's own processes: the weights of lockstep, killed nodes, bad input. `make engines` runs it."""

from __future__ import annotations

import json
import os
import signal
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from benchmarks.flower_poc import Deployment
from benchmarks.nvflare_poc import RANKDAD, SITES, call, outcome, site_documents
from tests.engines import lacks

pytestmark = [
    pytest.mark.exhaustive,
    pytest.mark.timeout(3600),
    pytest.mark.skipif(lacks("flwr"), reason="Flower is not installed: make engines"),
]
SPECS = Path(__file__).parent.parent.parent / "simulations" / "specs"
TWO = SITES[:2]
DIGITS = ("digits.json", "run.training.epochs=1", "run.training.batch_size=72")  # 10 rounds
SMALL = (
    "digits.json",
    "run.training.epochs=1",
    'run.model={"name":"mlp","hidden":[16]}',
    "run.training.batch_size=512",
)
LINEAR = (
    "diabetes.json",
    'run.model={"name":"linear"}',
    'simulation.partition={"name":"iid"}',
    'simulation.policy={"min_rows":1,"min_level":1,"rows_per_rank":null}',
    "run.training.early_stopping=null",
    'run.training.solver="exact"',
    f"run.federation.sites={json.dumps(SITES)}",
)
PHASES = ("start", "hello", "step", "evaluation", "end")
STOPS = '''"""Stops a node at a call, once, until somebody kills it or says that it goes on."""

import time
from pathlib import Path

import msgpack

from rankdad.platforms.flower import client_app

PHASE, FOLDER = "%(phase)s", Path("%(folder)s")
KINDS = {"hello": 1, "step": 2, "evaluation": 4}
answer = client_app.answer


def due(call):
    """Tell whether this is the call at which the node stops."""
    what = msgpack.unpackb(call)
    if what["what"] == "send":
        return msgpack.unpackb(what["body"])["k"] == KINDS.get(PHASE)
    return {"start": "run", "end": "done"}.get(PHASE) == what["what"]


def stopping(place, run, job, reply):
    call = answer(place, run, job, reply)
    if "hospital-a" in place and due(call):
        try:
            (FOLDER / "stopped").touch(exist_ok=False)
        except FileExistsError:
            return call
        while not (FOLDER / "on").exists():
            time.sleep(0.1)
    return call


client_app.answer = stopping
app = client_app.app
'''

HOSTILE = '''"""Sends what is no call a hundred times in place of one site's first."""

from pathlib import Path

from flwr.app import ArrayRecord, ConfigRecord, Message, MetricRecord, RecordDict

from rankdad.platforms.flower import client_app
from tests.engines.hostile import payload

FOLDER = Path("%(folder)s")
answer, query = client_app.answer, client_app.query
app = client_app.ClientApp()
OTHERS = ConfigRecord({"body": "text"}), MetricRecord({"body": 7}), ArrayRecord(), ConfigRecord({})


@app.query()
def hostile(message, context):
    place, record = client_app.settings_place(context.node_config), message.content["rankdad"]
    if "hospital-a" not in place or "body" not in record:
        return query(message, context)
    first, number = FOLDER / "first", len(list(FOLDER.glob("sent-*")))
    if number == 0:
        first.write_bytes(record["body"])
    if number < 101:
        (FOLDER / f"sent-{number}").touch()
        answered = OTHERS[number %% 8] if number %% 8 < 4 else ConfigRecord({"body": payload(number)})
        return Message(RecordDict({"rankdad": answered}), reply_to=message)
    if first.exists():
        record["body"] = first.read_bytes()
        first.unlink()
    return query(message, context)
'''


def lockstep(folder: Path, name: str, *sets: str, sites: tuple[str, ...] = SITES) -> tuple[Path, set[str]]:
    """Simulate a spec, and return its directory and the weights' digests."""
    output, options = folder / "lockstep", [word for one in sets for word in ("--set", one)]
    if sites != SITES:
        options += ["--set", f"run.federation.sites={json.dumps(sites)}"]
    words = [*RANKDAD, "simulate", str(SPECS / name), "--lockstep", "--quiet", "--output", str(output), *options]
    said = call(words, Deployment(folder).environment, folder, 400)
    assert (output / "summary.json").exists(), said
    return output, set(json.loads((output / "summary.json").read_text())["weights_sha256"].values())


def make(folder: Path, simulated: Path) -> Path:
    """Make a job of a simulation's run, by the command."""
    words = [*RANKDAD, "job", "flower", str(simulated / "run.json"), "--output", str(folder / "job")]
    said = call(words, Deployment(folder).environment, folder)
    assert (folder / "job" / "pyproject.toml").exists(), said
    return folder / "job"


@pytest.fixture(scope="module")
def four(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Deployment]:
    deployment = Deployment(tmp_path_factory.mktemp("flower"))
    with deployment.running():
        yield deployment


@pytest.fixture(scope="module")
def two(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Deployment]:
    deployment = Deployment(tmp_path_factory.mktemp("flower"), TWO)
    with deployment.running():
        yield deployment


@pytest.fixture(scope="module")
def simulation(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Deployment]:
    deployment = Deployment(tmp_path_factory.mktemp("flower"), simulated=True)
    with deployment.running():
        yield deployment


@pytest.fixture(scope="module")
def small(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, set[str]]:
    return lockstep(tmp_path_factory.mktemp("small"), *SMALL, sites=TWO)


@pytest.mark.parametrize("spec", [DIGITS, LINEAR], ids=["digits", "linear"])
def test_four_nodes_of_flower_and_lockstep_give_the_same_bits(
    four: Deployment, tmp_path: Path, spec: tuple[str, ...]
) -> None:
    simulated, digests = lockstep(tmp_path, *spec)
    four.settle(tmp_path / "work", site_documents(tmp_path / "work", simulated))
    status, log = four.submit(make(tmp_path, simulated), 1500)
    assert status == "finished:completed", log
    assert outcome(tmp_path / "work") == ("completed", digests)


@pytest.mark.parametrize("spec", [DIGITS, LINEAR], ids=["digits", "linear"])
def test_four_simulated_nodes_and_lockstep_give_the_same_bits(
    simulation: Deployment, tmp_path: Path, spec: tuple[str, ...]
) -> None:
    simulated, digests = lockstep(tmp_path, *spec)
    simulation.settle(tmp_path / "work", site_documents(tmp_path / "work", simulated))
    status, log = simulation.submit(make(tmp_path, simulated), 1500)
    assert status == "finished:completed", log
    assert outcome(tmp_path / "work") == ("completed", digests)


def test_a_hundred_hostile_payloads_change_nothing(simulation: Deployment, tmp_path: Path) -> None:
    simulated, digests = lockstep(tmp_path, *SMALL)
    simulation.settle(tmp_path / "work", site_documents(tmp_path / "work", simulated))
    job = make(tmp_path, simulated)
    (job / "rankdad_job" / "client_app.py").write_text(HOSTILE % {"folder": tmp_path})
    status, log = simulation.submit(job)
    assert len(list(tmp_path.glob("sent-*"))) == 101
    assert status == "finished:completed", log
    assert outcome(tmp_path / "work") == ("completed", digests)


@pytest.mark.parametrize("phase", PHASES)
@pytest.mark.parametrize("nodes", ["client", "server", "both"])
def test_what_is_killed_and_started_again_ends_with_the_same_weights(
    two: Deployment, small: tuple[Path, set[str]], tmp_path: Path, phase: str, nodes: str
) -> None:
    """A killed client comes back into the job; a job whose server was killed is submitted again."""
    two.settle(tmp_path / "work", site_documents(tmp_path / "work", small[0], TWO))
    job = make(tmp_path, small[0])
    (job / "rankdad_job" / "client_app.py").write_text(STOPS % {"phase": phase, "folder": tmp_path})
    number, until = two.begin(job), time.monotonic() + 1200
    while not (tmp_path / "stopped").exists():
        assert time.monotonic() < until, two.wait(number, 1)
        time.sleep(0.2)
    dead = {"client": [TWO[0]], "server": ["server"], "both": ["server", TWO[0]]}[nodes]
    for node in dead:
        two.kill(node)
        for process in two.residents(node) if node != "server" else ():
            os.kill(process, signal.SIGKILL)
    (tmp_path / "on").touch()
    for node in dead:
        two.start(node)
    if "server" in dead:
        number = two.begin(job)
    status, log = two.wait(number, 1500)
    assert status == "finished:completed", log
    assert outcome(tmp_path / "work") == ("completed", digests := small[1]), digests
