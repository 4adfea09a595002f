"""Server and clients of NVFlare in one process, without NVFlare: what they carry, and how a job ends."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from queue import SimpleQueue
from typing import Any

import pytest
from typer.testing import CliRunner

from rankdad.__main__ import app
from rankdad.common.data import read_site
from rankdad.simulations import lockstep
from tests.conftest import SITES, run_spec
from tests.platforms.nvflare.conftest import ID
from tests.platforms.nvflare.engine import Engine, Limits

pytestmark = pytest.mark.slow
Make = Callable[..., Engine]


def weights(folder: Path) -> set[str]:
    """The digests of all sites' final weights, of a run that has completed."""
    (directory,) = (folder / "server" / "runs").iterdir()
    summary = json.loads((directory / "summary.json").read_text())
    assert summary["status"] == "completed", summary
    assert set(summary["weights_sha256"]) == set(SITES)
    return set(summary["weights_sha256"].values())


def undisturbed(folder: Path, **changes: Any) -> set[str]:
    spec = run_spec(**changes)
    data = {site: read_site(spec, folder / site / "data", index) for index, site in enumerate(SITES)}
    return {result.weights_sha256[site] for site, result in lockstep.run(spec, data, folder / "lockstep").items()}


def test_a_job_ends_with_the_weights_of_lockstep(consortium: Make, tmp_path: Path) -> None:
    method = {"name": "rank-dad", "rank": 2}
    engine = consortium(method=method)
    engine.run()
    assert not engine.controller.panics
    assert set(engine.codes) == {"OK"}
    assert weights(tmp_path) == undisturbed(tmp_path, method=method)
    for site in SITES:
        own = tmp_path / site / "out" / "runs" / ID
        assert (own / "model").is_dir()
        assert json.loads((own / "receipt.json").read_text())["status"] == "completed"
        assert (own / "finished").exists()


def failed(engine: Engine) -> str:
    """The sentence with which the engine ends a job that does not complete."""
    engine.run()
    (panic,) = engine.controller.panics
    return str(panic)


def change(path: Path, **fields: Any) -> None:
    path.write_text(json.dumps(json.loads(path.read_text()) | fields))


@pytest.mark.parametrize("results", [1, 7, 20, 31])
def test_a_job_that_was_killed_goes_on_with_the_same_weights(consortium: Make, tmp_path: Path, results: int) -> None:
    method = {"name": "rank-dad", "rank": 2, "feedback": "both"}
    engine = consortium(method=method)
    seen = list[str]()

    def spoil(node: str, result: Any) -> Any:
        seen.append(node)
        engine.signal.triggered = engine.signal.triggered or len(seen) >= results
        return result

    engine.spoil = spoil
    engine.run()
    assert not engine.controller.panics  # the engine itself has ended it
    (directory,) = (tmp_path / "server" / "runs").iterdir()
    assert json.loads((directory / "summary.json").read_text())["status"] == "interrupted"
    again = consortium(method=method)
    again.run()
    assert not again.controller.panics
    assert weights(tmp_path) == undisturbed(tmp_path, method=method)


def test_a_job_that_is_submitted_again_when_all_is_done_trains_nothing(consortium: Make, tmp_path: Path) -> None:
    consortium().run()
    before = weights(tmp_path)
    again = consortium()
    again.run()
    assert not again.controller.panics
    assert len(again.codes) == 3 * len(SITES)  # what the run is, that there is no more to do, and the end
    assert weights(tmp_path) == before


def test_a_site_that_lost_the_end_hears_it_from_a_job_over_the_same_ledger(consortium: Make, tmp_path: Path) -> None:
    consortium().run()
    before = weights(tmp_path)
    (tmp_path / "beta" / "out" / "runs" / ID / "finished").unlink()
    again = consortium()
    again.run()
    assert not again.controller.panics
    assert weights(tmp_path) == before
    assert (tmp_path / "beta" / "out" / "runs" / ID / "finished").exists()


