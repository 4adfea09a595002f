"""A run on NVFlare's own processes: the weights of lockstep, killed nodes, bad input. `make engines` runs it."""

from __future__ import annotations

import json
import shutil
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from benchmarks.nvflare_poc import RANKDAD, SITES, Poc, call, outcome, site_documents
from tests.engines import lacks

pytestmark = [
    pytest.mark.exhaustive,
    pytest.mark.timeout(900),
    pytest.mark.skipif(lacks("nvflare"), reason="NVFlare is not installed: make engines"),
]
SPECS = Path(__file__).parent.parent.parent / "simulations" / "specs"
DIGITS = ("digits.json", "run.training.epochs=2")
SMALL = ("digits.json", "run.training.epochs=1", 'run.model={"name":"mlp","hidden":[16]}', "run.training.batch_size=64")
LINEAR = (
    "diabetes.json",
    'run.model={"name":"linear"}',
    'simulation.partition={"name":"iid"}',
    'simulation.policy={"min_rows":1,"min_level":1,"rows_per_rank":null}',
    "run.training.early_stopping=null",
    'run.training.solver="exact"',
    f"run.federation.sites={json.dumps(SITES)}",
)
KILLED = '''"""Kills a node once, where a file says so."""

import os
import signal
from pathlib import Path

import msgpack

from rankdad.platforms.nvflare.controller import RunController as Controller
from rankdad.platforms.nvflare.executor import SiteExecutor as Executor

PHASE, FOLDER = "%(phase)s", Path("%(folder)s")
KINDS = {"hello": 1, "step": 2, "evaluation": 4}


def due(call, node):
    """Tell whether this is the call at which the node dies, for the first time."""
    what = msgpack.unpackb(call)
    if what["what"] == "send":
        body = msgpack.unpackb(what["body"])
        here = body["k"] == KINDS.get(PHASE) and (PHASE != "step" or what["round"] > 3)
    else:
        here = {"start": "run", "end": "done"}.get(PHASE) == what["what"]
    if here and node in "%(nodes)s".split(","):
        try:
            (FOLDER / node).touch(exist_ok=False)
        except FileExistsError:
            return False
        return True
    return False


class RunController(Controller):
    def _received(self, client_task, fl_ctx):
        call = client_task.result.get("rankdad")
        if call is not None and client_task.client.name == "hospital-a" and due(call, "server"):
            os.kill(os.getpid(), signal.SIGKILL)
        super()._received(client_task, fl_ctx)


class SiteExecutor(Executor):
    def execute(self, task_name, shareable, fl_ctx, abort_signal):
        result = super().execute(task_name, shareable, fl_ctx, abort_signal)
        node = fl_ctx.get_identity_name()
        if result.get("rankdad") is not None and due(result["rankdad"], node):
            os.kill(os.getpid(), signal.SIGKILL)
        return result
'''


@pytest.fixture(scope="module")
def poc(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Poc]:
    poc = Poc(tmp_path_factory.mktemp("nvflare"))
    with poc.running():
        yield poc


def lockstep(folder: Path, name: str, *sets: str) -> tuple[Path, set[str]]:
    """Simulate a spec, and return its directory and the weights' digests."""
    output, options = folder / "lockstep", [word for one in sets for word in ("--set", one)]
    words = [*RANKDAD, "simulate", str(SPECS / name), "--lockstep", "--quiet", "--output", str(output), *options]
    said = call(words, Poc(folder).environment, folder)
    assert (output / "summary.json").exists(), said
    return output, set(json.loads((output / "summary.json").read_text())["weights_sha256"].values())


def make(folder: Path, simulated: Path, *options: str) -> Path:
    """Make a job of a simulation's run, by the command."""
    words = [*RANKDAD, "job", "nvflare", str(simulated / "run.json"), "--output", str(folder / "job"), *options]
    said = call(words, Poc(folder).environment, folder)
    assert (folder / "job" / "meta.json").exists(), said
    return folder / "job"


@pytest.mark.parametrize("spec", [DIGITS, LINEAR], ids=["digits", "linear"])
def test_processes_of_nvflare_and_lockstep_give_the_same_bits(poc: Poc, tmp_path: Path, spec: tuple[str, ...]) -> None:
    simulated, digests = lockstep(tmp_path, *spec)
    poc.settle(tmp_path / "work", site_documents(tmp_path / "work", simulated))
    assert poc.submit(make(tmp_path, simulated)) == ("COMPLETED", "")
    assert outcome(tmp_path / "work") == ("completed", digests)


