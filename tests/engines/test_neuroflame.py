"""Killed nodes of NeuroFLAME's, which are processes in place of containers. `make engines` runs it."""

from __future__ import annotations

import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import pytest

from benchmarks.nvflare_poc import RANKDAD, ROOT, call, kill_all
from tests.conftest import OPEN
from tests.engines import lacks

pytestmark = [
    pytest.mark.exhaustive,
    pytest.mark.timeout(1800),
    pytest.mark.skipif(lacks("nvflare"), reason="NVFlare is not installed: make engines"),
]
ALL = ("hospital-a", "hospital-b", "hospital-c", "hospital-d")
SITES, CENTRAL = ALL[:2], "central"
IDS = dict(zip(ALL, ("64b7c0ffee01", "640700000002", "64b7c0ffee03", "64b7c0ffee04"), strict=True))
SMALL = ("run.training.epochs=1", "run.training.batch_size=128", 'run.model={"name":"mlp","hidden":[16]}')
LINEAR = (
    'run.model={"name":"linear"}',
    'simulation.partition={"name":"iid"}',
    "run.training.early_stopping=null",
    'run.training.solver="exact"',
)
END = 600.0  # seconds in which every node has to end
ENTRY = """
import os, sys
from rankdad.platforms.neuroflame import __main__ as entry

entry.LOOK, entry.SILENCE = 1.0, 60.0
status = entry.main()
sys.stdout.flush()
os._exit(status)
"""
STOPS = '''"""Stops a member at a message, once, until somebody kills it or says that it goes on."""

import os
import sys
import time
from base64 import b64decode
from pathlib import Path

PHASE, FOLDER = "%(phase)s", Path("%(folder)s")
KINDS = {"hello": 1, "step": 2, "evaluation": 4}
words = " ".join(sys.orig_argv)


def due(said):
    """Tell whether this is the message at which the member stops."""
    import msgpack

    if said["stage"] == "sent":
        return msgpack.unpackb(b64decode(said["body"]))["k"] == KINDS.get(PHASE)
    return {"start": "joined", "end": "done"}.get(PHASE) == said["stage"]


def stopping(site):
    answer = site._answer

    def answered(said):
        reply = answer(said)
        if due(reply.output["rankdad"]) and not (FOLDER / "stopped").exists():
            (FOLDER / "stopped").touch()
            while not (FOLDER / "on").exists():
                time.sleep(0.1)
        return reply

    site._answer = answered
    return site


if "runner_process" in words:
    from rankdad.remote import signs

    signs.PATIENCE = 60.0
if "worker_process" in words and os.environ["RANKDAD_WORKSPACE"].endswith("hospital-a"):
    from rankdad.platforms.neuroflame.executor import SiteExecutor

    begin = SiteExecutor._begin
    SiteExecutor._begin = lambda self, fl_ctx: stopping(begin(self, fl_ctx))
'''
HOSTILE = '''"""One member answers a hundred times with what is no site's, the other as it has to: each ends a run."""

import json
import os
import sys
from pathlib import Path

words = " ".join(sys.orig_argv)
if "runner_process" in words:
    from rankdad.common.errors import RankdadError
    from rankdad.platforms.coinstac import carried

    lead = carried.lead

    def hundred(clients, folder, *rest):
        ends = []
        for number in range(100):
            try:
                lead(clients, folder / str(number), *rest)
                ends.append("the run has completed")
            except RankdadError as error:
                ends.append(error.code)
        Path("%(folder)s", "ends.json").write_text(json.dumps(ends))
        raise RankdadError("enough", code="enough")

    carried.lead = hundred
if "worker_process" in words:
    from rankdad.platforms.coinstac.carried import CarriedSite
    from tests.platforms.neuroflame.test_nodes import hostile

    advance, said = CarriedSite.advance, []

    def advanced(self, reply, stops):
        said.append(said[0] if said else advance(self, reply, stops))
        return hostile(len(said), said[0]) if os.environ["RANKDAD_WORKSPACE"].endswith("hospital-a") else said[0]

    CarriedSite.advance = advanced
'''


