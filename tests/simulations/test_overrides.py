"""Hyper-parameters of single sites: what they are equal to, by identities and by hand."""

from __future__ import annotations

import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

from rankdad.common.data import SiteData, read_site
from rankdad.common.errors import PolicyError, RunFailedError, SpecError
from rankdad.common.models import build_model
from rankdad.common.policy import Policy
from rankdad.common.protocol.plan import make_plan
from rankdad.common.run.batches import run_steps, schedule
from rankdad.common.run.replica import Replica
from rankdad.local.alone import alone_spec
from rankdad.simulations.checking import check_policy
from rankdad.simulations.lockstep import run
from rankdad.simulations.pooling import pooled_spec
from tests.conftest import SITES, part_of, run_spec, write_site
from tests.runs import final_weights, rows_of, summary_of
from tests.simulations.test_local_steps import SGD, apart

Data = Callable[..., dict[str, SiteData]]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("method", "training"),
    [
        ({"name": "rank-dad", "rank": 2}, {"batches": "even", "accumulate": 2, "batch_size": 4}),
        ({"name": "rank-dad", "rank": 2, "wire": "int8", "local_steps": 2}, {}),
        ({"name": "dad"}, {}),
    ],
)
def test_overrides_that_say_what_holds_anyway_change_no_bit(
    tmp_path: Path, site_data: Data, method: dict[str, Any], training: dict[str, Any]
) -> None:
    digests = []
    for overridden in (False, True):
        spec = run_spec(method=method, training={"schedule": {"name": "cosine"}} | training)
        own: dict[str, Any] = {"epochs": spec.training.epochs, "batch_size": spec.training.batch_size}
        own |= {"local_steps": spec.local_steps} if spec.local_steps else {}
        federation = {"sites": SITES} | ({"overrides": {"alpha": own, "gamma": own}} if overridden else {})
        spec = spec.model_validate(spec.model_dump(mode="json") | {"federation": federation})
        assert bool(spec.federation.overrides) == overridden
        run(spec, site_data(spec), tmp_path / str(overridden))
        digests.append(summary_of(tmp_path / str(overridden))["weights_sha256"])
    assert digests[0] == digests[1]


def test_what_every_site_trains_on() -> None:
    """48, 30 and 12 samples: gamma's smaller batches are more; alpha ends, and the epochs after that are shorter."""
    overrides = {"alpha": {"epochs": 1}, "gamma": {"batch_size": 3, "local_steps": 3}}
    spec = run_spec(
        method={"name": "dsgd", "local_steps": 2},
        training={"epochs": 2, "batch_size": 8, "batches": "full"},
        federation={"sites": SITES, "overrides": overrides},
    )
    first, second = (schedule(spec, (48, 30, 12), epoch) for epoch in range(2))
    assert first.batches == ([[8, 8], [8, 8], [8, 8]], [[8, 8], [7, 7], []], [[3, 3], [3, 3]])
    assert (first.steps, second.steps) == (3, 2)
    assert run_steps(spec, (48, 30, 12)) == (3 + 2, 6 + 4)
    assert run_steps(spec, (48, 30, 12), 1) == (3, 6)
    assert second.batches == ([[], []], [[8, 8], [7, 7]], [[3, 3], [3, 3]])
    even = spec.model_copy(update={"training": spec.training.model_copy(update={"batches": "even"})})
    assert [sum(map(len, site)) for site in schedule(even, (48, 30, 12), 0).batches] == [6, 6, 6]
    own = schedule(even, (48, 30, 12), 0)
    assert [sorted({size for step in site for size in step}) for site in own.batches] == [[8], [8], [3]]
    assert own.weights == (1.0, 30 / 48, 12 / 18), "30 samples in six batches of 8 count as 30"
    assert [sum(map(sum, site)) for site in schedule(even, (48, 30, 12), 1).batches] == [0, 30, 12]


def test_no_step_is_without_samples() -> None:
    """Beta's single local steps go on for as long as alpha's batches."""
    spec = run_spec(
        method={"name": "dsgd", "local_steps": "epoch"},
        training={"batches": "even", "batch_size": 8},
        federation={"sites": ["alpha", "beta"], "overrides": {"beta": {"local_steps": 1}}},
    )
    found = schedule(spec, (40, 2), 0)
    assert [[sum(step) for step in site] for site in found.batches] == [[40], [1, 1, 1, 1, 1]]
    assert found.steps == 5