@pytest.mark.parametrize(
    ("spoil", "heard"),
    [
        (lambda kit: (kit / "rankdad.json").unlink(), "beta has no settings"),
        (lambda kit: change(kit / "rankdad.json", name="gamma"), "a site with another name"),
        (lambda kit: change(kit / "rankdad.json", surprise=1), "field-unknown"),
        (lambda kit: change(kit / "rankdad.json", device="cuda"), "device-missing"),
        (lambda kit: change(kit / "policy.json", min_sites=9), "(min_sites)"),
        (lambda kit: change(kit / "policy.json", min_rows=40), "(min_rows)"),
        (lambda kit: change(kit / "policy.json", max_rank=1), "(max_rank 1)"),
        (lambda kit: (kit / "data" / "data.npz").write_bytes(b"secret words"), "npz-unreadable"),
    ],
)
def test_what_is_wrong_at_a_site_ends_the_job_in_a_sentence_and_once_mended_it_goes_on(
    consortium: Make, tmp_path: Path, spoil: Callable[[Path], object], heard: str
) -> None:
    engine, kit = consortium(), tmp_path / "beta"
    kept = {path: path.read_bytes() for path in (kit / "rankdad.json", kit / "policy.json", kit / "data" / "data.npz")}
    spoil(kit)
    sent = list[bytes]()

    def spoil_nothing(node: str, result: Any) -> Any:
        sent.append(result.get("rankdad", b""))
        return result

    engine.spoil = spoil_nothing
    said = failed(engine)
    assert said.startswith("beta: ")
    assert heard in said
    assert set(engine.codes) <= {"OK", "TASK_ABORTED"}
    for words in (said, *map(str, sent), *(line for lines in engine.said().values() for line in lines)):
        assert "secret words" not in words
        assert str(tmp_path) not in words or words in engine.said()["server"]
    for path, content in kept.items():
        path.write_bytes(content)
    again = consortium()
    again.run()
    assert not again.controller.panics
    weights(tmp_path)


@pytest.mark.parametrize(
    ("spoil", "code"),
    [
        (lambda kit: (kit / "rankdad.json").unlink(), "settings-missing"),
        (lambda kit: change(kit / "rankdad.json", surprise=1), "field-unknown"),
        (lambda kit: change(kit / "rankdad.json", device="cuda"), "device-missing"),
        (lambda kit: (kit / "runs").write_text("no folder"), "cannot-write"),
    ],
)
def test_what_is_wrong_at_the_server_ends_the_job_in_a_sentence(
    consortium: Make, tmp_path: Path, spoil: Callable[[Path], object], code: str
) -> None:
    engine = consortium()
    spoil(tmp_path / "server")
    assert failed(engine).endswith(f"[{code}]")


