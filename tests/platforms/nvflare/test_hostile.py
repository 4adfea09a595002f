"""Broken messages at the seam: a node that sends them changes nothing, and the run ends as without them."""

from __future__ import annotations

import json
import random
import re
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import msgpack
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from rankdad.common.data import read_site
from rankdad.common.errors import CODE, ProtocolError, RankdadError
from rankdad.common.policy import EVERYTHING
from rankdad.common.protocol.calls import Call, Reply, packed, unpacked
from rankdad.common.protocol.codec import unpack
from rankdad.common.protocol.messages import Kind
from rankdad.common.run.replica import Replica
from rankdad.common.spec import RunSpec
from rankdad.local.drivers.carried import CarriedConnection
from rankdad.remote.aggregator import Aggregator
from rankdad.remote.calls import MAX_MALFORMED, Calls, StoppedRunError
from rankdad.remote.persistence import LedgerOptions
from rankdad.simulations import lockstep
from rankdad.simulations.lockstep import Trainers
from tests.conftest import SITES, examples, run_spec, write_site
from tests.hostile import REAL, TEXTS, WHOLE, mutant

ATTACKS = 10_000


def hostile(rng: random.Random, valid: bytes, run: str) -> Iterator[object]:
    """Yield messages of a node that are no call, or a call with what is no contribution; each a word short of right."""
    call = unpacked(Call, valid, 1 << 30)
    while True:
        yield _broken(rng, valid)
        yield packed(call.model_copy(update={"body": mutant(rng, call.body, [call.body])}))
        yield packed(Call(what="ask", number=1, site="alpha", run=run, round=rng.choice((0, 1, 2**40))))
        yield rng.choice((None, 7, "text", {"rankdad": b""}, b"", b"\xc1", bytes(1000), b"\x81" * 4000))
        yield packed(Call(what="run", number=1, site="alpha"))  # one in a row is right: the node stays in the run
        yield packed(Call(what="send", number=2, site="beta", run=run, body=call.body))


def state(calls: Calls) -> Any:
    """What a node could change."""
    barrier, progress = calls.aggregator.barrier, calls.aggregator.recorder.progress
    return barrier.round, barrier.state, barrier.failed, dict(barrier._bodies), progress.status, set(calls.open)


@pytest.mark.slow
def test_broken_messages_change_nothing(tmp_path: Path) -> None:
    spec: RunSpec = run_spec(method={"name": "rank-dad", "rank": 2})
    folders = {site: write_site(tmp_path / site, 24 + 8 * place, place) for place, site in enumerate(SITES)}
    data = {site: read_site(spec, folder, place) for place, (site, folder) in enumerate(folders.items())}
    undisturbed = lockstep.run(spec, data, tmp_path / "undisturbed")["alpha"].weights_sha256
    aggregator = Aggregator(spec, Replica(spec), tmp_path / "run", time.perf_counter, ledger=LedgerOptions())
    calls, rng = Calls(aggregator), random.Random(0)
    trainers = Trainers(spec, aggregator.plan, data, policies=dict.fromkeys(SITES, EVERYTHING))
    answers: dict[str, bytes | None] = dict.fromkeys(SITES)
    attacks = examples(ATTACKS) // 25
    while answers:
        heard = dict[str, bytes | None]()
        for site, said in trainers.advance(answers):
            while isinstance(said, int):
                reply = calls.take(
                    site, packed(Call(what="ask", number=1, site=site, run=aggregator.run_id, round=said))
                )
                said = dict(trainers.advance({site: unpacked(Reply, reply[site], 1 << 30).body}))[site]
            assert isinstance(said, bytes)
            valid = packed(Call(what="send", number=1, site=site, run=aggregator.run_id, body=said))
            before = state(calls)
            if site == "alpha":
                for _, attack in zip(range(attacks), hostile(rng, valid, aggregator.run_id), strict=False):
                    if not _is_right(attack, aggregator):
                        calls.take("alpha", attack)
                        assert state(calls) == before
            heard |= {one: unpacked(Reply, body, 1 << 30).body for one, body in calls.take(site, valid).items()}
        answers = heard
    aggregator.close()
    assert trainers.results["alpha"].weights_sha256 == undisturbed
    assert json.loads((tmp_path / "run" / "summary.json").read_text())["status"] == "completed"


def _is_right(attack: object, aggregator: Aggregator) -> bool:
    """Tell whether a message says what a node may say: that it ends, or numbers that no check could call a lie."""
    try:
        call = unpacked(Call, attack, 1 << 30)
        if call.what != "send":
            return call.what in ("give-up", "end", "snapshot")
        message = unpack(call.body, aggregator.plan, up=True)
        if message.kind is Kind.FAILURE:
            return True
        aggregator.state.check(message, 409)
        aggregator.store.check("alpha", message)
    except ProtocolError:
        return False
    return True


def _broken(rng: random.Random, valid: bytes) -> bytes:
    """Return a call with another byte somewhere in its head, or cut off, or longer."""
    head = len(valid) - len(unpacked(Call, valid, 1 << 30).body)
    place, change = rng.randrange(head), rng.randrange(3)
    if change == 0:
        return valid[:place] + bytes([rng.randrange(256)]) + valid[place + 1 :]
    return valid[: rng.randrange(len(valid))] if change == 1 else valid + rng.randbytes(rng.randrange(1, 9))


REPLY = {
    "number": 1,
    "body": b'{"id": "x", "spec": {}}',
    "status": 409,
    "error": "no",
    "code": "run-over",
    "field": "f",
}


@given(
    st.dictionaries(
        st.sampled_from([*REPLY, "more\n"]),
        st.sampled_from([*TEXTS, *WHOLE, *REAL, "run-over\n", b"", b"{", b'{"id": "\\ud800"}', [], {}, None, True]),
        max_size=3,
    ),
    st.integers(0, 60),
    st.binary(max_size=2),
)
@example({"code": "\x1b[2J"}, 0, b"")
@example({"more\n": 1}, 0, b"")
def test_a_server_that_answers_with_noise_ends_a_site_by_an_error_that_a_terminal_can_show(
    changes: dict[str, Any], place: int, noise: bytes
) -> None:
    valid = msgpack.packb(REPLY | changes, unicode_errors="surrogateescape")
    reply = valid[:place] + noise + valid[place + len(noise) :] if noise else valid
    asks: list[Callable[[CarriedConnection], object]] = [
        CarriedConnection.run,
        CarriedConnection.snapshot,
        CarriedConnection.done,
        lambda site: site.exchange(b"", 1),
        lambda site: site.recorded(1),
    ]
    refused = list[RankdadError]()
    for ask in asks:
        try:
            ask(CarriedConnection("alpha", lambda call: None, lambda: reply))
        except RankdadError as error:
            refused.append(error)
    assert all(re.fullmatch(CODE, error.code) for error in refused)
    assert all((str(error) + error.field).isprintable() for error in refused)


def test_a_node_that_says_nothing_but_noise_is_waited_for_no_longer(tmp_path: Path) -> None:
    spec = run_spec()
    aggregator = Aggregator(spec, Replica(spec), tmp_path / "run", time.perf_counter, ledger=LedgerOptions())
    calls = Calls(aggregator)
    for _ in range(MAX_MALFORMED):
        calls.take("alpha", b"noise")
    with pytest.raises(StoppedRunError, match="alpha: sends malformed messages"):
        calls.take("alpha", b"noise")
    assert calls.open == {"beta", "gamma"}
    aggregator.abandon()
