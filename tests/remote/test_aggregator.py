"""The aggregator without its sockets: who differs in hello, and that everyone who asks is answered."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from common.errors import ProtocolError, RunFailedError
from common.factors import Factor
from common.messages import Failure, Hello, Kind, Message, Step
from common.protocol import pack, unpack
from common.replica import Replica
from remote.aggregator import Aggregator
from remote.rounds import Answer, Effect, Ready
from tests.conftest import SITES, run_spec


@pytest.fixture
def aggregator(tmp_path: Path) -> Iterator[Aggregator]:
    spec = run_spec()
    made = Aggregator(spec, Replica(spec), tmp_path / "run", time.perf_counter)
    yield made
    made.close()


def hello_of(aggregator: Aggregator, **changes: Any) -> bytes:
    plan = aggregator.plan
    fields = {
        "version": plan.version,
        "spec_sha256": plan.spec_sha256,
        "plan_sha256": plan.sha256(),
        "weights_sha256": plan.weights_sha256,
        "train": 10,
        "validation": 2,
        "test": 2,
    }
    return pack(Message(Kind.HELLO, 0, Hello.model_validate(fields | changes)), plan, up=True)


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"version": "0.0.9"}, "its version of rankdad differs"),
        ({"spec_sha256": "0" * 64}, "its spec differs"),
        ({"weights_sha256": "0" * 64}, "its initial weights differ"),
        ({"plan_sha256": "0" * 64}, "its plan differs"),
        ({"train": 0}, "no samples to train on"),
    ],
)
def test_hello_names_the_site_that_differs_and_in_what(
    aggregator: Aggregator, changes: dict[str, Any], said: str
) -> None:
    for site in SITES:
        effects = aggregator.receive(site, hello_of(aggregator, **(changes if site == "beta" else {})))
    (ready,) = effects
    assert isinstance(ready, Ready)
    with pytest.raises(RunFailedError, match=said) as error:
        aggregator.aggregate(ready)
    assert error.value.site == "beta"


def test_every_site_that_fails_is_answered_with_the_first_failure(aggregator: Aggregator) -> None:
    def failure(site: str) -> bytes:
        return pack(
            Message(Kind.FAILURE, 0, Failure(site="someone else", reason=f"{site} is ill")), aggregator.plan, up=True
        )

    aggregator.receive("alpha", hello_of(aggregator))
    (answer,) = aggregator.receive("beta", failure("beta"))
    assert isinstance(answer, Answer)
    assert answer.sites == SITES
    told = unpack(answer.body, aggregator.plan, up=False).body
    assert told == Failure(site="beta", reason="beta is ill"), "the sender's name is not its own to choose"
    assert aggregator.receive("gamma", failure("gamma")) == [Answer(("gamma",), answer.body)]
    assert aggregator.receive("alpha", hello_of(aggregator)) == [Answer(("alpha",), answer.body)]


def test_an_unknown_site_is_refused_before_its_body_is_read(aggregator: Aggregator) -> None:
    with pytest.raises(ProtocolError) as error:
        aggregator.receive("../x", b"\xc1")
    assert error.value.status == 404


def answer(aggregator: Aggregator, effects: list[Effect]) -> bytes:
    """Complete a round."""
    (ready,) = effects
    assert isinstance(ready, Ready)
    update = aggregator.aggregate(ready)
    aggregator.complete(ready, update)
    aggregator.follow(ready, update, 0.0)
    return update.packed


@pytest.mark.parametrize("method", [{"name": "rank-dad", "rank": 2}, {"name": "dad"}, {"name": "edad"}])
@pytest.mark.parametrize("sizes", [(3e38, 1e-38), (3e38, 3e38), (1e30, 1e30), (1e-38, 1e-38)])
def test_numbers_at_the_edge_of_float32_neither_crash_nor_poison(
    tmp_path: Path, method: dict[str, Any], sizes: tuple[float, float]
) -> None:
    """The run fails by name, or goes on with finite weights."""
    spec = run_spec(method=method, model={"name": "mlp", "hidden": [64, 64]})
    replica = Replica(spec)
    made = Aggregator(spec, replica, tmp_path / "run", time.perf_counter)
    for site in SITES:
        effects = made.receive(site, hello_of(made))
    answer(made, effects)
    generator = torch.Generator().manual_seed(0)
    with contextlib.closing(made), contextlib.suppress(RunFailedError):
        for round_ in (1, 2):
            for site in SITES:
                arrays = []
                for slot in made.plan.layout(0, up=True).slots:
                    own = [torch.randn(slot.rows, w, generator=generator).sign() for w in slot.widths]
                    scaled = [array * size for array, size in zip(own, sizes, strict=False)]
                    arrays.append(Factor(*scaled) if len(scaled) == 2 else scaled[0])
                body = pack(Message(Kind.STEP, round_, Step(8.0, 1.0, 1.0, tuple(arrays))), made.plan, up=True)
                effects = made.receive(site, body)
            unpack(answer(made, effects), made.plan, up=False)
            assert all(bool(torch.isfinite(weight).all()) for weight in replica.weights().values())
