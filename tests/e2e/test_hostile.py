"""Every row of what a hostile or broken caller can send, in the middle of a run: refused by name, and nothing changes.

One site is held back in a step while the others wait for it. Whatever comes then, the run ends with the weights of one
that nobody has disturbed. What never becomes a request is in `tests.remote.test_web`, certificates in `test_auth`.
"""

from __future__ import annotations

import contextlib
import http.client
import json
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import msgpack
import pytest
import torch

from rankdad.common.data import SiteData
from rankdad.common.policy import EVERYTHING
from rankdad.common.protocol.codec import pack
from rankdad.common.protocol.message_sizes import body_limit
from rankdad.common.protocol.messages import Kind, Message
from rankdad.common.rounds.goodbye import Goodbye
from rankdad.common.run.replica import Replica
from rankdad.common.run.state import RunState
from rankdad.common.run.weight_sketch import PARTS
from rankdad.local.drivers.drive import drive
from rankdad.local.drivers.http import AggregatorClient
from rankdad.local.observer import Observer
from rankdad.local.site import site_of
from rankdad.local.training import Result, TrainingState
from rankdad.remote.auth import Identity, hashed
from rankdad.simulations import lockstep
from tests.conftest import SITES, run_spec, site_config
from tests.remote.serving import Served, serving

TOKENS = {site: f"{index}" * 64 for index, site in enumerate(SITES)}
IDENTITY = Identity(SITES, {site: hashed(token) for site, token in TOKENS.items()})
METHOD = {"name": "rank-dad", "rank": 2}
HELD_STEP = 5  # in which gamma stops
STRANGER = "w" * 64


def ask(
    served: Served, verb: str, path: str, body: bytes | None = None, *, token: str | None = None, **headers: str
) -> tuple[int, bytes]:
    """Send a request, and return the answer's status and body."""
    connection = http.client.HTTPConnection("127.0.0.1", served.port, timeout=10)
    proof = {} if token is None else {"authorization": f"Bearer {token}"}
    known = served.aggregator.processes._processes  # else it would be refused for its process
    process = next((names[-1] for site, names in known.items() if f"/{site}" in path), "")
    named = {"x-rankdad-process": process} | {key.replace("_", "-"): value for key, value in headers.items()}
    try:
        with contextlib.suppress(ConnectionError):  # refused before all was sent: the answer says why
            connection.request(verb, path, body, {"x-rankdad-run": served.aggregator.run_id} | proof | named)
        response = connection.getresponse()
        return response.status, response.read()
    finally:
        connection.close()


def state_of(served: Served) -> tuple[Any, ...]:
    """Return all that a contribution changes."""
    barrier, known = served.aggregator.barrier, served.aggregator.state
    waits = barrier.round, barrier.state, barrier.missing(), dict(barrier._bodies), barrier.stored
    return *waits, known.fold, sorted(known.totals), served.aggregator.recorder.progress.problems.copy()


@dataclass
class Held:
    """A run in which all but gamma have contributed to the present round."""

    served: Served
    release: threading.Event
    results: dict[str, Future[Result]]
    sent: dict[str, bytes]  # the present round's contributions
    update: bytes  # of the round before

    @property
    def round(self) -> int:
        return self.served.aggregator.barrier.round

    def ask(self, verb: str, path: str, body: bytes | None = None, **more: Any) -> tuple[int, bytes]:
        return ask(self.served, verb, path, body, **more)

    def changed(self, **changes: Any) -> bytes:
        """Alpha's contribution with other fields."""
        packed: bytes = msgpack.packb(msgpack.unpackb(self.sent["alpha"]) | changes)
        return packed

    def goodbye(self) -> bytes:
        farewell = Goodbye(weights_sha256="0" * 64, sketch=torch.zeros(PARTS, dtype=torch.float64))
        return pack(Message(Kind.GOODBYE, self.round, farewell), self.served.aggregator.plan, up=True)

    @property
    def numbers(self) -> bytes:
        return bytes(msgpack.unpackb(self.sent["alpha"])["b"])


