"""Local steps: what they are equal to, by identities and by hand."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from rankdad.common.data import SiteData, read_site
from rankdad.common.errors import PolicyError, SpecError
from rankdad.common.lowrank.factors import Factor
from rankdad.common.methods.top_k import TopK
from rankdad.common.models import build_model
from rankdad.common.policy import Policy
from rankdad.common.policy_checks import check_run
from rankdad.common.protocol.codec import pack
from rankdad.common.protocol.messages import Message
from rankdad.common.protocol.plan import Plan, make_plan
from rankdad.common.rounds.step import Step
from rankdad.common.run.replica import Replica
from rankdad.local import site as local_site
from rankdad.local.batch import StepBatch
from rankdad.local.local_steps import differences
from rankdad.simulations.lockstep import run
from tests.conftest import SITES, part_of, run_spec, write_site
from tests.runs import final_weights, summary_of

Data = Callable[..., dict[str, SiteData]]
SGD = {"name": "sgd", "lr": 0.1}
ALPHA = {"sites": ["alpha"]}


def trained(
    folder: Path, site_data: Data, method: dict[str, Any], training: dict[str, Any], **changes: Any
) -> dict[str, Tensor]:
    spec = run_spec(method={"wire": "float64"} | method, training={"dtype": "float64"} | training, **changes)
    data = site_data(spec)
    return final_weights(run(spec, {site: data[site] for site in spec.federation.sites}, folder))


def apart(one: dict[str, Tensor], other: dict[str, Tensor]) -> float:
    return max(float((one[name] - other[name]).abs().max()) for name in one)


@pytest.mark.slow
def test_one_local_step_of_sgd_averaged_is_dsgd(tmp_path: Path, site_data: Data) -> None:
    """Over unequal sites, one of which runs out of data."""
    model = {"name": "mlp", "hidden": [16, 16], "dropout": 0.2}
    training = {"optimizer": SGD, "schedule": {"name": "cosine", "warmup": 3}, "batch_size": 4, "accumulate": 2}
    plain = trained(tmp_path / "dsgd", site_data, {"name": "dsgd"}, training, model=model)
    local = trained(tmp_path / "local", site_data, {"name": "dsgd", "local_steps": 1}, training, model=model)
    assert summary_of(tmp_path / "local")["steps"] == summary_of(tmp_path / "dsgd")["steps"]
    assert apart(plain, local) < 1e-12
    assert apart(plain, build_model(run_spec(model=model, training={"dtype": "float64"})).state_dict()) > 1e-2


def test_a_batch_without_samples_moves_nothing() -> None:
    """A site with fewer samples than batches: its optimizer's momentum is no reason to go on."""
    spec = run_spec(method={"name": "dsgd", "local_steps": 5}, training={"optimizer": {"name": "adam", "lr": 0.1}})
    replica = Replica(spec)
    state: Any = SimpleNamespace(replica=replica, next_batch=lambda site: (0, 5))

    def gradients(batch: StepBatch) -> tuple[dict[str, Tensor], float]:
        return {name: torch.ones_like(value) * len(batch) for name, value in replica.trained.items()}, 1.0

    full, empty = StepBatch([3], [[torch.arange(3)]], iter(())), StepBatch([0], [[]], iter(()))
    moved, loss, _ = differences(spec, state, 0, [full] * 2 + [empty] * 3, {}, gradients)
    expected, same, _ = differences(spec, state, 0, [full] * 2, {}, gradients)
    assert loss == same == 1.0
    assert apart(moved, expected) == 0
    assert min(float(value.abs().min()) for value in moved.values()) > 0.1


class PartlyUsed(nn.Linear):
    """A layer with a weight that no output depends on."""

    def __init__(self) -> None:
        super().__init__(6, 3)
        self.unused = nn.Parameter(torch.ones(3))


@pytest.mark.slow
def test_a_weight_that_nothing_uses_decays_as_without_local_steps(tmp_path: Path, site_data: Data) -> None:
    """Its moments are kept as those of the others, from step to step."""
    factory = f"{__name__}:PartlyUsed"
    model = {"name": "factory", "factory": factory}
    optimizer = {"name": "adam", "lr": 0.01, "weight_decay": 0.1}
    weights = []
    for number, options in enumerate(({}, {"local_steps": 2})):
        method = {"name": "dsgd", "wire": "float64"} | options
        spec = run_spec(
            model=model, method=method, federation=ALPHA, training={"dtype": "float64", "optimizer": optimizer}
        )
        data = {"alpha": site_data(spec)["alpha"]}
        weights.append(final_weights(run(spec, data, tmp_path / str(number), allowed_factories=[factory])))
    assert apart(*weights) < 1e-10
    assert float(weights[0]["unused"].max()) < 1


