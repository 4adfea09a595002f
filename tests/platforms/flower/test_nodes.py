"""Server and nodes of Flower in one process, without Flower: what they carry, and how a job ends."""

from __future__ import annotations

import json
import logging
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from rankdad.common.data import read_site
from rankdad.simulations import lockstep
from tests.conftest import SITES, run_spec
from tests.platforms.flower.conftest import ID
from tests.platforms.flower.engine import UNAVAILABLE, Engine, Message

pytestmark = pytest.mark.slow
Make = Callable[..., Engine]
METHOD = {"name": "rank-dad", "rank": 2, "feedback": "both"}


def weights(folder: Path) -> set[str]:
    """The digests of all sites' final weights, of a run that has completed."""
    (directory,) = (folder / "runs").iterdir()
    summary = json.loads((directory / "summary.json").read_text())
    assert summary["status"] == "completed", summary
    assert set(summary["weights_sha256"]) == set(SITES)
    return set(summary["weights_sha256"].values())


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> Callable[[Path], set[str]]:
    found = set[str]()

    def of(folder: Path) -> set[str]:
        if not found:
            spec = run_spec(method=METHOD)
            data = {site: read_site(spec, folder / site / "data", index) for index, site in enumerate(SITES)}
            results = lockstep.run(spec, data, tmp_path_factory.mktemp("lockstep"))
            found.update(result.weights_sha256[site] for site, result in results.items())
        return found

    return of


@pytest.mark.parametrize("registered", [True, False])
def test_a_job_ends_with_the_weights_of_lockstep(
    consortium: Make, tmp_path: Path, undisturbed: Callable[[Path], set[str]], registered: bool
) -> None:
    assert consortium({"registered": registered}, method=METHOD).run() == ""
    assert weights(tmp_path) == undisturbed(tmp_path)
    for site in SITES:
        own = tmp_path / site / "out" / "runs" / ID
        assert (own / "model").is_dir()
        assert json.loads((own / "receipt.json").read_text())["status"] == "completed"


@pytest.mark.parametrize("answers", [1, 9, 20])
@pytest.mark.parametrize("how", ["process", "node", "new node", "answer", "error"])
def test_a_node_that_is_killed_comes_back_into_its_job(
    consortium: Make, tmp_path: Path, undisturbed: Callable[[Path], set[str]], answers: int, how: str
) -> None:
    """Its process, its node or both are lost before the answer leaves, or Flower loses the answer."""
    engine, seen = consortium({"registered": True}, method=METHOD), list[str]()

    def spoil(name: str, answer: Message) -> Message | None:
        if name != "beta":
            return answer
        seen.append(name)
        if len(seen) != answers:
            return answer
        if how == "answer":
            return Message(error=UNAVAILABLE)
        if how == "error":
            return Message(error=8)
        place = str(tmp_path / "beta.json")
        if how == "process":
            engine.sites.pop(place).stop(30)
            return Message(error=8)
        if how == "new node":
            engine.sites.pop(place).stop(30)
        engine.again(2)
        return None

    engine.spoil = spoil
    assert engine.run() == ""
    assert len(seen) > answers
    assert weights(tmp_path) == undisturbed(tmp_path)


@pytest.mark.parametrize("answers", [1, 7, 20, 31])
def test_a_job_that_was_killed_goes_on_as_another(
    consortium: Make, tmp_path: Path, undisturbed: Callable[[Path], set[str]], answers: int
) -> None:
    engine, seen = consortium(method=METHOD), list[str]()

    def spoil(name: str, answer: Message) -> Message:
        seen.append(name)
        if len(seen) == answers:
            engine.get_nodes = None  # type: ignore[method-assign,assignment]  # the engine is no more
        return answer

    engine.spoil = spoil
    assert engine.run().endswith("[engine-failed]")
    assert consortium(method=METHOD).run() == ""
    assert weights(tmp_path) == undisturbed(tmp_path)


def change(path: Path, **fields: Any) -> None:
    path.write_text(json.dumps(json.loads(path.read_text()) | fields))


@pytest.mark.parametrize(
    ("spoil", "code"),
    [
        (lambda folder: (folder / "beta.json").unlink(), "has no settings"),
        (lambda folder: change(folder / "beta.json", name="gamma"), "another site's"),
        (lambda folder: change(folder / "beta.json", surprise=1), "field-unknown"),
        (lambda folder: change(folder / "beta.json", device="cuda:7"), "no-gpu"),
        (lambda folder: change(folder / "beta" / "policy.json", min_sites=9), "policy-refuses"),
        (lambda folder: (folder / "beta" / "data" / "data.npz").write_bytes(b"secret words"), "file-unreadable"),
    ],
)
def test_what_is_wrong_at_a_site_ends_the_job_in_a_sentence_and_once_mended_it_goes_on(
    consortium: Make, tmp_path: Path, spoil: Callable[[Path], object], code: str
) -> None:
    engine, beta = consortium(), tmp_path / "beta"
    kept = {
        path: path.read_bytes() for path in (tmp_path / "beta.json", beta / "policy.json", beta / "data" / "data.npz")
    }
    spoil(tmp_path)
    said = engine.run()
    assert "beta" in said
    assert said.endswith("[site-ended]")
    for crossed in engine.crossed:
        assert b"secret words" not in bytes(crossed)
        assert str(tmp_path).encode() not in bytes(crossed)
    for path, content in kept.items():
        path.write_bytes(content)
    assert consortium().run() == ""


