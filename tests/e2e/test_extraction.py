"""What an aggregator that attacks, or another member, reads of a hospital's samples: none under the default policy.

Each attack runs against a policy that allows it too, where it has to find samples: so it is a real one. A sample counts
as recovered if some row of what has left the site, or of a difference, points where it does: cosine above 0.999.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from rankdad.common.data import SiteData, read_site
from rankdad.common.errors import PolicyError, ProtocolError, RankdadError
from rankdad.common.lowrank.factors import Factor
from rankdad.common.lowrank.routes import Payload
from rankdad.common.policy import EVERYTHING, MinLevel, Policy
from rankdad.common.policy_checks import check_run
from rankdad.common.preparation import in_memory
from rankdad.common.protocol.codec import pack, unpack
from rankdad.common.protocol.messages import Ask, Body, Kind, Message
from rankdad.common.protocol.plan import Plan, make_plan
from rankdad.common.rounds.comparison import Comparison
from rankdad.common.rounds.evaluation import Evaluation
from rankdad.common.rounds.hello import Hello, Roster
from rankdad.common.rounds.step import Step
from rankdad.common.run.batches import batch_sizes
from rankdad.common.run.replica import Replica
from rankdad.common.run.state import RunState
from rankdad.common.seeds import derive
from rankdad.common.spec import RunSpec
from rankdad.local.admission import admitted
from rankdad.local.observer import Observer
from rankdad.local.training import TrainingState, train
from rankdad.remote.aggregator import Aggregator
from tests.conftest import run_spec

WIDTH, SAMPLES, BATCH = 24, 320, 32
DSGD, RANK_DAD = {"name": "dsgd"}, {"name": "rank-dad", "rank": 8, "feedback": "none"}
Lie = Callable[[Message], Message]


def spec_of(method: dict[str, Any], batch_size: int = BATCH, sites: Sequence[str] = ("alpha",)) -> RunSpec:
    return run_spec(
        model={"name": "mlp", "hidden": [32, 16]},
        data={"shape": [WIDTH]},
        method=method,
        training={
            "epochs": 1 if batch_size == 1 else 4,
            "batch_size": batch_size,
            "validation": 0.0,
            "optimizer": {"name": "sgd", "lr": 1e-3},
        },
        federation={"sites": list(sites), "compare_every": int(batch_size > 1)},
    )


def data_of(spec: RunSpec, folder: Path, index: int = 0) -> SiteData:
    count = SAMPLES if spec.training.batch_size > 1 else 60
    generator = np.random.default_rng(index)
    folder.mkdir(parents=True)
    y = generator.integers(0, 3, count)
    np.savez(folder / "data.npz", x=generator.normal(size=(count, WIDTH)) + np.eye(3, WIDTH)[y] * 2, y=y)
    return read_site(spec, folder, index)


def recovered(rows: Sequence[Tensor], data: SiteData) -> int:
    """Count the samples that some row points at."""
    samples = torch.nn.functional.normalize(in_memory(data.samples.inputs)[data.splits[0].train].double(), dim=1)
    found = torch.zeros(len(samples), dtype=torch.bool)
    for row in rows:
        cosines = samples @ torch.nn.functional.normalize(row.double(), dim=1).T
        found |= (cosines.abs() > 0.999).any(dim=1)
    return int(found.sum())


def rows_of(payload: Payload) -> list[Tensor]:
    """Return all that the first layer's part of a payload has rows of: its factor, its gradient, and differences."""
    value = payload[0]
    gradient = value.gradient() if isinstance(value, Factor) else value
    rows = [gradient, gradient.diff(dim=0)] + ([value.activation] if isinstance(value, Factor) else [])
    return [part[:, :WIDTH] for part in rows]


ALONE = Policy(min_sites=1)  # the default, of a run of one site