@pytest.mark.slow
@pytest.mark.parametrize("local_steps", [None, 2])
def test_epochs_batches_local_steps_weights_and_learning_rates_by_hand(tmp_path: Path, local_steps: int | None) -> None:
    """Where all of a site's samples are the same, the order of its batches says nothing."""
    generator = torch.Generator().manual_seed(0)
    own: dict[str, Any] = {"epochs": 2, "batch_size": 4} | ({"local_steps": 3} if local_steps else {})
    spec = run_spec(
        model={"name": "linear"},
        method={"name": "dsgd", "wire": "float64", "local_steps": local_steps},
        training={
            **{"dtype": "float64", "optimizer": SGD, "epochs": 3, "validation": 0, "test": 0.25},
            **{"batch_size": 8, "batches": "full", "schedule": {"name": "cosine"}},
        },
        federation={"sites": ["alpha", "beta"], "overrides": {"alpha": own}},
    )
    data: dict[str, SiteData] = {}
    samples: dict[str, tuple[Tensor, Tensor, int]] = {}
    for place, (site, count) in enumerate((("alpha", 64), ("beta", 20))):
        inputs = torch.randn(6, generator=generator)
        write_site(tmp_path / site, count, 0, x=inputs.expand(count, 6).numpy(), y=[place] * count)
        data[site] = read_site(spec, tmp_path / site, place)
        samples[site] = inputs.double(), torch.tensor(place), len(part_of(data[site], "train"))
    assert [one[2] for one in samples.values()] == [48, 15]
    dealt: dict[str, list[list[int]]] = {"alpha": [[4] * 3] * 4, "beta": [[8, 7]]}
    if local_steps is None:
        dealt = {"alpha": [[4]] * 12, "beta": [[8], [7]]}
    longest = max(map(len, dealt.values()))

    def slopes_of(site: str, here: dict[str, Tensor]) -> dict[str, Tensor]:
        weight, bias = (value.clone().requires_grad_() for value in here.values())
        loss = F.cross_entropy(weight @ samples[site][0] + bias, samples[site][1])
        return dict(zip(here, torch.autograd.grad(loss, (weight, bias)), strict=True))

    def rate(number: int, per_epoch: int) -> float:
        return 0.1 * (1 + math.cos(math.pi * number / (3 * per_epoch))) / 2

    shared = {name: value.detach().clone() for name, value in Replica(spec).trained.items()}
    for epoch in range(3):
        present = {site: steps for site, steps in dealt.items() if site == "beta" or epoch < 2}
        for step in range(max(map(len, present.values()))):
            now = {site: steps[step] for site, steps in present.items() if step < len(steps)}
            total = sum(map(sum, now.values()))
            moved = {name: torch.zeros_like(value) for name, value in shared.items()}
            for site, sizes in now.items():
                here, per_epoch = shared, sum(map(len, dealt[site]))
                for batch in range(len(sizes)):
                    number = epoch * per_epoch + sum(map(len, dealt[site][:step])) + batch
                    lr = rate(number, per_epoch) if local_steps else rate(epoch * longest + step, longest)
                    slopes = slopes_of(site, here)
                    here = {name: value - lr * slopes[name] for name, value in here.items()}
                moved = {name: moved[name] + sum(sizes) / total * (here[name] - shared[name]) for name in shared}
            shared = {name: shared[name] + moved[name] for name in shared}
    assert apart(final_weights(run(spec, data, tmp_path / "run")), shared) < 1e-12
    assert summary_of(tmp_path / "run")["steps"] == 2 * longest + len(dealt["beta"])
    assert len(rows_of(tmp_path / "run" / "steps.csv")) == 2 * longest + len(dealt["beta"])
    summary, batches = summary_of(tmp_path / "run"), 2 * 12 + 2
    moved = summary["steps"] * (summary["bytes_up_per_site_step"] + summary["bytes_down_per_site_step"])
    assert summary["times_fewer_bytes_than_dense"] == pytest.approx(2 * summary["dense_bytes"] * batches / moved)


OVERRIDES = {"alpha": {"epochs": 1, "batch_size": 12}, "gamma": {"batch_size": 4, "local_steps": 3}}