@pytest.mark.parametrize("spec", [DIGITS, LINEAR], ids=["digits", "linear"])
def test_the_simulator_of_nvflare_and_lockstep_give_the_same_bits(tmp_path: Path, spec: tuple[str, ...]) -> None:
    simulated, digests = lockstep(tmp_path, *spec)
    settings, work = tmp_path / "settings", tmp_path / "work"
    settings.mkdir()
    documents: dict[str, Any] = site_documents(work, simulated) | {"server": {"directory": str(work / "runs")}}
    for node, document in documents.items():
        (settings / f"{node}.json").write_text(json.dumps(document))
    environment = Poc(tmp_path).environment | {"RANKDAD_NVFLARE": str(settings)}
    job, clients = make(tmp_path, simulated, "--bring-code"), ",".join(SITES)
    words = [*RANKDAD[:1], "-m", "nvflare.cli", "simulator", str(job), "-w", "sim", "-c", clients, "-t", "4"]
    said = call(words, environment, tmp_path, 400)
    assert outcome(work) == ("completed", digests), said[-5000:]


@pytest.mark.parametrize("phase", ["start", "hello", "step", "evaluation", "end"])
@pytest.mark.parametrize("nodes", ["hospital-b", "server", "hospital-b,server"])
def test_a_killed_job_goes_on_by_the_same_command_with_the_same_weights(
    poc: Poc, tmp_path: Path, phase: str, nodes: str
) -> None:
    simulated, digests = lockstep(tmp_path, *SMALL)
    poc.settle(tmp_path / "work", site_documents(tmp_path / "work", simulated))
    job, markers = make(tmp_path, simulated, "--bring-code"), tmp_path / "markers"
    markers.mkdir()
    code = KILLED % {"phase": phase, "nodes": nodes, "folder": markers}
    (job / "app" / "custom" / "rankdad_job.py").write_text(code)
    status, _ = poc.wait(number := poc.begin(job))
    died = {path.name for path in markers.iterdir()}
    assert died, status
    if nodes == "hospital-b" and status != "COMPLETED":
        assert f"while it waited for {nodes}" in poc.nvflare("job", "logs", number)
    assert status != "COMPLETED" or died == {"hospital-b"}
    for _ in range(2):  # where both were to die, one may have been first
        if status != "COMPLETED":
            status, said = poc.submit(job)
    assert status == "COMPLETED", said
    assert outcome(tmp_path / "work") == ("completed", digests)


def test_a_client_that_is_gone_ends_the_job_after_the_patience_and_the_same_job_goes_on(
    poc: Poc, tmp_path: Path
) -> None:
    simulated, digests = lockstep(tmp_path, *SMALL)
    poc.settle(tmp_path / "work", site_documents(tmp_path / "work", simulated))
    server = poc.kits / "server" / "local" / "rankdad.json"
    server.write_text(json.dumps(json.loads(server.read_text()) | {"patience": 60}))
    job, marker = make(tmp_path, simulated, "--bring-code"), tmp_path / "hospital-b"
    code = KILLED % {"phase": "step", "nodes": marker.name, "folder": tmp_path}
    code = code.replace("os.kill(os.getpid(), signal.SIGKILL)", "signal.pause()")
    (job / "app" / "custom" / "rankdad_job.py").write_text(code)
    number, until = poc.begin(job), time.monotonic() + 300
    while not marker.exists():
        assert time.monotonic() < until
        time.sleep(0.2)
    poc.kill(marker.name)
    status, said = poc.wait(number)
    assert status == "FAILED"
    assert said.startswith("hospital-b: no sign of life from its process for 60 seconds")
    poc.nvflare("poc", "start", "-p", marker.name)
    assert poc.submit(job) == ("COMPLETED", "")
    assert outcome(tmp_path / "work") == ("completed", digests)


def test_a_site_without_settings_ends_the_job_in_a_sentence(poc: Poc, tmp_path: Path) -> None:
    simulated, digests = lockstep(tmp_path, *SMALL)
    documents = site_documents(tmp_path / "work", simulated)
    poc.settle(tmp_path / "work", documents)
    settings = poc.kits / "hospital-c" / "local" / "rankdad.json"
    settings.unlink()
    job = make(tmp_path, simulated)
    status, said = poc.submit(job)
    assert status == "FAILED"
    assert said.startswith("hospital-c: hospital-c has no settings: ")
    poc.settle(tmp_path / "work", documents)
    assert poc.submit(job) == ("COMPLETED", "")
    assert outcome(tmp_path / "work") == ("completed", digests)


HOSTILE = """
from rankdad.platforms.nvflare.controller import RunController as RunController
from rankdad.platforms.nvflare.executor import SiteExecutor as Executor
from tests.engines.hostile import payload

OTHERS = None, "text", 7, {"what": b"run"}


class SiteExecutor(Executor):
    sent, first = 0, None

    def execute(self, task_name, shareable, fl_ctx, abort_signal):
        if fl_ctx.get_identity_name() == "hospital-a" and self.sent < 101:
            self.first = self.first or shareable["rankdad"]
            shareable["rankdad"] = OTHERS[self.sent % 8] if self.sent % 8 < 4 else payload(self.sent)
            self.sent += 1
            return shareable
        if self.first:
            shareable["rankdad"], self.first = self.first, None
        return super().execute(task_name, shareable, fl_ctx, abort_signal)
"""