@dataclass
class Attack:
    """One site that trains as a hospital's does, and an aggregator that lies to it.

    Args:
        policy: of the site.
        lie: makes of a true update what the site gets.
    """

    policy: Policy
    lie: Lie = lambda update: update
    left: list[Payload] = field(default_factory=list)
    notices: list[str] = field(default_factory=list)
    run_state: RunState | None = None

    def go(self, spec: RunSpec, data: SiteData, folder: Path) -> Attack:
        """Let the site take part until the run is over, or it refuses to go on."""
        aggregator = Aggregator(spec, Replica(spec), folder, time.perf_counter)
        plan = aggregator.plan
        with contextlib.closing(aggregator), contextlib.suppress(StopIteration):
            check_run(self.policy, spec, plan)
            data = admitted(self.policy, spec, plan, data)
            self.run_state = RunState(spec, plan, Replica(spec))
            state = TrainingState("alpha", self.run_state)
            training = train(spec, plan, data, state, self.policy, Observer(notice=self.notices.append))
            message = answered(training, None)
            while True:
                if isinstance(message.body, Step):
                    self.left.append(message.body.payload)
                answers = aggregator.take("alpha", pack(message, plan, up=True))
                message = answered(training, self.lie(unpack(answers["alpha"], plan, up=False)))
        return self

    @property
    def rows(self) -> list[Tensor]:
        return [rows for payload in self.left for rows in rows_of(payload)]


@pytest.mark.slow
@pytest.mark.parametrize("method", [DSGD, RANK_DAD], ids=["dsgd", "rank-dad"])
def test_steps_of_one_sample_give_all_of_them_away_and_are_refused(tmp_path: Path, method: dict[str, Any]) -> None:
    spec = spec_of(method, batch_size=1)
    data = data_of(spec, tmp_path / "data")
    attack = Attack(ALONE)
    with pytest.raises(PolicyError, match=r"rows_per_rank|min_rows"):
        attack.go(spec, data, tmp_path / "default")
    assert recovered(attack.rows, data) == 0
    assert not attack.left
    allowed = Attack(EVERYTHING).go(spec, data, tmp_path / "allowed")
    assert recovered(allowed.rows, data) > 0.9 * len(data.splits[0].train)


@pytest.mark.slow
def test_the_order_of_batches_is_not_known_and_their_sums_cannot_be_solved(tmp_path: Path) -> None:
    """Of a training that hardly moves every step is a sum of the same gradients, as many sums as there are samples."""
    epochs = 12
    spec = run_spec(
        model={"name": "linear"},
        data={"shape": [WIDTH]},
        method={"name": "rank-dad", "rank": 3},
        training={"epochs": epochs, "batch_size": 8, "validation": 0.0, "optimizer": {"name": "sgd", "lr": 1e-9}},
        federation={"sites": ["alpha"], "compare_every": 0},
    )
    data = data_of(spec, tmp_path / "data")
    anew = ALONE.model_copy(update={"rows_per_rank": None})  # else each epoch's batches would be those of the first
    left = [payload[0] for payload in Attack(anew).go(spec, data, tmp_path / "run").left]
    rows = data.splits[0].train
    sums = torch.stack([value.gradient() if isinstance(value, Factor) else value for value in left])[:, :, :WIDTH]
    seed, found = make_plan(spec, Replica(spec).model).seed, []
    for known in (0, data.order_key(0)):  # the site's index, as every member knows it; what only the site has
        batches = []
        for epoch in range(epochs):
            generator = torch.Generator().manual_seed(derive(seed, "order", known, epoch))
            order = torch.randperm(len(rows), generator=generator)
            batches += [
                torch.zeros(len(rows)).index_fill(0, batch, 1 / len(batch))
                for batch in order.split(batch_sizes(len(rows), 8))
            ]
        single = torch.linalg.lstsq(torch.stack(batches).double(), sums.double().flatten(1), driver="gelsd").solution
        found.append(recovered(list(single.reshape(-1, 3, WIDTH).float()), data))
    assert found[0] == 0
    assert found[1] > 0.9 * len(rows), "an attack that works"


def traps(spec: RunSpec, data: SiteData) -> dict[str, Tensor]:
    """Return weights of which four ReLUs of the first layer fire for one sample in 32 each, the others for none."""
    replica = Replica(spec)
    weights = dict(replica.model.named_parameters())
    generator = torch.Generator().manual_seed(5)
    layer, bias = weights["1.weight"], weights["1.bias"]
    with torch.no_grad():
        layer.copy_(torch.nn.functional.normalize(torch.randn(layer.shape, generator=generator), dim=1))
        outputs = (
            in_memory(data.samples.inputs).float() @ layer.T
        )  # of samples like these; the attacker has some of its own
        bias.copy_(-outputs.quantile(1 - 1 / BATCH, dim=0))
        bias[4:] = -1e3
    return replica.parameters()