@pytest.mark.slow
@pytest.mark.parametrize(("most", "steps"), [(1, 12), (3, 6), ("epoch", 3)])
def test_one_site_that_keeps_its_moments_trains_as_if_there_were_no_exchange(
    tmp_path: Path, site_data: Data, most: int | str, steps: int
) -> None:
    training = {"epochs": 3, "clip": 0.5, "schedule": {"name": "cosine", "warmup": 3}}
    plain = trained(tmp_path / "plain", site_data, {"name": "dsgd"}, training, federation=ALPHA)
    method = {"name": "dsgd", "local_steps": most}
    local = trained(tmp_path / "kept", site_data, method, training, federation=ALPHA)
    reset = trained(tmp_path / "reset", site_data, method | {"moments": "reset"}, training, federation=ALPHA)
    assert apart(plain, local) < 1e-10
    assert apart(plain, reset) > 1e-4
    assert summary_of(tmp_path / "kept")["steps"] == steps


@pytest.mark.slow
@pytest.mark.parametrize("feedback", ["none", "both"])
def test_a_rank_that_holds_every_difference_is_dense_fedavg(tmp_path: Path, site_data: Data, feedback: str) -> None:
    """Two batches of four samples move 64 × 64 weights by at most rank 8, those of three sites by at most 24."""
    training = {"optimizer": SGD, "batch_size": 4, "epochs": 1}
    model = {"name": "mlp", "hidden": [64, 64]}
    dense = trained(tmp_path / "dense", site_data, {"name": "dsgd", "local_steps": 2}, training, model=model)
    method = {"name": "rank-dad", "rank": 24, "reducer": "exact", "feedback": feedback, "local_steps": 2}
    assert apart(dense, trained(tmp_path / "rows", site_data, method, training, model=model)) < 1e-10
    fewer = trained(tmp_path / "fewer", site_data, method | {"rank": 4}, training, model=model)
    assert apart(dense, fewer) > 1e-6


