"""Hours in a minute and a half: ten thousand hostile messages, two thousand steps, thirty-two sites."""

from __future__ import annotations

import contextlib
import http.client
import json
import random
import signal
import socket
import struct
import subprocess
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.request import Request, urlopen

import msgpack
import numpy as np
import pytest

from common.journal import read_journal
from common.ledger import CONTRIBUTIONS, Ledger, Retention
from common.records import Entry
from remote.audit import AUDIT, PER_MINUTE
from remote.auth import hashed
from tests.conftest import SITES
from tests.e2e.test_crashes import long_run, wait_for_steps
from tests.e2e.test_identity import free_port
from tests.e2e.test_processes import COMMAND, ENVIRONMENT, children_of, rankdad, simulation

pytestmark = [pytest.mark.slow, pytest.mark.alone]

TOKENS = {site: f"{index}" * 64 for index, site in enumerate(SITES)}
MESSAGES = 10_000
CALLERS = 3  # at once; a site has four connections at most, of which it needs one itself
KINDS = range(9)
FAILURE, STEP = 7, 2


def status_of(pid: int) -> tuple[int, int]:
    """Return a process's resident memory in KB, and how many files it has open."""
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    (resident,) = (int(line.split()[1]) for line in lines if line.startswith("VmRSS:"))
    return resident, len(list(Path(f"/proc/{pid}/fd").iterdir()))


def anything(rng: random.Random, depth: int = 0) -> Any:
    """Some document that msgpack can hold."""
    kind = rng.randrange(11 if depth < 4 else 8)
    if kind >= 8:
        inner = [anything(rng, depth + 1) for _ in range(rng.choice((0, 1, 2, 5)))]
        return {rng.choice("krpmnbdix"): one for one in inner} if kind == 8 else inner
    return (
        rng.choice((None, True, False, 0, -1, 2**63, -(2**63))),
        rng.randrange(10),
        rng.random() * 10.0 ** rng.randrange(-300, 300),
        float("nan"),
        rng.randbytes(rng.choice((0, 1, 8, 24, 512, 5000))),
        rng.choice(("", "../x", "a" * 70, "\0\n", "validation")),
        msgpack.ExtType(rng.randrange(128), rng.randbytes(rng.randrange(20))),
        2**64 - 1,
    )[kind]


def control(rng: random.Random) -> dict[str, Any]:
    """A body of some kind that is no step, with fields that are often right."""
    whole = rng.choice((0, 1, 3, 2**53 - 1, -1, 2**60, True, "1"))
    return {
        "version": "0.1.0",
        "train": whole,
        "split": rng.choice(("validation", "test", "train")),
        "epoch": whole,
        "samples": whole,
        "loss": rng.choice((0.5, 1e308, float("nan"), -1.0, None)),
        "correct": whole,
        "scores": rng.randbytes(rng.choice((0, 24000))),
        "best": True,
        "stop": True,
        "weights_sha256": "0" * rng.choice((63, 64)),
        "sketch": rng.randbytes(rng.choice((512, 511))),
    }


def framed(rng: random.Random, whole: bytes) -> bytes:
    """A contribution that broke on the way: never the whole of one."""
    at = rng.randrange(len(whole))
    return rng.choice(
        (
            whole[:at],
            whole + rng.randbytes(1 + rng.randrange(50)),
            b"\xc6\xff\xff\xff\xff" + whole,
            b"\xdf\xff\xff\xff\xff" + whole,
            b"\x91" * rng.randrange(1, 60_000),
            b"\x81\xa1k" * rng.randrange(1, 20_000),
            b"\xdd\x00\x00\x03\x00" + b"\x80" * 768,
            rng.randbytes(rng.randrange(1, 3000)),
            whole[at:] + whole[:at] if at else b"",
        )
    )