class Nodes:
    """The central node and a node for each member, with run kits of their own.

    Args:
        folder: of all nodes' mounts.
        simulated: directory of the simulation with the members' data.
        sites: the members.
        hook: a folder whose `sitecustomize.py` every process imports first.
    """

    def __init__(self, folder: Path, simulated: Path, sites: tuple[str, ...] = SITES, hook: Path | None = None) -> None:
        self.folder = folder
        self.environment = {key: value for key, value in os.environ.items() if key != "FORCE_COLOR"}
        self.environment |= {"PYTHONPATH": f"{hook}:{ROOT}" if hook else str(ROOT)}
        with socket.create_server(("127.0.0.1", 0)) as free:
            port = free.getsockname()[1]
        given = {
            "users": [{"id": IDS[site], "name": site} for site in sites],
            "computation_parameters": json.dumps({"spec": json.loads((simulated / "run.json").read_text())}),
            "fed_learn_port": port,
            "host_identifier": "localhost",
        }
        made = folder / "made"
        made.mkdir(parents=True)
        (made / "provision_input.json").write_text(json.dumps(given))
        words = [sys.executable, "-m", "rankdad.platforms.neuroflame", "provision"]
        said = call(words, self.environment | {"RANKDAD_PROVISIONING": str(made)}, folder)
        assert "run kits for" in said, said
        shutil.copytree(made / "runKits" / "centralNode", folder / CENTRAL / "runKit")
        for site in sites:
            shutil.copytree(made / "runKits" / IDS[site], folder / site / "runKit")
            shutil.copytree(simulated / "sites" / site / "data", folder / site / "data")
            (folder / site / "output").mkdir()
            (folder / site / "data" / "local_parameters.json").write_text(json.dumps({"name": site, "policy": OPEN}))
        for path in folder.glob("*/runKit/**/resources.json.default"):  # containers have a folder of their own for jobs
            path.write_text(path.read_text().replace("/tmp/nvflare", str(folder / "nvflare")))
        self.processes = {
            node: subprocess.Popen(
                [sys.executable, "-c", ENTRY, "central" if node == CENTRAL else "edge"],
                env=self.environment | {"RANKDAD_WORKSPACE": str(folder / node)},
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                text=True,
            )
            for node in (CENTRAL, *sites)
        }

    def kill(self, node: str) -> None:
        """Kill all processes of a node, as a container's end does."""
        kill_all("environ", f"RANKDAD_WORKSPACE={self.folder / node}\0")
        self.processes[node].poll()

    def stop(self) -> None:
        """Kill all that is left."""
        for node in self.processes:
            self.kill(node)

    def ended(self) -> dict[str, tuple[int, str]]:
        """Wait for the end of all nodes, and return their exit codes, and what they have printed."""
        until = time.monotonic() + END
        said = {
            node: process.communicate(timeout=until - time.monotonic())[0] for node, process in self.processes.items()
        }
        return {node: (process.returncode, said[node]) for node, process in self.processes.items()}

    def data(self) -> dict[Path, bytes]:
        """Return the members' files."""
        return {path: path.read_bytes() for path in self.folder.glob("*/data/*")}


def simulate(output: Path, name: str, sets: tuple[str, ...], sites: tuple[str, ...]) -> Path:
    """Simulate a spec at sites without policies, and return the simulation's directory."""
    sets = (*sets, f"simulation.policy={json.dumps(OPEN)}", f"run.federation.sites={json.dumps(sites)}")
    options = [word for one in sets for word in ("--set", one)]
    spec = ROOT / "simulations" / "specs" / name
    words = [*RANKDAD, "simulate", str(spec), "--lockstep", "--quiet", "--output", str(output), *options]
    said = call(words, os.environ | {"PYTHONPATH": str(ROOT)}, output.parent)
    assert (output / "summary.json").exists(), said
    return output