def test_another_version_at_a_site_ends_the_job(consortium: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("rankdad.common.protocol.versions.__version__", "7.0.1")
    assert "version-differs" in failed(consortium())


@pytest.mark.parametrize(
    ("document", "code"),
    [
        ({"id": "../../x", "run": {}}, "id-malformed"),
        ({"id": ID}, "job-malformed"),
        ({"id": ID, "run": {}, "data": "/etc"}, "job-malformed"),
        ({"id": ID, "run": {"name": "x", "code": "os:system"}}, "field-unknown"),
        (None, "job-malformed"),
    ],
)
def test_a_job_that_was_edited_ends_in_a_sentence(
    consortium: Make, tmp_path: Path, document: object, code: str
) -> None:
    engine = consortium()
    (tmp_path / "job" / "app" / "config" / "run.json").write_text(json.dumps(document))
    assert failed(engine).endswith(f"[{code}]")


def test_an_edited_run_is_none_that_the_ledger_holds(consortium: Make, tmp_path: Path) -> None:
    engine = consortium()

    def spoil(node: str, result: Any) -> Any:
        engine.signal.triggered = True
        return result

    engine.spoil = spoil
    engine.run()
    path = tmp_path / "job" / "app" / "config" / "run.json"
    document = json.loads(path.read_text())
    document["run"]["seed"] = 5
    path.write_text(json.dumps(document))
    assert failed(consortium()).endswith("[ledger-of-another-run]")


def test_a_run_waits_for_somebody_at_a_site_who_approves_it(consortium: Make, tmp_path: Path) -> None:
    said = failed(consortium({"beta": {"approval": "manual"}}))
    assert said.startswith(f"beta: beta waits for approval: `rankdad approve {ID} SITE.json`")
    site = tmp_path / "beta" / "rankdad.json"
    done = CliRunner().invoke(app, ["approve", ID, str(site), "--yes"])
    assert done.exit_code == 0, done.output
    assert "lead@example.org" in done.output
    again = consortium()
    again.run()
    assert not again.controller.panics
    weights(tmp_path)
    lines = [json.loads(line) for line in (tmp_path / "beta" / "out" / "audit.jsonl").read_text().splitlines()]
    assert [line["what"] for line in lines] == ["asked", "accepted", "finished"]
    assert {line["owner"] for line in lines} == {"lead@example.org"}


def test_a_run_that_somebody_refuses_is_never_trained(consortium: Make, tmp_path: Path) -> None:
    failed(consortium({"beta": {"approval": "manual"}}))
    site = tmp_path / "beta" / "rankdad.json"
    assert CliRunner().invoke(app, ["refuse", ID, str(site), "--reason", "no contract"]).exit_code == 0
    assert "no contract" in failed(consortium())


def test_an_owner_s_runs_are_counted_in_every_job(consortium: Make, tmp_path: Path) -> None:
    consortium(policy={"runs": 1}).run()
    path = tmp_path / "job" / "app" / "config" / "run.json"
    document = json.loads(path.read_text())
    path.write_text(json.dumps(document | {"id": "fedcba9876543210"}))
    assert "allows 1 per owner" in failed(consortium())


def test_a_node_speaks_for_itself_alone(consortium: Make) -> None:
    engine = consortium()

    def spoil(node: str, result: Any) -> Any:
        if node == "beta" and "rankdad" in result:
            result["rankdad"] = result["rankdad"].replace(b"\xa4beta", b"\xa5gamma")
        return result

    engine.spoil = spoil
    engine.run()  # what is refused tells beta so, and beta gives up; but nobody hears that of gamma
    (panic,) = engine.controller.panics
    assert panic.startswith("beta: ")


@pytest.mark.parametrize("most", [8_400, 9_500])  # less than every reply, and less than a contribution
def test_messages_that_nvflare_would_drop_end_the_job_in_a_sentence(
    consortium: Make, monkeypatch: pytest.MonkeyPatch, most: int
) -> None:
    monkeypatch.setattr(Limits, "most", most)
    said = failed(consortium())
    assert "max_message_size" in said


def test_a_site_that_the_job_was_not_handed_to_is_not_waited_for(consortium: Make) -> None:
    """NVFlare does not say so: a task for a client that it does not know stands without end."""
    engine = consortium()
    engine.contexts["server"].clients.remove("beta")
    assert failed(engine).startswith("beta: no client of this name takes part in the job")


def test_a_client_whose_process_is_lost_ends_the_job_in_a_sentence(consortium: Make) -> None:
    engine = consortium()

    def spoil(node: str, result: Any) -> Any:
        if node == "beta":
            engine.kill("beta")
            return None
        return result

    engine.spoil = spoil
    assert "NVFlare has lost its process" in failed(engine)


class Unheard(SimpleQueue[Any]):
    """The tasks of a client whose process does not start."""

    def put(self, item: Any, block: bool = True, timeout: float | None = None) -> None:
        super().put(item) if item is None else None


@pytest.mark.parametrize("reason", ["jobHeartbeat", None])
def test_a_client_that_falls_silent_ends_the_job_in_a_sentence(
    consortium: Make, tmp_path: Path, reason: str | None
) -> None:
    """All of its processes are gone, or none has started: nobody at the client is left to report it."""
    engine = consortium()
    change(tmp_path / "server" / "rankdad.json", patience=5.0)

    def spoil(node: str, result: Any) -> Any:
        if node == "beta" and reason is not None:
            engine.controller.communicator.client_is_active(node, reason, engine.contexts["server"])
        return None if node == "beta" else result

    engine.spoil = spoil
    if reason is None:
        engine.tasks["beta"] = Unheard()
    said = failed(engine)
    assert said.startswith("beta: no sign of life")
    assert said.endswith("[site-ended]")


def test_a_job_that_the_engine_ends_names_the_clients_that_it_waited_for(consortium: Make) -> None:
    engine = consortium()

    def spoil(node: str, result: Any) -> Any:
        engine.signal.triggered = engine.signal.triggered or node == "beta"
        return None if node == "beta" else result

    engine.spoil = spoil
    engine.run()
    assert not engine.controller.panics
    (line,) = [line for line in engine.said()["server"] if line.endswith("[stopped]")]
    assert "beta" in line
