"""Steps in buckets: whatever travels together, and when, the weights are those of one message."""

from __future__ import annotations

import csv
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from torch import Tensor, nn

from rankdad.common.errors import RunFailedError, SpecError
from rankdad.common.models import build_model
from rankdad.common.protocol.codec import pack
from rankdad.common.protocol.messages import Kind, Message
from rankdad.common.protocol.plan import make_plan
from rankdad.local.data import SiteData
from rankdad.local.training import train
from rankdad.remote.aggregator import Aggregator
from rankdad.simulations import lockstep, tree
from tests.conftest import run_spec, sampled

Data = Callable[..., dict[str, SiteData]]
MLP = {"name": "mlp", "hidden": [16, 16], "dropout": 0.1}
METHODS: list[dict[str, Any]] = [
    {"name": "dsgd"},
    {"name": "dsgd", "wire": "int8"},
    {"name": "dad"},
    {"name": "top-rows"},
    {"name": "rank-dad", "rank": 2},
    {"name": "rank-dad", "rank": 2, "wire": "int8", "reducer": "block"},
]
TRAININGS: dict[str, dict[str, Any]] = {
    "plain": {},
    "factored": {"optimizer": {"name": "adam", "lr": 0.01, "second_moment": "factored"}},
    "accumulated": {"batch_size": 4, "accumulate": 2, "clip": 0.5},
}
FACTORY = "tests.simulations.test_buckets:odd"


class Odd(nn.Module):
    """A layer that is used twice, one that is never used, and one whose gradient's size can be chosen."""

    def __init__(self, factor: float) -> None:
        super().__init__()
        self.first, self.twice, self.idle, self.last = (nn.Linear(*ends) for ends in ((6, 9), (9, 9), (9, 9), (9, 3)))
        self.factor = factor

    def forward(self, x: Tensor) -> Tensor:
        hidden = self.first(x).tanh()
        if hidden.requires_grad:
            hidden.register_hook(lambda gradient: gradient * self.factor)
        logits: Tensor = self.last(self.twice(self.twice(hidden).tanh()))
        return logits


def odd(factor: float = 1.0) -> nn.Module:
    return Odd(factor)


def run(spec: Any, data: dict[str, SiteData], directory: Path) -> set[str]:
    results = lockstep.run(spec, data, directory, allowed_factories=[FACTORY])
    return set(results["alpha"].weights_sha256.values())


@pytest.fixture
def early(monkeypatch: pytest.MonkeyPatch) -> list[Message]:
    """What trainers give away while they compute, as the driver over HTTP has it."""
    sent: list[Message] = []
    monkeypatch.setattr(lockstep, "train", partial(train, send=sent.append))
    return sent


@pytest.mark.parametrize("training", TRAININGS)
@pytest.mark.parametrize("method", sampled(METHODS, 3), ids=lambda method: "-".join(map(str, method.values())))
def test_buckets_train_the_same_weights_as_one_message_early_or_not(
    method: dict[str, Any], training: str, site_data: Data, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = {"name": "factory", "factory": FACTORY} if training == "accumulated" and method["name"] != "dad" else MLP
    spec, other = (
        run_spec(method={**method, "buckets": count}, training=TRAININGS[training], model=model) for count in (1, 3)
    )
    data, sent = site_data(spec), list[Message]()
    digests = run(spec, data, tmp_path / "one") | run(other, data, tmp_path / "late")
    monkeypatch.setattr(lockstep, "train", partial(train, send=sent.append))
    digests |= run(other, data, tmp_path / "early")
    assert len(digests) == 1
    assert {message.exchange for message in sent} == {0, 1, 2}
    one, *others = ([float(row["norm:alpha"]) for row in rows_of(tmp_path / name)] for name in ("one", "late", "early"))
    assert all(norms == pytest.approx(one, rel=1e-5) for norms in others)


def rows_of(directory: Path) -> list[dict[str, str]]:
    with (directory / "steps.csv").open(newline="") as file:
        return list(csv.DictReader(file))


def test_what_is_sent_early_is_what_is_sent(
    early: list[Message], site_data: Data, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    taken: set[bytes] = set()
    plans = []

    class Noting(Aggregator):
        def take(self, site: str, body: bytes) -> dict[str, bytes]:
            taken.add(body)
            plans.append(self.plan)
            return super().take(site, body)

    monkeypatch.setattr(tree, "Aggregator", Noting)
    spec = run_spec(method={"name": "rank-dad", "rank": 2, "buckets": 3})
    lockstep.run(spec, site_data(spec), tmp_path / "run")
    bodies = {pack(message, plans[0], up=True) for message in early}
    assert len(bodies) > 10
    assert bodies <= taken


def test_a_gradient_that_is_not_finite_in_a_later_bucket_ends_the_step_for_all(
    early: list[Message], site_data: Data, tmp_path: Path
) -> None:
    model = {"name": "factory", "factory": FACTORY, "arguments": {"factor": float("inf")}}
    spec = run_spec(method={"name": "dsgd", "buckets": 4}, model=model)
    with pytest.raises(RunFailedError, match=r"alpha could not go on: the gradient of first\.\w+ in step 1 holds NaN"):
        run(spec, site_data(spec), tmp_path / "run")
    assert {message.kind for message in early} == {Kind.STEP}, "the last layers' gradients were on their way"
    assert rows_of(tmp_path / "run") == [], "nothing of it was applied"


def test_buckets_are_of_about_equal_bytes_the_last_layers_first() -> None:
    spec = run_spec(
        method={"name": "dsgd", "buckets": 5}, model={"name": "gru", "preset": "paper"}, data={"shape": [4, 6]}
    )
    plan = make_plan(spec, build_model(spec))
    sizes = [exchange.up.payload_bytes("float32") for exchange in plan.exchanges]
    assert sum(sizes) == plan.dense_bytes
    assert max(sizes) <= 1.01 * min(sizes)
    names = [slot.name for exchange in plan.exchanges for slot in exchange.up.slots]
    assert list(dict.fromkeys(names)) == [route.name for route in reversed(plan.routes)]


@pytest.mark.parametrize(
    ("method", "said"),
    [
        ({"name": "dsgd", "buckets": 0}, "method.buckets: got 0"),
        ({"name": "dsgd", "buckets": 2, "exchanges": "per-tensor"}, "buckets: got 2, but exchanges is per-tensor"),
        ({"name": "rank-dad", "rank": 2, "buckets": 2, "local_steps": 4}, "buckets: got 2, but the difference"),
        ({"name": "edad", "buckets": 2}, "buckets: edad needs all gradients"),
        ({"name": "powersgd", "rank": 2, "buckets": 2}, "buckets: powersgd needs all gradients"),
    ],
)
def test_what_cannot_travel_in_buckets_is_named(method: dict[str, Any], said: str) -> None:
    with pytest.raises(SpecError, match=said):
        run_spec(method=method)