@pytest.mark.slow
def test_exact_methods_agree_where_a_site_has_larger_batches_than_the_others(tmp_path: Path, site_data: Data) -> None:
    """Factors then have more rows than `training.batch_size`: the plan has room for them."""
    federation = {"sites": SITES, "overrides": {"alpha": {"batch_size": 24, "epochs": 1}}}
    weights = []
    for name in ("dsgd", "dad", "edad"):
        training = {"dtype": "float64", "batch_size": 8, "epochs": 2}
        spec = run_spec(method={"name": name, "wire": "float64"}, training=training, federation=federation)
        weights.append(final_weights(run(spec, site_data(spec), tmp_path / name)))
    assert apart(weights[0], weights[1]) < 1e-9
    assert apart(weights[0], weights[2]) < 1e-9


@pytest.mark.parametrize(
    ("overrides", "method", "said"),
    [
        (
            {"delta": {"epochs": 1}},
            {"name": "dsgd"},
            "federation: overrides: got delta, which is no site, expected",
        ),
        ({"alpha": {"local_steps": 2}}, {"name": "edad"}, r"overrides.alpha.local_steps: .* of edad cannot have any"),
        (
            {"alpha": {"local_steps": 2}},
            {"name": "dsgd"},
            r"overrides.alpha.local_steps: .* but the method has none",
        ),
        ({"alpha": {"epochs": 4}}, {"name": "dsgd"}, r"overrides.alpha.epochs: got 4, .* at most training.epochs 3"),
        ({"alpha": {"batch_size": 0}}, {"name": "dsgd"}, r"federation.overrides.alpha.batch_size: got 0"),
        ({"alpha": {"rank": 2}}, {"name": "dsgd"}, r"federation.overrides.alpha.rank: is not known here"),
        ({site: {"epochs": 2} for site in SITES}, {"name": "dsgd"}, "overrides: no site trains for training.epochs"),
    ],
)
def test_overrides_that_cannot_be_are_refused_by_name(
    overrides: dict[str, Any], method: dict[str, Any], said: str
) -> None:
    with pytest.raises(SpecError, match=said):
        run_spec(method=method, training={"epochs": 3}, federation={"sites": SITES, "overrides": overrides})


def test_a_fold_whose_last_epochs_have_no_sample_ends_the_run_at_hello(tmp_path: Path, site_data: Data) -> None:
    """Where gamma is left out, nobody trains in the second epoch."""
    overrides = {"alpha": {"epochs": 1}, "beta": {"epochs": 1}}
    spec = run_spec(
        method={"name": "dsgd"},
        training={"epochs": 2},
        evaluation={"name": "leave-one-site-out"},
        federation={"sites": SITES, "overrides": overrides},
    )
    with pytest.raises(RunFailedError, match=r"in fold 3 no site that trains in all 2 epochs \(federation.overrides\)"):
        run(spec, site_data(spec), tmp_path / "run")


def test_a_policy_counts_the_samples_of_the_sites_own_batches(site_data: Data) -> None:
    federation = {"sites": SITES, "overrides": {"gamma": {"batch_size": 6}}}
    model, method = {"name": "mlp", "hidden": [4]}, {"name": "rank-dad", "rank": 1}
    spec = run_spec(model=model, method=method, training={"batch_size": 12}, federation=federation)
    plan, data = make_plan(spec, build_model(spec)), list(site_data(spec).values())
    with pytest.raises(PolicyError, match=r"training.batch_size: .* steps of 6 samples .* fewer than 8 \(min_rows\)"):
        check_policy(Policy(), spec, plan, data)
    check_policy(Policy(min_rows=5, rows_per_rank=3), spec, plan, data)


def test_a_site_alone_trains_with_its_own_batches_and_all_together_with_the_common_ones(site_data: Data) -> None:
    spec = run_spec(
        method={"name": "top-k", "preset": "sparseloco"}, federation={"sites": SITES, "overrides": OVERRIDES}
    )
    assert [alone_spec(spec, site).training.batch_size for site in SITES] == [12, 8, 4]
    assert alone_spec(spec, "alpha").training.epochs == spec.training.epochs
    assert not pooled_spec(spec, site_data(spec)).federation.overrides