def test_a_hundred_hostile_payloads_change_nothing(poc: Poc, tmp_path: Path) -> None:
    simulated, digests = lockstep(tmp_path, *SMALL)
    poc.settle(tmp_path / "work", site_documents(tmp_path / "work", simulated))
    job = make(tmp_path, simulated, "--bring-code")
    (job / "app" / "custom" / "rankdad_job.py").write_text(HOSTILE)
    assert poc.submit(job) == ("COMPLETED", "")
    assert outcome(tmp_path / "work") == ("completed", digests)


OTHER_VERSION = """
import rankdad.common.protocol.versions as versions
from rankdad.platforms.nvflare.controller import RunController as RunController
from rankdad.platforms.nvflare.executor import SiteExecutor as Executor


class SiteExecutor(Executor):
    def execute(self, task_name, shareable, fl_ctx, abort_signal):
        if fl_ctx.get_identity_name() == "hospital-b":
            versions.__version__ = "7.0.1"
        return super().execute(task_name, shareable, fl_ctx, abort_signal)
"""


@pytest.mark.parametrize(
    ("file", "change", "said"),
    [
        ("job/meta.json", {"deploy_map": {"app": ["server", *SITES[:3]]}, "min_clients": 3}, "no client of this name"),
        ("job/app/custom/rankdad_job.py", OTHER_VERSION, "version-differs"),
        ("hospital-c/local/rankdad.json", {"device": "cuda"}, "device-missing"),
        ("server/local/rankdad.json", {"device": "cuda"}, "[device-missing]"),
        ("hospital-b/local/comm_config.json", {"max_message_size": 20_000}, "[message-too-large]"),
        ("server/local/comm_config.json", {"max_message_size": 20_000}, "max_message_size"),
    ],
)
def test_what_is_wrong_ends_a_job_in_a_sentence(
    poc: Poc, tmp_path: Path, file: str, change: dict[str, Any] | str, said: str
) -> None:
    simulated, _ = lockstep(tmp_path, *SMALL)
    poc.settle(tmp_path / "work", site_documents(tmp_path / "work", simulated))
    job = make(tmp_path, simulated, "--bring-code")
    path = tmp_path / file if file.startswith("job") else poc.kits / file
    before = path.read_text() if path.exists() else None
    if isinstance(change, str):
        path.write_text(change)
    else:
        kept = json.loads(before or "{}")
        kept.pop("mandatory_clients", None)
        path.write_text(json.dumps(kept | change))
    try:
        status, why = poc.submit(job)
    finally:
        path.unlink() if before is None else path.write_text(before)
    assert (status, said in why) == ("FAILED", True), why


def test_no_word_of_a_site_s_log_reaches_the_server(poc: Poc, tmp_path: Path) -> None:
    """NVFlare brings a client's `error_log.txt` to the server, where the site does not forbid it."""
    simulated, _ = lockstep(tmp_path, *SMALL)
    poc.settle(tmp_path / "work", site_documents(tmp_path / "work", simulated))
    secret = tmp_path / "work" / "hospital-d" / "data" / "data.npz"
    secret.unlink()
    status, said = poc.submit(make(tmp_path, simulated))
    assert status == "FAILED"
    assert said.startswith("hospital-d: ")
    own = next((tmp_path / "work" / "hospital-d" / "out" / "runs").glob("*/log.txt")).read_text()
    assert str(secret) in own
    for path in (path for path in (poc.kits / "server").rglob("*") if path.is_file()):
        assert str(secret).encode() not in path.read_bytes(), path
    for path in (poc.kits / "hospital-d").glob("*-*-*/*log*"):  # which a job may ask for
        assert str(secret).encode() not in path.read_bytes(), path


def test_without_the_right_class_nothing_starts(poc: Poc, tmp_path: Path) -> None:
    simulated, _ = lockstep(tmp_path, *SMALL)
    poc.settle(tmp_path / "work", site_documents(tmp_path / "work", simulated))
    resources = poc.kits / "hospital-a" / "local" / "resources.json"
    kept = resources.read_text()
    document = json.loads(kept)
    document["class_allow_list"].remove("rankdad.platforms.nvflare")
    resources.write_text(json.dumps(document))
    try:
        status, _ = poc.submit(make(tmp_path, simulated))
        assert status != "COMPLETED"
        shutil.rmtree(tmp_path / "job")
        status, _ = poc.submit(make(tmp_path, simulated, "--bring-code"))
        assert status == "COMPLETED"
    finally:
        resources.write_text(kept)