@pytest.mark.slow
def test_trap_weights_after_a_comparison_are_refused_and_nothing_is_taken_over(tmp_path: Path) -> None:
    spec = spec_of(RANK_DAD)
    data = data_of(spec, tmp_path / "data")
    trap = traps(spec, data)

    def lie(update: Message) -> Message:
        return replace(update, body=Comparison(drift=1.0, replica=trap)) if update.kind is Kind.COMPARISON else update

    attack = Attack(ALONE, lie)
    said = (
        r"^federation.drift: in the run small the aggregator gives alpha other weights; those of 1.bias differ .* of "
        r'their size from .* no more than 0.001 \(accept_replica\). .*; "accept_replica": null in its policy accepts'
    )
    with pytest.raises(PolicyError, match=said):
        attack.go(spec, data, tmp_path / "default")
    assert len(attack.left) == 1
    assert recovered(attack.rows, data) == 0
    assert attack.run_state is not None
    assert (attack.run_state.steps, attack.run_state.progress.compared) == (1, 0), "it stands where it stood"
    assert not torch.equal(attack.run_state.replica.model.get_parameter("1.bias"), trap["1.bias"])
    assert not attack.notices

    trusting = Policy(accept_replica=None, min_sites=1)
    shared = Attack(trusting, lie).go(spec, data, tmp_path / "shared")
    assert recovered(shared.rows, data) == 0, "of what flows through a unit nobody has nearly all"
    allowed = Attack(trusting.model_copy(update={"min_level": MinLevel(count=1)}), lie)
    assert recovered(allowed.go(spec, data, tmp_path / "allowed").rows, data) > 10
    assert "alpha: takes over the aggregator's weights after step 1: those of 1.bias differ" in allowed.notices[0]


@pytest.mark.slow
def test_a_replica_within_the_limit_is_taken_over_and_brings_no_moments(tmp_path: Path) -> None:
    """Rounding apart. Whoever chose the moments would choose the weights of the next step."""
    spec = spec_of(RANK_DAD)
    data = data_of(spec, tmp_path / "data")
    sent: list[dict[str, Tensor]] = []

    def lie(update: Message) -> Message:
        assert attack.run_state is not None
        if update.kind is not Kind.COMPARISON:
            return update
        sent.append({n: p.detach() * (1 + 1e-4) for n, p in attack.run_state.replica.model.named_parameters()})
        return replace(update, body=Comparison(drift=1.0, replica=sent[-1]))

    attack = Attack(ALONE, lie)
    attack.go(spec, data, tmp_path / "run")
    taken = [one for one in attack.notices if "takes over" in one]
    assert len(taken) == len(sent) > 1
    assert "differ from its own by 0.0001 of their size" in attack.notices[0]
    with_moments = sent[0] | {"exp_avg": torch.ones(3)}
    assert attack.run_state is not None
    with pytest.raises(ProtocolError, match=r"d.replica: holds other weights than this model has"):
        attack.run_state.replica.check_parameters(with_moments)


@pytest.mark.slow
@pytest.mark.parametrize(("size", "steps", "said"), [(1e12, 8, ""), (1e30, 0, "the training loss in step 1 holds NaN")])
def test_huge_weights_at_the_beginning_single_nobody_out(tmp_path: Path, size: float, steps: int, said: str) -> None:
    """Of a folder of pretrained weights, at an aggregator that refuses nothing and leaves them as they are.

    Where the loss overflows, the run ends with a sentence, and no gradient leaves the site.
    """
    spec = spec_of(RANK_DAD)
    data, replica, ended = data_of(spec, tmp_path / "data"), Replica(spec), ""
    with torch.no_grad():
        for parameter in replica.model.parameters():
            parameter.mul_(size)
    plan, left = make_plan(spec, replica.model), list[Payload]()
    own = admitted(Policy(), spec, plan, data)
    training = train(spec, plan, own, TrainingState("alpha", RunState(spec, plan, replica)), Policy())
    try:
        message = answered(training, None)
        while not isinstance(message.body, Evaluation):
            body: Body = Comparison(drift=0.0, replica={})
            if isinstance(message.body, Hello):
                body = Roster(train=((len(own.splits[0].train),),))
            elif isinstance(message.body, Step):
                left.append(message.body.payload)
                body = replace(message.body, payload=tuple(nothing(value) for value in message.body.payload))
            message = answered(training, replace(message, body=body))
    except RankdadError as error:
        ended = str(error)
    assert len(left) == steps
    assert ended.startswith(said)
    assert recovered([rows for payload in left for rows in rows_of(payload)], data) == 0