@pytest.mark.slow
def test_the_proximal_term_and_the_shares_by_hand(tmp_path: Path) -> None:
    """Where all of a site's samples are the same, the order of its batches says nothing."""
    generator = torch.Generator().manual_seed(0)
    spec = run_spec(
        model={"name": "linear"},
        method={"name": "dsgd", "wire": "float64", "preset": "fedprox", "proximal": 0.7},
        training={"dtype": "float64", "optimizer": SGD, "epochs": 2, "validation": 0, "test": 0.25},
        federation={"sites": ["alpha", "beta"]},
    )
    data: dict[str, SiteData] = {}
    samples: dict[str, tuple[Tensor, Tensor, int]] = {}
    for site, count in (("alpha", 64), ("beta", 16)):
        inputs, place = torch.randn(6, generator=generator), len(samples)
        write_site(tmp_path / site, count, 0, x=inputs.expand(count, 6).numpy(), y=[place] * count)
        data[site] = read_site(spec, tmp_path / site, place)
        samples[site] = inputs.double(), torch.tensor(place), len(part_of(data[site], "train"))
    shared = {name: value.detach().clone() for name, value in Replica(spec).trained.items()}
    for _ in range(2):
        moved = {name: torch.zeros_like(value) for name, value in shared.items()}
        for inputs, label, count in samples.values():
            here = shared
            for _ in range(-(-count // 8)):
                weight, bias = (value.clone().requires_grad_() for value in here.values())
                loss = F.cross_entropy(weight @ inputs + bias, label)
                slopes = dict(zip(here, torch.autograd.grad(loss, (weight, bias)), strict=True))
                here = {n: value - 0.1 * (slopes[n] + 0.7 * (value - shared[n])) for n, value in here.items()}
            part = count / sum(one[2] for one in samples.values())
            moved = {name: moved[name] + part * (here[name] - shared[name]) for name in shared}
        shared = {name: shared[name] + moved[name] for name in shared}
    assert apart(final_weights(run(spec, data, tmp_path / "run")), shared) < 1e-12


@pytest.mark.parametrize(
    ("outer", "oracle"),
    [
        ({"name": "nesterov"}, lambda weights: torch.optim.SGD(weights, lr=0.7, momentum=0.9, nesterov=True)),
        ({"name": "adam"}, lambda weights: torch.optim.Adam(weights, lr=0.01, betas=(0.9, 0.99), eps=1e-3)),
        ({"name": "average", "lr": 0.5}, lambda weights: torch.optim.SGD(weights, lr=0.5)),
    ],
)
def test_outer_optimizers_are_torchs_own(outer: dict[str, Any], oracle: Callable[..., torch.optim.Optimizer]) -> None:
    """Whatever the schedule and the clipping of local steps, and from a checkpoint as without."""
    training = {"dtype": "float64", "clip": 1e-3, "schedule": {"name": "cosine", "warmup": 3}}
    spec = run_spec(method={"name": "dsgd", "local_steps": 4, "outer": outer}, training=training)
    replica, generator = Replica(spec), torch.Generator().manual_seed(0)
    weights = {name: value.detach().clone() for name, value in replica.trained.items()}
    optimizer = oracle(list(weights.values()))
    for step in range(4):
        moved = {n: torch.randn(w.shape, generator=generator, dtype=torch.float64) for n, w in weights.items()}
        for name, weight in weights.items():
            weight.grad = moved[name]
        optimizer.step()
        state = replica.state()
        replica = Replica(spec)
        replica.load_state(state, step)
        replica.apply(moved)
        assert apart(weights, {name: value.detach() for name, value in replica.trained.items()}) < 1e-12


@pytest.mark.slow
def test_a_policy_counts_the_samples_of_one_batch_and_not_of_the_round(
    tmp_path: Path, site_data: Data, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Rounds have up to 31 samples here, and batches 10 or 11: one row has nearly as many numbers as these cells."""
    rows: set[int] = set()

    def noting(message: Message, plan: Plan, *, up: bool) -> bytes:
        if isinstance(message.body, Step):
            rows.update(value.rows for value in message.body.payload if isinstance(value, Factor))
        return pack(message, plan, up=up)

    monkeypatch.setattr(local_site, "pack", noting)
    model, method = {"name": "mlp", "hidden": [16]}, {"name": "rank-dad", "rank": 4, "local_steps": "epoch"}
    spec = run_spec(model=model, method=method, training={"batch_size": 12})
    run(spec, site_data(spec, (48, 48, 48)), tmp_path, policies=dict.fromkeys(SITES, Policy()))
    assert rows == {1}
    few = run_spec(method={"name": "rank-dad", "rank": 4, "local_steps": "epoch"}, training={"batch_size": 7})
    with pytest.raises(PolicyError, match=r"training.batch_size: .* none of fewer than 8 \(min_rows\)"):
        check_run(Policy(), few, make_plan(few, build_model(few)))


@pytest.mark.parametrize(
    ("method", "said"),
    [
        ({"name": "dsgd", "local_steps": 0}, "method.local_steps: got 0"),
        ({"name": "edad", "local_steps": 2}, "local_steps: edad sends rows of single batches"),
        ({"name": "top-k", "decay": 0.9, "feedback": "none"}, "decay: got 0.9, but with feedback none"),
        ({"name": "top-k", "density": 0}, "method.density: got 0"),
        ({"name": "dsgd", "preset": "sparseloco"}, '^method.preset: got "sparseloco", expected'),
        ({"name": "dsgd", "proximal": 0.1}, "proximal applies only with local steps"),
        ({"name": "dsgd", "preset": "diloco", "outer": {"name": "adam"}}, "outer: the preset diloco has nesterov"),
        ({"name": "dsgd", "preset": "fedprox", "proximal": 0}, "proximal: got 0"),
    ],
)
def test_what_local_steps_cannot_be_is_refused_by_name(method: dict[str, Any], said: str) -> None:
    with pytest.raises(SpecError, match=said):
        run_spec(method=method)


def test_a_factored_second_moment_and_local_steps_exclude_each_other() -> None:
    training = {"optimizer": {"name": "adam", "lr": 0.01, "second_moment": "factored"}}
    preset = ({"preset": "diloco"}, "the preset diloco has 500", "preset")
    for options, got, no in (({"local_steps": 2}, "got 2", "local_steps"), preset):
        with pytest.raises(
            SpecError, match=f"local_steps: {got}, but .* is factored, .* expected elementwise, or no {no}"
        ):
            run_spec(method={"name": "rank-dad", "rank": 2} | options, training=training)
    assert run_spec(method={"name": "rank-dad", "rank": 2}, training=training).training.sends_projections


def test_presets_are_options_and_what_is_given_stands() -> None:
    low_rank = {"name": "rank-dad", "rank": 2, "wire": "int8", "preset": "diloco"}
    method = run_spec(method=low_rank | {"local_steps": 58, "outer": {"lr": 0.5}}).method
    options = {"local_steps": 58, "outer": {"name": "nesterov", "lr": 0.5}, "proximal": 0.0, "moments": "kept"}
    assert method == run_spec(method=low_rank | options).method
    assert run_spec(method=method.model_dump(mode="json")).method == method
    sparse = run_spec(method={"name": "top-k", "preset": "sparseloco", "local_steps": 58}).method
    assert isinstance(sparse, TopK)
    assert (sparse.local_steps, sparse.outer.name, sparse.outer.lr, sparse.moments) == (58, "average", 1.0, "kept")
    assert (sparse.density * 4096, sparse.decay, sparse.wire, sparse.feedback) == (64, 0.95, "int2", "both")
    assert run_spec(method=sparse.model_dump(mode="json")).method == sparse
    for preset, outer in (("fedavg", "average"), ("fedprox", "average"), ("fedopt", "adam")):
        local = run_spec(method={"name": "dsgd", "preset": preset}).local
        assert local is not None
        assert (local.local_steps, local.outer.name, local.moments) == ("epoch", outer, "reset")
        assert bool(local.proximal) == (preset == "fedprox")
