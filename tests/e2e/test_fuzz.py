"""Broken messages of every kind to a real aggregator, each when its kind is due: nothing changes."""

from __future__ import annotations

import contextlib
import http.client
import json
import math
import random
import socket
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from rankdad.common.data import read_site
from rankdad.common.errors import ProtocolError
from rankdad.common.policy import EVERYTHING
from rankdad.common.protocol.codec import pack, unpack
from rankdad.common.protocol.messages import Ask, Failure, Kind, Message
from rankdad.common.protocol.plan import Plan
from rankdad.common.rounds.registry import ROUNDS
from rankdad.common.run.replica import Replica
from rankdad.common.run.state import RunState
from rankdad.common.spec import RunSpec
from rankdad.local.drivers.http import PROCESS_HEADER, AggregatorClient
from rankdad.local.training import TrainingState, train
from rankdad.remote.audit import AUDIT, MAX_PER_MINUTE
from rankdad.remote.auth import hashed
from tests.conftest import SITES, examples, run_document, run_spec, site_config
from tests.e2e.test_processes import ENVIRONMENT
from tests.e2e.test_soak import status_of
from tests.hostile import mutant
from tests.ports import free_port
from tests.remote.test_fuzz import MODEL, Recording, kind_of
from tests.remote.test_fuzz import run as in_one_process
from tests.warm import Warm

pytestmark = pytest.mark.slow

PROCESS = "0" * 16  # the name that every site draws: messages of another process are not looked at
SITE = [
    *(sys.executable, "-c"),
    "import sys, types, rankdad.local.drivers.http as http\n"
    f"http.secrets = types.SimpleNamespace(token_hex=lambda _: {PROCESS!r})\n"
    "from rankdad.__main__ import app\napp(sys.argv[1:])",
]
TOKENS = {site: f"{index}" * 64 for index, site in enumerate(SITES)}
FEWEST, MOST = 100, 1_000  # messages of every kind and run
CALLERS = 3  # at once; a site has four connections at most, of which it needs one itself
WARM = 0.1  # part of the messages after which memory is looked at first
RUNS: dict[str, dict[str, Any]] = {  # which together exchange every kind of message
    "steps": {
        "method": {"name": "rank-dad", "rank": 2},
        "model": MODEL,
        "task": {"name": "classification", "classes": 3, "class_weights": "balanced"},
        "preparation": {"standardise": "federated"},
        "evaluation": {"name": "k-fold", "folds": 2, "references": ["local"]},
        "training": {"epochs": 2},
        "federation": {"sites": list(SITES), "compare_every": 2},
    },
    "exact": {
        "method": {"name": "dsgd"},
        "model": {"name": "linear"},
        "preparation": {"standardise": "federated"},
        "evaluation": {"name": "k-fold", "folds": 2, "repeats": 2, "references": ["local", "site"]},
        "training": {"solver": "exact"},
    },
}
KINDS = {
    "steps": {one.kind for one in ROUNDS.values()},
    "exact": {Kind.HELLO, Kind.SUMS, Kind.EVALUATION, Kind.PAIRED, Kind.GOODBYE, Kind.FAILURE},
}
POLICY = {"min_rows": 1, "rows_per_rank": None, "keyed_folds": True, "min_level": 1}  # there are few samples