def test_the_log_says_for_whom_a_run_waits(
    consortium: Make, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr("rankdad.remote.hosted.WAITING", 0.3)
    engine, slow = consortium(), [0.0, 0.0, 1.5]

    def late(name: str, answer: Any) -> Any:
        time.sleep(slow.pop() if name == "beta" and slow else 0.0)
        return answer

    engine.spoil = late
    with caplog.at_level(logging.INFO, "flwr"):
        assert engine.run() == ""
    assert any("waits for" in line and "beta" in line for line in caplog.messages)


def test_another_version_at_a_site_ends_the_job(consortium: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("rankdad.common.protocol.versions.__version__", "7.0.1")
    assert "version-differs" in consortium().run()


@pytest.mark.parametrize(
    ("config", "code"),
    [
        ({"id": "../../x", "run": "{}"}, "id-malformed"),
        ({"id": ID}, "job-malformed"),
        ({"id": ID, "run": "{", "data": "/etc"}, "job-malformed"),
        ({"id": ID, "run": "{"}, "field-invalid"),
        ({"id": ID, "run": '{"name": "x", "code": "os:system"}'}, "field-unknown"),
        ({}, "job-malformed"),
    ],
)
def test_a_job_that_was_edited_ends_in_a_sentence(consortium: Make, config: dict[str, str], code: str) -> None:
    engine = consortium()
    engine.config = config
    assert engine.run().endswith(f"[{code}]")


def test_a_server_without_settings_says_so(consortium: Make, tmp_path: Path) -> None:
    engine = consortium()
    (tmp_path / "server.json").unlink()
    assert engine.run().endswith("[settings-missing]")


def test_two_nodes_of_one_name_are_one_too_many(consortium: Make) -> None:
    engine = consortium()
    engine.names[4], engine.since[4] = "beta", "0"
    assert engine.run().endswith("[site-twice]")


def test_a_node_of_another_name_is_no_site(consortium: Make) -> None:
    engine = consortium({"registered": False})
    engine.config["id"] = "fedcba9876543210"
    change(engine.folder / "beta.json", name="delta")
    assert engine.run().endswith("[site-unknown]")


def test_a_site_without_a_node_is_waited_for_no_longer_than_the_server_says(
    consortium: Make, tmp_path: Path, undisturbed: Callable[[Path], set[str]], caplog: pytest.LogCaptureFixture
) -> None:
    """The others hear of it, and their processes end; the same job, submitted again, resumes."""
    engine = consortium({"patience": 5.0}, method=METHOD)
    del engine.names[2]
    said = engine.run()
    assert said.startswith("beta: no node of this name has been there for 5 seconds")
    assert said.endswith("[site-ended]")
    (directory,) = (tmp_path / "runs").iterdir()
    assert json.loads((directory / "summary.json").read_text())["code"] == "site-ended"
    assert caplog.text.count("[job-stopped]") == 2
    assert consortium(method=METHOD).run() == ""
    assert weights(tmp_path) == undisturbed(tmp_path)


@pytest.mark.parametrize(("error", "words"), [(1, "cannot load rankdad"), (7, "signed"), (2, "error 2 of Flower's")])
def test_a_node_that_fails_ends_the_job_in_a_sentence(consortium: Make, error: int, words: str) -> None:
    engine = consortium()
    engine.spoil = lambda name, answer: Message(error=error) if name == "beta" else answer
    said = engine.run()
    assert said.startswith("beta: ")
    assert words in said


def test_no_exception_leaves_a_node(consortium: Make, tmp_path: Path) -> None:
    engine = consortium()

    def make(place: str) -> Any:
        raise OSError("secret words")

    engine.make = make
    assert "cannot start its process (OSError)" in engine.run()
    assert engine.crossed
    assert {bytes(str(word), "utf-8") for word in engine.crossed} == {b"OSError"}


def test_a_node_that_sends_noise_changes_nothing(
    consortium: Make, tmp_path: Path, undisturbed: Callable[[Path], set[str]]
) -> None:
    engine, noise = consortium(method=METHOD), [None, 7, "text", [1], b"", b"\xc1", bytes(1000), b"\x81" * 4000]

    def spoil(name: str, answer: Message) -> Message:
        if name == "beta" and noise:
            answer.content = {"rankdad": {"body": noise.pop()}}
            engine.sites[str(tmp_path / "beta.json")].stop(30)
            engine.sites.clear() if not noise else None
        return answer

    engine.spoil = spoil
    engine.run()
    engine = consortium(method=METHOD)
    assert engine.run() == ""
    assert weights(tmp_path) == undisturbed(tmp_path)
