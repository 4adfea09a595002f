"""Contributions that come before their round is due: kept, taken in order, and no more of them than a step has."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from rankdad.common.errors import RankdadError
from rankdad.common.protocol.codec import pack, pack_failure, unpack
from rankdad.common.protocol.messages import Kind, Message, Step, failure_message
from tests.conftest import SITES
from tests.remote.serving import Served, serving
from tests.remote.test_app import Later, ask, complete_hello, reason

BUCKETS = 3


@pytest.fixture(params=[1 << 30, 0], ids=["in the loop", "in a thread"])
def served(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Served]:
    federation = {"sites": list(SITES), "quorum": 2, "grace": 60.0}
    method = {"name": "dsgd", "buckets": BUCKETS}
    with serving(tmp_path / "run", large_plan=request.param, method=method, federation=federation) as running:
        complete_hello(running)
        yield running


def bucket(served: Served, site: str, number: int, value: float = 0.0) -> bytes:
    """A site's contribution to the first step."""
    plan = served.aggregator.plan
    weight = float(served.aggregator.state.weight(plan.sites.index(site)))
    slots = plan.layout(number, up=True).slots
    payload = tuple(torch.full((slot.rows, *slot.widths), value) for slot in slots)
    return pack(Message(Kind.STEP, 1 + number, Step(weight, 0.0, 0.0, payload), number), plan, up=True)


def offer(served: Served, site: str, number: int, value: float = 0.0) -> int:
    status, _ = ask(served, "POST", f"/rounds/{site}/{1 + number}", bucket(served, site, number, value))
    return status


def update(served: Served, answer: tuple[int, bytes]) -> Message:
    assert answer[0] == 200
    return unpack(answer[1], served.aggregator.plan, up=False)


def test_buckets_that_come_early_in_any_order_are_answered_each_with_its_own_update(served: Served) -> None:
    for site in SITES[:2]:
        assert [offer(served, site, number, number + 1.0) for number in (2, 0, 1)] == [202] * BUCKETS
    held = [Later(served, "GET", f"/rounds/alpha/{round_}") for round_ in (3, 2, 1)]
    assert [offer(served, "gamma", number, number + 1.0) for number in (1, 2, 0)] == [202] * BUCKETS
    updates = [update(served, request.wait()) for request in held]
    assert [(one.round, one.exchange) for one in updates] == [(3, 2), (2, 1), (1, 0)]
    for one in updates:
        assert isinstance(one.body, Step)
        matrices = [value for value in one.body.payload if isinstance(value, torch.Tensor)]
        assert all(torch.allclose(matrix, torch.full_like(matrix, one.round)) for matrix in matrices)
    for site in SITES:  # also after the last of the step's rounds
        assert [update(served, ask(served, "GET", f"/rounds/{site}/{n + 1}")).exchange for n in range(3)] == [0, 1, 2]
    assert served.aggregator.state.replica.step == 1
    assert not served.host._early


def test_only_the_step_under_way_is_kept_and_no_more_than_a_bucket_has(served: Served) -> None:
    assert ask(served, "POST", "/rounds/alpha/4", bucket(served, "alpha", 2))[0] == 204  # of the next step
    assert ask(served, "POST", "/rounds/alpha/0", bucket(served, "alpha", 0))[0] == 204
    assert ask(served, "POST", "/rounds/alpha/3", bytes(len(bucket(served, "alpha", 2)) + 1000))[0] == 204
    assert reason(ask(served, "POST", "/rounds/alpha/next", b""))[0] == 422
    assert offer(served, "alpha", 1) == 202
    assert offer(served, "alpha", 1, 9.0) == 204, "what is there already stands"
    assert ask(served, "GET", "/rounds/alpha/3")[0] == 204, "nothing of it is there: send it"
    served.host.forget("alpha")  # as one that has lost its state
    assert ask(served, "GET", "/rounds/alpha/2")[0] == 204


def test_what_is_refused_when_its_round_is_due_is_not_kept_and_refused_again(served: Served) -> None:
    lie = bucket(served, "beta", 1)
    assert ask(served, "POST", "/rounds/beta/1", lie)[0] == 202, "nobody has looked at it when it is answered"
    served.until(lambda: ask(served, "GET", "/rounds/beta/1")[0] == 204)
    status, said = reason(ask(served, "POST", "/rounds/beta", lie))
    assert (status, said.partition(";")[0]) == (409, "r: got round 2, but the run is in round 1")
    assert offer(served, "beta", 0) == 202


def test_a_site_that_a_bucket_left_out_is_in_none_of_the_steps_others(served: Served) -> None:
    """Whatever it has sent before it knew: the others expect the sum of those that are in the step."""
    assert offer(served, "gamma", 1) == 202
    for number in range(BUCKETS):
        for site in SITES[:2]:
            assert offer(served, site, number) == 202
    failure = failure_message("gamma", 1, RankdadError("is ill", code="ill"), final=False)
    assert ask(served, "POST", "/rounds/gamma", pack_failure(failure))[0] == 200
    served.until(lambda: served.aggregator.state.replica.step == 1)
    for round_ in (1, 2, 3):
        sent = update(served, ask(served, "GET", f"/rounds/alpha/{round_}"))
        assert sent.missing == {2}
        assert isinstance(sent.body, Step)
        assert sent.body.weight == sum(served.aggregator.state.batches(place)[0][0] for place in (0, 1))