def digests(folder: Path) -> set[str]:
    """Return the digests of the final weights in a summary."""
    return set(json.loads((folder / "summary.json").read_text())["weights_sha256"].values())


@pytest.fixture(scope="module")
def simulated(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return simulate(tmp_path_factory.mktemp("simulated") / "run", "digits.json", SMALL, SITES)


@pytest.mark.parametrize(("spec", "sets"), [("digits.json", SMALL), ("diabetes.json", LINEAR)])
def test_four_members_and_lockstep_give_the_same_bits(tmp_path: Path, spec: str, sets: tuple[str, ...]) -> None:
    output = simulate(tmp_path / "simulated", spec, sets, ALL)
    nodes = Nodes(tmp_path / "run", output, ALL)
    try:
        ended = nodes.ended()
    finally:
        nodes.stop()
    assert {code for code, _ in ended.values()} == {0}, ended
    assert digests(nodes.folder / "central" / "runKit" / "rankdad" / "run") == digests(output)


def test_a_hundred_hostile_payloads_end_a_run_each_in_a_sentence(simulated: Path, tmp_path: Path) -> None:
    (tmp_path / "sitecustomize.py").write_text(HOSTILE % {"folder": tmp_path})
    nodes = Nodes(tmp_path / "run", simulated, hook=tmp_path)
    data = nodes.data()
    try:
        ended = nodes.ended()
    finally:
        nodes.stop()
    ends = json.loads((tmp_path / "ends.json").read_text())
    assert (len(ends), {"member-failed"} <= {*ends}, "the run has completed" in ends) == (100, True, False), ended
    assert [code for code, _ in ended.values()] == [1, 1, 1], ended
    assert "[enough]" in ended[CENTRAL][1].splitlines()[-1]
    assert nodes.data() == data


@pytest.mark.parametrize("phase", ["start", "hello", "step", "evaluation", "end"])
@pytest.mark.parametrize("dead", [SITES[:1], (CENTRAL,), (CENTRAL, SITES[0])], ids=["client", "server", "both"])
def test_all_others_end_in_a_sentence_and_a_new_run_has_the_same_weights(
    simulated: Path, tmp_path: Path, phase: str, dead: tuple[str, ...]
) -> None:
    """A new run has new kits and folders of results, and the same data: one phase shows that."""
    (tmp_path / "hook").mkdir()
    (tmp_path / "hook" / "sitecustomize.py").write_text(STOPS % {"phase": phase, "folder": tmp_path})
    nodes, until = Nodes(tmp_path / "killed", simulated, hook=tmp_path / "hook"), time.monotonic() + END
    data = nodes.data()
    try:
        while not (tmp_path / "stopped").exists():
            assert time.monotonic() < until
            assert nodes.processes[CENTRAL].poll() is None, nodes.ended()
            time.sleep(0.1)
        for node in dead:
            nodes.kill(node)
        (tmp_path / "on").touch()
        ended = nodes.ended()
    finally:
        nodes.stop()
    assert all(ended[node][0] == -signal.SIGKILL for node in dead), ended
    if CENTRAL not in dead:
        assert ended[CENTRAL][0] == 1
        assert ended[CENTRAL][1].splitlines()[-1].startswith(f"error: member-{IDS[SITES[0]]}: no sign of life")
    for site in set(SITES) - {*dead}:
        code, said = ended[site]
        assert (code, len(said.splitlines())) in [(0, 0), (1, 1)], ended
        assert code == 1 or phase == "end"  # the last update has brought all that it needs
        assert code == 1 or digests(nodes.folder / site / "output") == digests(simulated)
    assert nodes.data() == data
    if phase != "step":
        return
    again = Nodes(tmp_path / "again", simulated)
    try:
        ended = again.ended()
    finally:
        again.stop()
    assert {code for code, _ in ended.values()} == {0}, ended
    assert digests(again.folder / "central" / "runKit" / "rankdad" / "run") == digests(simulated)