@dataclass
class Attack:
    """Messages to a running aggregator, while it waits for gamma alone.

    What cannot be decoded anyone may say. The rest comes from alpha and beta, whose own contributions are in.
    """

    port: int
    run: str
    plan: Plan
    others: list[bytes]
    true: frozenset[bytes]  # contributions of all: one's own again is no attack, and waits for the round's end
    sent: int = 0
    answered: Counter[tuple[Kind, int]] = field(default_factory=Counter)
    wrong: list[Any] = field(default_factory=list)
    connections: list[http.client.HTTPConnection] = field(default_factory=list)

    def send(self, kind: Kind, valid: bytes, count: int) -> None:
        """Send so many broken messages, a part from every caller."""
        if not self.connections:
            self.connections = [http.client.HTTPConnection("127.0.0.1", self.port, timeout=30) for _ in range(CALLERS)]
        with ThreadPoolExecutor(CALLERS) as threads:
            rngs = [random.Random(f"{self.sent} {caller}") for caller in range(CALLERS)]
            parts = [(self.connections[i], rng, kind, valid, count // CALLERS + 1) for i, rng in enumerate(rngs)]
            for part in [threads.submit(self._call, *part) for part in parts]:
                part.result()
        self.sent += CALLERS * (count // CALLERS + 1)

    def _call(
        self, connection: http.client.HTTPConnection, rng: random.Random, kind: Kind, valid: bytes, count: int
    ) -> None:
        for _ in range(count):
            if rng.random() < 0.01:
                self._babble(rng)
            path, token, body, expected = self._message(rng, valid)
            headers = {"x-rankdad-run": self.run, PROCESS_HEADER: PROCESS}
            headers |= {} if token is None else {"authorization": f"Bearer {token}"}
            try:
                connection.request("POST", path, body, headers)
                answer = connection.getresponse()
                answer.read()
            except (OSError, http.client.HTTPException) as error:
                connection.close()
                self.answered[kind, 0] += 1
                if not isinstance(error, ConnectionError | http.client.RemoteDisconnected):
                    self.wrong.append((path, body[:80], error))
                continue
            self.answered[kind, answer.status] += 1
            if answer.status not in expected:
                self.wrong.append((answer.status, path, body[:80]))

    def _message(self, rng: random.Random, valid: bytes) -> tuple[str, str | None, bytes, set[int]]:
        while (body := mutant(rng, valid, self.others)) in self.true:
            pass
        try:
            said = unpack(body, self.plan, up=True)
            failure = isinstance(said.body, Failure)
        except ProtocolError as error:
            site, expected, failure = rng.choice(SITES), {error.status}, False
        else:
            site, expected = rng.choice(SITES[:2]), {200, 409}
            if said.kind is Kind.HELLO:  # may be said again, with a newer log, and is judged again
                expected = {200, 409, 422}
        if not failure and rng.random() < 0.9:
            return f"/rounds/{site}", TOKENS[site], body, expected
        token = rng.choice((None, "", "w" * 64, hashed(TOKENS["gamma"]), TOKENS["alpha"]))
        site = rng.choice(("gamma", "../x", "%2e%2e", "a" * 5000, "%00"))
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


@contextlib.contextmanager
def processes(
    tmp_path: Path, port: int, changes: dict[str, Any]
) -> Iterator[dict[str, Warm | subprocess.Popen[bytes]]]:
    """An aggregator that asks for tokens, alpha and beta; what they print goes into files."""
    tokens, policy, factory = tmp_path / "tokens.json", tmp_path / "policy.json", MODEL["factory"]
    tokens.write_text(json.dumps({site: hashed(token) for site, token in TOKENS.items()}))
    policy.write_text(json.dumps(POLICY))
    spec = tmp_path / "run.json"
    spec.write_text(json.dumps(run_document(**changes)))
    started: dict[str, Warm | subprocess.Popen[bytes]] = {}
    with contextlib.ExitStack() as stack:

        def begin(name: str, *words: object, **more: str) -> None:
            log = stack.enter_context((tmp_path / f"{name}.log").open("wb"))
            if words[0] == "site":
                command = [*SITE, *map(str, words)]
                started[name] = subprocess.Popen(command, stdout=log, stderr=log, env=ENVIRONMENT | more)
            else:
                started[name] = Warm(*words, environment=ENVIRONMENT | more, log=log)

        try:
            serve = ("--output", tmp_path / "run", "--port", port, "--tokens", tokens, "--allow-factory", factory)
            begin("aggregator", "aggregator", spec, *serve)
            for site in SITES[:2]:
                document = {
                    "name": site,
                    "aggregator": f"http://127.0.0.1:{port}",
                    "data": str(tmp_path / "undisturbed" / "data" / site),
                    "output": str(tmp_path / site),
                    "privacy": str(tmp_path / f"{site}-privacy"),
                    "policy": str(policy),
                    "allow_factories": [factory],
                    "patience": 60,
                }
                (tmp_path / f"{site}.json").write_text(json.dumps(document))
                begin(site, "site", tmp_path / f"{site}.json", RANKDAD_TOKEN=TOKENS[site])
            yield started
        finally:
            for process in started.values():
                process.kill()
                process.wait()


@pytest.mark.timeout(240)
@pytest.mark.parametrize("name", RUNS)
def test_broken_messages_of_every_kind_change_nothing(tmp_path: Path, name: str) -> None:
    """Gamma is played here: before each of its contributions, others that are broken come from all sides."""
    changes, messages = RUNS[name], max(FEWEST, examples(MOST))
    undisturbed, digest = in_one_process(Recording, tmp_path / "undisturbed", changes, sent=[])
    plan, others, true = undisturbed.plan, undisturbed.sent[2::3], frozenset(undisturbed.sent)
    times = Counter(kind_of(body) for body in others)
    times[Kind.FAILURE] = times[Kind.EVALUATION]
    assert set(times) == KINDS[name]
    data, port, run = tmp_path / "undisturbed" / "data" / "gamma", free_port(), tmp_path / "run"
    (tmp_path / "token").write_text(TOKENS["gamma"])
    config = site_config(port, name="gamma", patience=60, token_file=str(tmp_path / "token"))
    client = AggregatorClient(config, headers={PROCESS_HEADER: PROCESS})
    memory: list[tuple[int, int]] = []  # messages so far, and what the aggregator then has
    with processes(tmp_path, port, changes) as started, client:
        attack, began = Attack(port, client.run()["id"], plan, others, true), time.monotonic()

        def besiege(kind: Kind, valid: bytes) -> None:
            attack.send(kind, valid, math.ceil(messages / times[kind]))
            memory.append((attack.sent, status_of(started["aggregator"].pid)[0]))

        take_part(run_spec(**changes), plan, data, client, besiege)
        seconds = time.monotonic() - began
        for connection in attack.connections:
            connection.close()
        for who in ("alpha", "beta", "aggregator"):
            assert started[who].wait(60) == 0, (who, (tmp_path / f"{who}.log").read_text()[-2000:])
    for kind in times:
        statuses = {status: times for (of, status), times in sorted(attack.answered.items()) if of is kind}
        print(f"{kind.name:<10} {sum(statuses.values()):>6} messages {statuses}")
        assert sum(statuses.values()) >= messages
    warm = [kilobytes for sent, kilobytes in memory if sent >= WARM * attack.sent]
    print(
        f"{attack.sent} messages in {seconds:.0f} s; memory {warm[0]} -> {warm[-1]} KB: {memory[:: len(memory) // 9]}"
    )
    assert not attack.wrong, attack.wrong[:5]
    assert warm[-1] < 1.05 * warm[0]
    assert (run / AUDIT).stat().st_size < 600 * (MAX_PER_MINUTE + 1) * (seconds / 60 + 4)
    summary = json.loads((run / "summary.json").read_text())
    assert set(summary["weights_sha256"].values()) == {digest} == {summary["aggregator_sha256"]}
    assert "Traceback" not in (tmp_path / "aggregator.log").read_text()


def take_part(
    spec: RunSpec, plan: Plan, data: Path, client: AggregatorClient, before: Callable[[Kind, bytes], None]
) -> None:
    """Train as gamma; call `before` with each contribution when all others' are in, and at a test with a failure."""
    run_state = RunState(spec, plan, Replica(spec, [MODEL["factory"]]))
    training = train(spec, plan, read_site(spec, data, 2), TrainingState("gamma", run_state), EVERYTHING)
    message = next(training)
    if isinstance(message, Ask):  # whether a round is complete already
        message = training.send(None)
    with contextlib.suppress(StopIteration):
        while True:
            assert isinstance(message, Message)
            body = pack(message, plan, up=True)
            wait_for_gamma(client, message.round)
            before(message.kind, body)
            if message.kind is Kind.EVALUATION:
                failure = Message(Kind.FAILURE, message.round, Failure(site="gamma", reason="is ill"))
                before(Kind.FAILURE, pack(failure, plan, up=True))
            answer = unpack(client.exchange(body, message.round), plan, up=False)
            message = training.send(answer)
    client.done()


def wait_for_gamma(client: AggregatorClient, round_: int) -> None:
    """Wait until the contributions of the others to a round are in."""
    deadline = time.monotonic() + 60
    while True:
        status = json.loads(client._send(client._request("GET", f"{client._url}/status")).content)
        if (status["round"], status["waiting_for"]) == (round_, ["gamma"]):
            return
        assert time.monotonic() < deadline, status
        time.sleep(0.005)  # they compute