def taking_part(
    served: Served,
    data: dict[str, SiteData],
    threads: ThreadPoolExecutor,
    lap: Callable[[str, RunState, str], None] = lambda *_: None,
) -> dict[str, Future[Result]]:
    """Let every site train, each in a thread."""
    spec, plan = served.aggregator.spec, served.aggregator.plan
    # Before there are threads: they share torch's generator, from which initial weights are drawn.
    run_states = {site: RunState(spec, plan, Replica(spec)) for site in SITES}

    def take_part(site: str) -> Result:
        observer, state = Observer(lap=partial(lap, site, run_states[site])), TrainingState(site, run_states[site])
        training = site_of(spec, plan, data[site], state, EVERYTHING, observer)
        token = served.directory.parent / f"{site}.token"
        token.write_text(TOKENS[site])
        config = site_config(served.port, name=site, token_file=str(token))
        with AggregatorClient(config) as client:
            return drive(training, client, site)

    return {site: threads.submit(take_part, site) for site in SITES}


@contextmanager
def held(directory: Path, data: dict[str, SiteData]) -> Iterator[Held]:
    """Three sites train over sockets, each in a thread, up to the step in which one is held back."""
    release = threading.Event()
    with serving(directory, IDENTITY, method=METHOD) as served, ThreadPoolExecutor() as threads:
        barrier = served.aggregator.barrier

        def lap(site: str, run_state: RunState, name: str) -> None:
            if (site, name, run_state.replica.step) == ("gamma", "begin", HELD_STEP):
                assert release.wait(60)

        results = taking_part(served, data, threads, lap)
        try:
            served.until(lambda: served.aggregator.state.replica.step == HELD_STEP and barrier.missing() == ("gamma",))
            assert barrier.stored is not None
            yield Held(served, release, results, dict(barrier._bodies), barrier.stored)
        finally:
            release.set()


Make = Callable[[Held], bytes]
NAN, INFINITY = b"\0\0\xc0\x7f", b"\0\0\x80\x7f"


def rows(bound: int) -> bytes:
    return b"".join(count.to_bytes(4, "little") for count in (bound, 2, 2))