def answered(training: Any, update: Message | None) -> Message:
    """Send an update, or none at the beginning; return the next contribution, of a round that nobody knows of."""
    message = training.send(update)
    while isinstance(message, Ask):
        message = training.send(None)
    assert isinstance(message, Message)
    return message


def nothing(value: Factor | Tensor) -> Factor | Tensor:
    """Return a gradient of zero."""
    return Factor(value.delta[:0], value.activation[:0]) if isinstance(value, Factor) else torch.zeros_like(value)


class Members:
    """Two members: beta is a hospital, mallory sends what it likes, and subtracts that from what comes back."""

    def __init__(self, spec: RunSpec, policy: Policy, folder: Path) -> None:
        self.refused: list[str] = []
        self.rows: list[Tensor] = []
        self.data = {site: data_of(spec, folder / site, index) for index, site in enumerate(spec.federation.sites)}
        self.aggregator = Aggregator(spec, Replica(spec), folder / "run", time.perf_counter)
        self.plan: Plan = self.aggregator.plan
        check_run(policy, spec, self.plan)
        self.trainings = {}
        for site, data in self.data.items():
            state = TrainingState(site, RunState(spec, self.plan, Replica(spec)))
            own = admitted(policy, spec, self.plan, data)
            self.trainings[site] = train(spec, self.plan, own, state, policy)

    def go(self, weight: float) -> Members:
        with contextlib.closing(self.aggregator), contextlib.suppress(StopIteration):
            messages = {site: answered(training, None) for site, training in self.trainings.items()}
            while True:
                own, answers = messages["mallory"], dict[str, bytes]()
                if isinstance(own.body, Step):
                    self._lie(replace(own, body=replace(own.body, weight=weight)))
                for site, message in messages.items():
                    body = pack(message, self.plan, up=True)
                    answers |= self.aggregator.take(site, body)
                updates = {site: unpack(answers[site], self.plan, up=False) for site in messages}
                if isinstance(own.body, Step):
                    self._subtract(own.body, updates["mallory"].body)
                messages = {site: answered(self.trainings[site], update) for site, update in updates.items()}
        return self

    def _lie(self, message: Message) -> None:
        try:
            self.aggregator.take("mallory", pack(message, self.plan, up=True))
        except ProtocolError as error:
            self.refused.append(f"{error.status} {error}")

    def _subtract(self, own: Step, update: Any) -> None:
        parts = [
            value.gradient() if isinstance(value, Factor) else value for value in (update.payload[0], own.payload[0])
        ]
        self.rows += rows_of((parts[0] * update.weight - parts[1] * own.weight,))


@pytest.mark.slow
def test_a_weight_of_1e12_is_refused_and_what_comes_back_shows_no_sample_of_the_others(tmp_path: Path) -> None:
    spec = spec_of(RANK_DAD, sites=("mallory", "beta"))
    run = Members(spec, Policy(), tmp_path / "default").go(1e12)
    assert run.refused
    assert all("422 m: the weight: is of 1e+12 samples, expected the 32" in refused for refused in run.refused), (
        run.refused[0]
    )
    assert run.rows
    assert recovered(run.rows, run.data["beta"]) == 0
    alone = Members(spec_of(DSGD, 1, ("mallory", "beta")), EVERYTHING, tmp_path / "allowed").go(1e12)
    assert recovered(alone.rows, alone.data["beta"]) > 0.9 * len(alone.data["beta"].splits[0].train)
