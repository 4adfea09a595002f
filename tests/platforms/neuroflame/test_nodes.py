"""Server and clients of a run on NeuroFLAME in one process, without NVFlare: what they carry, and how a run ends."""

from __future__ import annotations

import json
import random
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from rankdad.common.data import read_site
from rankdad.common.spec import RunSpec
from rankdad.platforms.neuroflame.folders import CLIENT, ENVIRONMENT, ERROR
from rankdad.simulations import lockstep
from tests.conftest import OPEN, SITES, run_document, write_site
from tests.engines.hostile import payload
from tests.platforms.nvflare.engine import Context, Shareable, Signal, stubs
from tests.platforms.policies import ALLOWED, REFUSED, settle

IDS = {f"{number}f" * 12: site for number, site in enumerate(SITES, 3)}


@pytest.fixture(autouse=True)
def _no_nvflare() -> Iterator[None]:
    with stubs():
        yield


class Run:
    """A run: the server's control flow, which every task of a client's is executed in.

    Args:
        folder: of the nodes' workspaces.
        parameters: of the consortium.
        monkeypatch: for the environment of the node that works.
    """

    def __init__(self, folder: Path, parameters: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
        from rankdad.platforms.neuroflame.controller import IterationController
        from rankdad.platforms.neuroflame.executor import SiteExecutor

        self.folder, self.patch, self.sent = folder, monkeypatch, list[bytes]()
        self.spoil: Callable[[str, bytes], Any] = lambda client, said: said  # what a hostile member sends instead
        self.executors: dict[str, Any] = {f"{CLIENT}{id_}": SiteExecutor() for id_ in IDS}
        self.tasks = {client: SimpleNamespace(put=self._works(client)) for client in self.executors}
        self.controller: Any = IterationController()
        self.controller.engine = self
        self.server = Context("server", folder, folder, clients=list(self.executors))
        for index, (id_, site) in enumerate(IDS.items()):
            kit, data = folder / site / "runKit", folder / site / "data"
            kit.mkdir(parents=True)
            (folder / site / "output").mkdir()
            (kit / "parameters.json").write_text(json.dumps(parameters | {"site_id_name_map": {id_: f"Site {index}"}}))
            write_site(data, 70 - 9 * index, index)
            (data / "local_parameters.json").write_text(json.dumps({"name": site, "policy": OPEN}))

    def _works(self, client: str) -> Any:
        site = IDS[client.removeprefix(CLIENT)]

        def put(task: Any) -> None:
            self.patch.setenv(ENVIRONMENT, str(self.folder / site))
            context = Context(client, self.folder, self.folder)
            result = self.executors[client].execute(task.name, task.data, context, Signal())
            self.patch.setenv(ENVIRONMENT, str(self.folder / "central"))
            result["rankdad"] = self.spoil(client, result["rankdad"])
            self.sent.append(result["rankdad"])
            task.result_received_cb(SimpleNamespace(result=result, client=SimpleNamespace(name=client)), self.server)

        return put

    def go(self) -> list[str]:
        """See it through, and return the sentence that has ended it, if it has not completed."""
        self.patch.setenv(ENVIRONMENT, str(self.folder / "central"))
        self.controller.control_flow(Signal(), self.server)
        for client, executor in self.executors.items():
            executor.handle_event("end", Context(client, self.folder, self.folder))
        panics: list[str] = self.controller.panics
        return panics


DOCUMENT = run_document(method={"name": "rank-dad", "rank": 2}, federation={"sites": list(SITES)})


@pytest.mark.slow
def test_a_run_ends_with_the_weights_of_lockstep_and_every_member_has_its_results(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = Run(tmp_path, {"spec": DOCUMENT}, monkeypatch)
    assert run.go() == []
    spec = RunSpec.model_validate(DOCUMENT)
    data = {site: read_site(spec, tmp_path / site / "data", index) for index, site in enumerate(SITES)}
    digests = {result.weights_sha256[site] for site, result in lockstep.run(spec, data, tmp_path / "lockstep").items()}
    summary = json.loads((tmp_path / "central" / "runKit" / "rankdad" / "run" / "summary.json").read_text())
    assert set(summary["weights_sha256"].values()) == digests
    for site in SITES:
        output = tmp_path / site / "output"
        assert (output / "index.html").exists()
        assert (output / "metrics.csv").exists()
        assert list((output / "global_stats").glob("*.png"))


@pytest.mark.parametrize(
    ("spoil", "heard"),
    [
        ({"data.npz": b"secret words"}, "npz-unreadable"),
        ({"data.npz": None}, "file-missing"),
        ({"local_parameters.json": b'{"name": "secret words!"}'}, "the JSON file of this site has a wrong field"),
        ({"local_parameters.json": b"secret words"}, "the JSON file of this site has a wrong field"),
        ({"local_parameters.json": b'{"name": "beta", "policy": {"min_sites": 9}}'}, "(min_sites)"),
    ],
)
def test_words_of_a_member_stay_with_the_member(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, spoil: dict[str, bytes | None], heard: str
) -> None:
    run = Run(tmp_path, {"spec": DOCUMENT}, monkeypatch)
    for name, content in spoil.items():
        path = tmp_path / "beta" / "data" / name
        path.unlink() if content is None else path.write_bytes(content)
    (said,) = run.go()
    assert heard in said
    assert (tmp_path / "central" / "runKit" / "rankdad" / ERROR).read_text() == said + "\n"
    for words in (said, *map(bytes.decode, run.sent), *run.controller.lines):
        assert "secret" not in words
        assert str(tmp_path) not in words
    assert not (tmp_path / "beta" / "output" / "index.html").exists()


@pytest.mark.slow
@pytest.mark.parametrize(("changes", "said"), REFUSED)
def test_nothing_leaves_of_a_run_that_a_policy_refuses(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, changes: dict[str, Any], said: str
) -> None:
    changes = dict(changes)
    rows = changes.pop("rows", 120)
    run = Run(tmp_path, {"spec": DOCUMENT | ALLOWED | changes}, monkeypatch)
    settle(tmp_path, rows)
    for site in SITES:
        (tmp_path / site / "data" / "local_parameters.json").write_text(json.dumps({"name": site, "policy": {}}))
    (panic,) = run.go()
    assert said.partition(":")[0] in panic
    for words in run.sent:
        assert json.loads(words)["rankdad"]["stage"] in ("joined", "failed")


DEEP = b"[" * 5000
OTHERS: tuple[Any, ...] = (
    None,
    7,
    [],
    {"stage": "os.system"},
    {"stage": "sent"},
    {"stage": "sent", "round": 0, "body": "!!"},
)
ALMOST = {"stage": "done", "weights_sha256": "../../x"}, {"stage": "failed", "reason": "\x1b[2J"}, {"stage": "joined"}


def hostile(number: int, said: bytes) -> Any:
    """Return what is no output of a site's, or almost one."""
    rng = random.Random(number)
    document = json.loads(said)["rankdad"]
    field = rng.choice(sorted(document))
    changed = document | {field: rng.choice((None, -1, 1e400, "x" * 10**5, "../x", [[]], {"a": {}}))}
    said_again = [json.dumps({"rankdad": one}).encode() for one in (*OTHERS, *ALMOST, changed, changed, changed)]
    return rng.choice((None, 7, "text", b"\xff", DEEP, said[: rng.randrange(len(said))], payload(number), *said_again))


@pytest.mark.slow
def test_a_hundred_hostile_payloads_end_a_run_in_a_sentence(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run = Run(tmp_path, {"spec": DOCUMENT}, monkeypatch)
    first, spoilt = sorted(run.executors)[0], list[Any]()
    said = dict[str, bytes]()
    for client, executor in run.executors.items():
        monkeypatch.setenv(ENVIRONMENT, str(tmp_path / IDS[client.removeprefix(CLIENT)]))
        context = Context(client, tmp_path, tmp_path)
        said[client] = executor.execute("rankdad", {"rankdad": b""}, context, Signal())["rankdad"]

    def works(client: str) -> Any:
        def put(task: Any) -> None:
            result = Shareable(rankdad=spoilt[-1] if client == first else said[client])
            task.result_received_cb(SimpleNamespace(result=result, client=SimpleNamespace(name=client)), run.server)

        return SimpleNamespace(put=put)

    run.tasks = {client: works(client) for client in run.executors}
    for number in range(100):
        spoilt.append(hostile(number, said[first]))
        run.controller.panics.clear()
        (panic,) = run.go()
        assert "of the aggregator's own" not in panic, (spoilt[-1], panic)
