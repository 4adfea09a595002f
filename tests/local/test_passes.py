"""How far a model has moved is told by what flows back from the loss, not by its weights alone."""

from __future__ import annotations

import itertools
from collections.abc import Callable

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from rankdad.common.data import Samples, SiteData
from rankdad.common.data.folds import Split
from rankdad.common.data.parts import Assignment
from rankdad.common.lowrank.factors import Factor
from rankdad.common.policy import Policy
from rankdad.common.privacy.parts import Secret
from rankdad.common.privacy.standing import NEAR, Flows
from rankdad.common.protocol.messages import Kind, Message
from rankdad.common.protocol.plan import make_plan
from rankdad.common.rounds.hello import Roster
from rankdad.common.run.replica import Replica
from rankdad.common.run.state import RunState
from rankdad.local.contributions import Contributions
from rankdad.local.passes import Passes
from tests.conftest import run_spec


def shifted(layers: list[nn.Linear]) -> None:
    layers[-1].bias.add_(3.0)


def shifted_for_all_inputs(layers: list[nn.Linear]) -> None:
    layers[-1].weight.add_(torch.linspace(-1, 1, layers[-1].in_features))


def scaled(layers: list[nn.Linear]) -> None:
    layers[0].weight.mul_(4.0)
    layers[0].bias.mul_(4.0)
    layers[1].weight.div_(4.0)


def turned(layers: list[nn.Linear]) -> None:
    layers[-1].weight.add_(0.1 * torch.randn(layers[-1].weight.shape, generator=torch.Generator().manual_seed(0)))


@pytest.mark.parametrize(
    ("change", "stays"), [(shifted, True), (shifted_for_all_inputs, True), (scaled, True), (turned, False)]
)
def test_a_model_that_stays_has_not_moved(change: Callable[[list[nn.Linear]], None], stays: bool) -> None:
    passes, _ = opened()
    replica = passes._run.replica
    before, sketched = passes.flows(), replica.sketch()
    layers = [module for module in replica.model.modules() if isinstance(module, nn.Linear)]
    with torch.no_grad():
        change(layers)
    after = passes.flows()
    assert before is not None
    assert after is not None
    assert float((replica.sketch() - sketched).norm() / sketched.norm()) > NEAR
    assert before.near([after]) == [stays]


def test_samples_of_one_name_have_ids_of_their_own() -> None:
    """They had the same, and whom two runs had in common could not be told."""
    passes, _ = opened(names=lambda place: str(place // 3))
    found = passes.flows()
    assert found is not None
    assert len(found.ids.unique()) == len(found.ids) == 64
    fewer = Flows(found.ids[10:], found.kinds[10:], found.values[10:])
    assert found.near([fewer]) == [True]
    assert fewer.near([found]) == [True]


def test_at_which_step_of_a_stretch_a_site_looks_only_its_secret_tells() -> None:
    """While it was the first of each stretch, the weights were elsewhere just then."""
    found = []
    for secret in (b"0", b"1"):
        passes, contributions = opened(Secret(secret * 32))
        run = passes._run
        looks = []
        for epoch, step in itertools.product(range(40), range(5)):
            run.note(epoch=epoch, step=step)
            stretch, at = contributions.stretch(Policy(rows_per_rank=1))
            assert step in stretch
            assert at in stretch
            looks.append(at - stretch.start)
        assert {0, 1, 2, 3, 4} == set(looks)
        found.append(looks)
    assert found[0] != found[1]


def test_near_a_place_the_same_patients_batches_are_those_of_before() -> None:
    """At weights elsewhere, of other sizes or of other patients they are drawn afresh; another run has the same."""
    passes, _ = opened()
    here = passes.start()
    moved = here._replace(sketch=here.sketch * 1.1, flows=None)
    (own,) = here.drawn.values()
    assert passes.start().drawn == here.drawn, "it is the same epoch"
    passes._run.note(epoch=1)
    assert passes.start((here,)).drawn == here.drawn
    (fresh,) = passes.start().drawn.values()
    assert fresh != own
    for places in ((moved,), (here._replace(drawn={"others": own}),)):
        assert passes.start(places).drawn == {next(iter(here.drawn)): fresh}


def test_batches_of_before_have_the_dropout_masks_of_before() -> None:
    """Others known to everybody told of each unit another sum of the same patients: all 45 rows, from outside."""
    passes, _ = opened(dropout=0.5)
    order = passes.start().drawn
    sums = [passes.step(passes.batch(order), {})[0].gradients]
    passes._run.note(epoch=1)
    sums += [passes.step(passes.batch(order), {})[0].gradients]
    passes._run.note(epoch=2)
    sums += [passes.step(passes.batch(passes.start().drawn), {})[0].gradients]
    first, again, other = (torch.cat([value_of(one).flatten() for one in each]) for each in sums)
    assert torch.equal(first, again)
    assert not torch.allclose(first, other)


def value_of(gradient: Factor | Tensor) -> Tensor:
    return gradient.gradient() if isinstance(gradient, Factor) else gradient


def opened(
    secret: Secret = Secret(b"0" * 32),  # noqa: B008
    names: Callable[[int], str] = str,
    dropout: float = 0.0,
) -> tuple[Passes, Contributions]:
    """A site of 90 patients, which trains on them in five steps."""
    spec = run_spec(
        task={"name": "classification", "classes": 3},
        model={"name": "mlp", "hidden": [5, 4], "activation": "relu", "dropout": dropout},
        data={"shape": [6]},
        training={"dtype": "float64", "batch_size": 18},
    )
    replica = Replica(spec)
    plan = make_plan(spec, replica.model)
    run = RunState(spec, plan, replica)
    nothing, inputs = torch.arange(0), torch.randn(90, 6, generator=torch.Generator().manual_seed(1)).double()
    data = SiteData(
        Samples(inputs, torch.arange(90) % 3),
        (Split(torch.arange(90), nothing, nothing),),
        keys=tuple(map(names, range(90))),
        parts=Assignment(np.zeros(90, np.int64), {0: 90}, secret),
    )
    run.follow(Message(Kind.HELLO, 0, Roster(train=((90,) * len(plan.sites),))))
    passes = Passes(spec, plan, data, run, 0)
    return passes, Contributions(spec, plan, data, run, 0, passes.prepared, lambda fold, outputs: None)