def malformed(rng: random.Random, whole: bytes) -> bytes:
    """A message that no site could send."""
    document: dict[str, Any] = msgpack.unpackb(whole)
    huge = struct.pack("<I", rng.choice((3, 1000, 2**31, 2**32 - 1)))
    poison = bytearray(document["b"])
    at = 4 * rng.randrange(len(poison) // 4)
    poison[at : at + 4] = rng.choice((b"\0\0\xc0\x7f", b"\0\0\x80\x7f", b"\0\0\x80\xff"))
    changes: dict[str, Any] = rng.choice(
        (
            {"b": bytes(poison)},
            {"b": bytes(document["b"])[: -rng.randrange(1, 100)]},
            {"b": rng.choice(([1.0] * 9, "text", None, 1.5, {}))},
            {"n": huge + document["n"][4:]},
            {"n": document["n"] + huge},
            {"n": document["b"], "b": document["n"]},
            {"m": document["r"], "r": document["m"]},
            {"m": struct.pack("<3d", *rng.choice(((-1.0, 0, 0), (1, float("nan"), 0), (1, 0, float("inf")))))},
            {"k": rng.choice((0, 9, 255, -1, "2", None))},
            {"p": rng.choice((1, -1, True, 2**40, None))},
            {"x": anything(rng)},
            {"i": b"\0"},
            {"b": msgpack.ExtType(1, bytes(document["b"])[:100])},
        )
    )
    packed: bytes = msgpack.packb(document | changes)
    return packed


def any_document(rng: random.Random, whole: bytes) -> bytes:
    packed: bytes = msgpack.packb(anything(rng))
    return packed


def early(rng: random.Random, whole: bytes) -> bytes:
    """A contribution to a round of the future."""
    document = msgpack.unpackb(whole)
    (round_,) = struct.unpack("<Q", document["r"])
    later = rng.choice((round_ + 1 + rng.randrange(9), 2**32, 2**63, 2**64 - 1))
    packed: bytes = msgpack.packb(document | {"r": struct.pack("<Q", later)})
    return packed


def late(rng: random.Random, whole: bytes) -> bytes:
    """Something else to a round of the past: answered with what is recorded."""
    document = msgpack.unpackb(whole)
    (round_,) = struct.unpack("<Q", document["r"])
    packed: bytes = msgpack.packb(document | {"r": struct.pack("<Q", rng.randrange(round_)), "m": bytes(24)})
    return packed


def flipped(rng: random.Random, whole: bytes) -> bytes:
    """A contribution with a few bits flipped: it may be a valid one, so only from a site whose own is in."""
    body = bytearray(whole)
    for bit in rng.sample(range(8 * len(body)), rng.randrange(1, 9)):
        body[bit // 8] ^= 1 << bit % 8
    return bytes(body)


def other_kind(rng: random.Random, whole: bytes) -> bytes:
    """Another kind of message, with some of its fields."""
    document = msgpack.unpackb(whole)
    kind = rng.choice([kind for kind in KINDS if kind not in (FAILURE, STEP)])
    fields = control(rng)
    chosen = {key: fields[key] for key in rng.sample(sorted(fields), rng.randrange(1, len(fields)))}
    packed: bytes = msgpack.packb({"k": kind, "r": document["r"], "p": 0, "d": chosen})
    return packed


def failing(rng: random.Random, whole: bytes) -> bytes:
    """A failure, which would end the run."""
    document = msgpack.unpackb(whole)
    failure = {"site": rng.choice(SITES), "reason": "x" * rng.choice((0, 500, 501))}
    packed: bytes = msgpack.packb({"k": FAILURE, "r": document["r"], "p": 0, "d": failure})
    return packed


Mutation = Callable[[random.Random, bytes], bytes]
NEVER_VALID: tuple[Mutation, ...] = (framed, malformed, any_document, early, late)
NOT_NEXT: tuple[Mutation, ...] = (*NEVER_VALID, flipped, other_kind)  # of a site whose contribution is in
UNPROVEN: tuple[Mutation, ...] = (*NOT_NEXT, failing, lambda rng, whole: whole)


@dataclass
class Attack:
    """Messages to a running aggregator; gamma is held back, so that alpha's and beta's contributions stay in."""

    port: int
    run: str
    bodies: list[bytes]
    sent: int = 0
    answered: Counter[int] = field(default_factory=Counter)
    wrong: list[Any] = field(default_factory=list)

    def start(self, seed: int, count: int) -> threading.Thread:
        thread = threading.Thread(target=self._call, args=(random.Random(seed), count))
        thread.start()
        return thread

    def _call(self, rng: random.Random, count: int) -> None:
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=30)
        for _ in range(count):
            self.sent += 1
            if rng.random() < 0.03:
                self._babble(rng)
                continue
            path, token, body, expected = self._message(rng)
            headers = {"x-rankdad-run": self.run} | ({} if token is None else {"authorization": f"Bearer {token}"})
            try:
                connection.request("POST", path, body, headers)
                answer = connection.getresponse()
                answer.read()
            except (OSError, http.client.HTTPException) as error:
                connection.close()
                self.answered[0] += 1
                if not isinstance(error, ConnectionError | http.client.RemoteDisconnected):
                    self.wrong.append((path, body[:80], error))
                continue
            self.answered[answer.status] += 1
            if answer.status not in expected:
                self.wrong.append((answer.status, path, body[:80]))
        connection.close()

    def _message(self, rng: random.Random) -> tuple[str, str | None, bytes, set[int]]:
        whole = rng.choice(self.bodies)
        present, absent = rng.choice(SITES[:2]), SITES[2]
        if rng.random() < 0.6:
            return f"/rounds/{present}", TOKENS[present], rng.choice(NOT_NEXT)(rng, whole), {200, 409, 413, 422}
        if rng.random() < 0.5:
            return f"/rounds/{absent}", TOKENS[absent], rng.choice(NEVER_VALID)(rng, whole), {200, 409, 413, 422}
        body = rng.choice(UNPROVEN)(rng, whole)
        token = rng.choice((None, "", "w" * 64, hashed(TOKENS[absent]), TOKENS[present]))
        site = rng.choice((absent, "../x", "%2e%2e", "a" * 5000, "%00"))
        return f"/{rng.choice(('rounds', 'snapshots'))}/{site}", token, body, {401, 403, 404, 405}

    def _babble(self, rng: random.Random) -> None:
        """Speak no HTTP at all, or break off in the middle of it."""
        opening = (
            f"POST /rounds/alpha HTTP/1.1\r\nauthorization: Bearer {TOKENS['alpha']}\r\ncontent-length: 900\r\n\r\n"
        )
        said = rng.choice((rng.randbytes(300), b"\x16\x03\x01" + rng.randbytes(300), opening.encode()))
        with socket.create_connection(("127.0.0.1", self.port), 30) as caller, contextlib.suppress(ConnectionError):
            caller.sendall(said[: rng.randrange(1, len(said) + 1)])
            caller.shutdown(socket.SHUT_WR)
            while caller.recv(65536):
                pass
        self.answered[0] += 1


def asked(port: int, path: str) -> dict[str, Any]:
    request = Request(f"http://127.0.0.1:{port}{path}", headers={"authorization": f"Bearer {TOKENS['alpha']}"})
    with urlopen(request, timeout=10) as answer:
        return dict(json.load(answer))


@contextlib.contextmanager
def processes(tmp_path: Path, file: Path, port: int) -> Iterator[dict[str, subprocess.Popen[bytes]]]:
    """An aggregator that asks for tokens, and three sites; what they print goes into files."""
    address = f"http://127.0.0.1:{port}"
    assert rankdad("split", file, "--output", tmp_path / "demo", "--aggregator", address).returncode == 0
    tokens = tmp_path / "tokens.json"
    tokens.write_text(json.dumps({site: hashed(token) for site, token in TOKENS.items()}))
    serve = ("aggregator", file, "--output", tmp_path / "run", "--port", port, "--tokens", tokens)
    started: dict[str, subprocess.Popen[bytes]] = {}
    with contextlib.ExitStack() as stack:

        def begin(name: str, *words: object, **more: str) -> None:
            log = stack.enter_context((tmp_path / f"{name}.log").open("wb"))
            command = [*COMMAND, *map(str, words)]
            started[name] = subprocess.Popen(command, stdout=log, stderr=log, env=ENVIRONMENT | more)

        try:
            begin("aggregator", *serve)
            for site, token in TOKENS.items():
                begin(site, "site", tmp_path / "demo" / f"{site}.json", "--patience", 60, RANKDAD_TOKEN=token)
            yield started
        finally:
            for process in started.values():
                process.kill()
                process.wait()


def hold_back(gamma: subprocess.Popen[bytes], port: int, run: Path) -> tuple[dict[str, Any], list[bytes]]:
    """Stop a site before it contributes to a step; return where the run stands, and the others' contributions."""
    plan, deadline = asked(port, "/run")["plan_sha256"], time.monotonic() + 30
    while time.monotonic() < deadline:
        gamma.send_signal(signal.SIGSTOP)
        while (status := asked(port, "/status"))["waiting_for"] != ["gamma"] or status["waiting_seconds"] < 0.5:
            assert time.monotonic() < deadline, status
            time.sleep(0.05)  # until the others have contributed to the same round
        ledger = max((run / "ledger").glob(f"{CONTRIBUTIONS}-*"))
        records = [record for record in read_journal(ledger, plan) if record.entry is Entry.CONTRIBUTION]
        bodies = [record.body for record in records if record.round == status["round"]]
        assert len(bodies) == 2
        if msgpack.unpackb(bodies[0])["k"] == STEP:
            return status, bodies
        gamma.send_signal(signal.SIGCONT)  # an evaluation, or a decision
        time.sleep(0.01)
    raise AssertionError("no step in which to stop")


@pytest.mark.timeout(240)
def test_ten_thousand_hostile_messages_change_nothing(tmp_path: Path) -> None:
    file, undisturbed = long_run(tmp_path, {"name": "rank-dad", "rank": 2})
    port, run = free_port(), tmp_path / "run"
    with processes(tmp_path, file, port) as started:
        wait_for_steps(run, 100)
        status, bodies = hold_back(started["gamma"], port, run)
        before, began = status_of(started["aggregator"].pid), time.monotonic()
        attack = Attack(port, asked(port, "/run")["id"], bodies)
        for thread in [attack.start(seed, MESSAGES // CALLERS + 1) for seed in range(CALLERS)]:
            thread.join()
        seconds, after = time.monotonic() - began, status_of(started["aggregator"].pid)
        now = asked(port, "/status")
        started["gamma"].send_signal(signal.SIGCONT)
        for name in (*SITES, "aggregator"):
            assert started[name].wait(60) == 0, (name, (tmp_path / f"{name}.log").read_text()[-2000:])
    print(f"{attack.sent} messages in {seconds:.0f} s: {dict(attack.answered)}; memory {before} -> {after}")
    assert not attack.wrong, attack.wrong[:5]
    assert (now["round"], now["waiting_for"]) == (status["round"], ["gamma"]), "the run stood still"
    assert attack.sent >= MESSAGES
    assert attack.answered[422] > MESSAGES / 4
    assert after[0] - before[0] < 50_000
    assert after[1] - before[1] <= CALLERS + 2
    assert (run / AUDIT).stat().st_size < 600 * (PER_MINUTE + 1) * (seconds / 60 + 4)
    summary = json.loads((run / "summary.json").read_text())
    assert set(summary["weights_sha256"].values()) == {undisturbed} == {summary["aggregator_sha256"]}
    assert "Traceback" not in (tmp_path / "aggregator.log").read_text()


STEPS = 2000
# KB a step, by a straight line. The smallest thing that a step could leave behind, one message with its objects, has
# two or more. What is measured is 0.1 to 0.5, and less the longer it runs (0.1 after 4,000 steps): shared pages of the
# forked process that are written to one by one, and fragments.
MOST_GROWTH = 1.0


@pytest.mark.timeout(240)
def test_two_thousand_steps_take_no_more_memory_and_no_more_files(tmp_path: Path) -> None:
    method = {"name": "rank-dad", "rank": 2, "feedback": "both"}
    file = simulation(tmp_path, method=method, training={"epochs": STEPS // 5 + 1})
    command = [*COMMAND, "simulate", str(file), "--output", str(tmp_path / "run"), "--ledger"]
    with (tmp_path / "log").open("w") as log:
        process = subprocess.Popen(command, stdout=log, stderr=log, env=ENVIRONMENT, text=True)
        try:
            samples = watch(process, tmp_path / "run")
        finally:
            process.kill()
            process.wait()
    assert process.returncode == 0, (tmp_path / "log").read_text()
    for place, table in enumerate(samples):
        warm = table[table[:, 0] > STEPS / 4]
        slope = float(np.polyfit(warm[:, 0], warm[:, 1], 1)[0])
        print(f"process {place}: {slope:.2f} KB a step, from {warm[0]} to {warm[-1]} (steps, KB, files)")
        assert len(warm) > 20
        assert slope < MOST_GROWTH, place
        assert warm[:, 2].max() - warm[0, 2] <= 2, "some are open for a moment at a checkpoint"


@pytest.mark.parametrize("retention", Retention)
def test_a_ledger_has_few_files_open_however_many_checkpoints_there_were(tmp_path: Path, retention: Retention) -> None:
    ledger, opened = Ledger(tmp_path, "0" * 64), len(list(Path("/proc/self/fd").iterdir()))
    for round_ in range(50, 5000, 50):
        ledger.begin(round_, retention)
        ledger.retire(round_ - 50, retention)
    more = len(list(Path("/proc/self/fd").iterdir())) - opened
    ledger.close()
    assert more <= 4


@pytest.mark.timeout(240)
def test_thirty_two_sites_end_with_one_digest(tmp_path: Path) -> None:
    file = simulation(tmp_path, 640, training={"epochs": 2, "batch_size": 4})
    began = time.monotonic()
    done = rankdad("simulate", file, "--output", tmp_path / "run", "--json", "--sites", 32, timeout=200)
    print(f"{time.monotonic() - began:.0f} s")
    assert done.returncode == 0, done.stderr
    summary = json.loads(done.stdout)
    assert summary["status"] == "completed"
    assert summary["steps"] >= 4
    assert len(summary["weights_sha256"]) == 32
    assert set(summary["weights_sha256"].values()) == {summary["aggregator_sha256"]}


def watch(process: subprocess.Popen[str], directory: Path) -> list[Any]:
    """Return for every child, the aggregator first, rows of steps done, memory in KB and open files."""
    wait_for_steps(directory, 1)
    samples: dict[int, list[tuple[int, int, int]]] = {child: [] for child in children_of(process)}
    while process.poll() is None:
        done = (directory / "steps.csv").read_bytes().count(b"\n") - 1
        with contextlib.suppress(OSError, ValueError):  # at the end they go, one after the other
            for child, seen in samples.items():
                seen.append((done, *status_of(child)))
        time.sleep(0.1)
    return [np.array(seen) for seen in samples.values()]