CONTRIBUTIONS: list[tuple[str, str, Make, int, str]] = [
    # what · as whom · body · status · reason
    ("larger than the plan allows", "gamma", lambda h: bytes(1 << 20), 413, "the body has 1048576 bytes, expected at"),
    ("10 MB of empty maps", "gamma", lambda h: b"\xdd\0\x98\x96\x80" + b"\x80" * 10_000_000, 413, "the body has"),
    (
        "as many maps as fit",
        "gamma",
        lambda h: msgpack.packb([[{}] * 900] * (body_limit(h.served.aggregator.plan, up=True) // 904)),
        422,
        "within the limits: more than 3 maps and lists",
    ),
    ("nested deeply", "gamma", lambda h: b"\x91" * 50_000, 422, "the body is not msgpack within the limits"),
    ("maps nested deeply", "gamma", lambda h: b"\x81\xa1k" * 20_000, 422, "the body is not msgpack within"),
    ("a length beyond the body", "gamma", lambda h: b"\xc6\xff\xff\xff\xff", 422, "the body is not msgpack within"),
    ("an ext type", "gamma", lambda h: h.changed(b=msgpack.ExtType(1, b"os.system")), 422, "the body is not msgpack"),
    ("a time stamp", "gamma", lambda h: h.changed(b=msgpack.Timestamp(1)), 422, "the body is not msgpack"),
    ("a pickle", "gamma", lambda h: b"\x80\x04cos\nsystem\n.", 422, "the body is not"),
    ("a wrong key", "gamma", lambda h: h.changed(**{"layers.0.weight": b""}), 422, "keys ['b', 'k', 'layers.0.weight'"),
    ("a key too few", "gamma", lambda h: msgpack.packb({"k": 2}), 422, "the body has the keys ['k'], expected"),
    ("an unknown kind", "gamma", lambda h: h.changed(k=99), 422, "k: got 99, expected the number of a kind"),
    ("too many rows", "gamma", lambda h: h.changed(n=rows(99)), 422, "n: 99 rows for 1.weight, expected at most 2"),
    ("rows without end", "gamma", lambda h: h.changed(n=rows(2**32 - 1)), 422, "n: 4294967295 rows for 1.weight, exp"),
    ("too few bytes", "gamma", lambda h: h.changed(b=h.numbers[:-4]), 422, "b: got"),
    ("another dtype", "gamma", lambda h: h.changed(b=h.numbers * 2), 422, "b: got"),
    ("numbers as a list", "gamma", lambda h: h.changed(b=[1.0, 2.0]), 422, "b: got [1.0, 2.0], expected"),
    ("NaN", "gamma", lambda h: h.changed(b=NAN + h.numbers[4:]), 422, "b: the values of 1.weight hold NaN or"),
    ("infinity", "gamma", lambda h: h.changed(b=h.numbers[:-4] + INFINITY), 422, "b: the values of 5.weight hold"),
    ("a negative weight", "gamma", lambda h: h.changed(m=b"\0" * 6 + b"\xf0\xbf" + bytes(16)), 422, "m: got weight -1"),
    ("another phase", "gamma", lambda h: h.changed(p=1), 422, "p: got 1, expected a whole number from 0 to 0"),
    ("another kind", "gamma", lambda h: h.goodbye(), 409, "k: got GOODBYE"),
    ("the next round", "gamma", lambda h: h.changed(r=(h.round + 1).to_bytes(8, "little")), 409, "r: got round"),
    ("a round far off", "gamma", lambda h: h.changed(r=b"\xff" * 8), 409, "r: got round 18446744073709551615, but the"),
    ("another body", "alpha", lambda h: h.changed(m=bytes(24)), 409, "alpha has already sent another contribution to"),
]


@pytest.mark.slow
def test_nothing_that_is_sent_in_the_middle_of_a_run_changes_it(
    tmp_path: Path, site_data: Callable[..., dict[str, SiteData]]
) -> None:
    spec = run_spec(method=METHOD)
    data = site_data(spec)
    undisturbed = lockstep.run(spec, data, tmp_path / "undisturbed")["alpha"].weights_sha256
    with held(tmp_path / "run", data) as run:
        before = state_of(run.served)
        refused: list[tuple[int, str]] = []

        def refuse(what: str, answer: tuple[int, bytes], status: int, reason: str) -> None:
            assert set(json.loads(answer[1])) == {"error", "code", "field"}, "nothing is learnt about the run"
            said = json.loads(answer[1])["error"]
            assert (answer[0], reason in said) == (status, True), (what, answer)
            assert len(said) < 300
            assert state_of(run.served) == before, what
            refused.append((status, said))

        for what, site, make, status, reason in CONTRIBUTIONS:
            refuse(what, run.ask("POST", f"/rounds/{site}", make(run), token=TOKENS[site]), status, reason)
        whole = run.sent["alpha"]
        for what, token, path, status, reason in (
            ("no token", None, "alpha", 401, "no token"),
            ("a wrong token", STRANGER, "alpha", 401, "the token is not known here"),
            ("a hash as a token", hashed(TOKENS["alpha"]), "alpha", 401, "the token is not known here"),
            ("another site's token", TOKENS["beta"], "gamma", 403, "the token is another site's"),
            ("a name that leads elsewhere", TOKENS["beta"], "..", 403, "the token is another site's"),
            ("a name of 10 kB", TOKENS["beta"], "a" * 10_000, 403, "the token is another site's"),
            ("control characters", TOKENS["beta"], "a%00%0d%0a%1b", 403, "the token is another site's"),
        ):
            refuse(what, run.ask("POST", f"/rounds/{path}", whole, token=token), status, reason)
            refuse(what, run.ask("GET", f"/rounds/{path}/0", token=token), status, reason)
            refuse(what, run.ask("POST", f"/snapshots/{path}", b"", token=token), status, reason)
        for path in ("/run", "/status"):
            refuse(path, run.ask("GET", path), 401, "no token")
        gamma = TOKENS["gamma"]
        other = run.ask("POST", "/rounds/gamma", whole, token=gamma, x_rankdad_run="f" * 16)
        refuse("another run", other, 409, "x-rankdad-run: the request is for another run")

        past = run.changed(r=(run.round - 1).to_bytes(8, "little"))
        assert run.ask("POST", "/rounds/gamma", past, token=gamma) == (200, run.update), "a step already completed"
        assert run.ask("GET", f"/rounds/gamma/{run.round - 1}", token=gamma) == (200, run.update)
        assert run.ask("GET", f"/rounds/gamma/{run.round}", token=gamma) == (204, b""), "nothing of gamma's is in"
        with ThreadPoolExecutor() as other_process:
            twice = other_process.submit(run.ask, "POST", "/rounds/alpha", whole, token=TOKENS["alpha"])
            run.served.until(lambda: len(run.served.host._held["alpha"]) == 2)
            assert state_of(run.served) == before
            run.release.set()
            assert twice.result(10)[0] == 200, "the same body again waits with the first"
        ended = {site: result.result(30).weights_sha256 for site, result in run.results.items()}
        lines = [line for line in run.served.audited() if line["what"] == "refused"]
    assert ended == dict.fromkeys(SITES, undisturbed)
    assert len(set(undisturbed.values())) == 1
    assert [(line["status"], line["reason"]) for line in lines] == refused
    assert {line["address"] for line in lines} == {"127.0.0.1"}
