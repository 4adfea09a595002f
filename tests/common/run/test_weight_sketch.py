"""Sketches: how far two replicas are apart, in a few numbers; and what follows from it."""

from __future__ import annotations

import json
import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from rankdad.common.data import SiteData
from rankdad.common.policy import Policy
from rankdad.common.policy_checks import policy_warnings
from rankdad.common.protocol.arrays import pack_sums
from rankdad.common.protocol.plan import make_plan
from rankdad.common.run.replica import Replica
from rankdad.common.run.state import RunState
from rankdad.common.run.weight_sketch import PARTS, distance, furthest, sketch, unpack_sketch
from rankdad.local.observer import Observer
from rankdad.local.site import site_of
from rankdad.local.training import TrainingState
from rankdad.simulations import lockstep
from tests.conftest import SITES, run_spec


@pytest.mark.parametrize("apart", [1e-7, 1e-3, 0.5])
def test_the_distance_of_sketches_is_near_that_of_the_weights(apart: float) -> None:
    generator = torch.Generator().manual_seed(1)
    estimates = []
    for _ in range(10):
        weights = {"b": torch.randn(700, 30, generator=generator, dtype=torch.float64), "a": torch.ones(3).double()}
        size = torch.cat([value.flatten() for value in weights.values()]).norm()
        change = torch.randn(700, 30, generator=generator, dtype=torch.float64)
        moved = weights | {"b": weights["b"] + change / change.norm() * size * apart}
        estimates.append(distance(sketch(weights), sketch(moved)) / apart)
    assert all(0.5 < estimate < 2 for estimate in estimates), estimates
    assert len(pack_sums(sketch(weights))) == 8 * PARTS
    assert distance(sketch(weights), sketch(dict(reversed(weights.items())))) == 0.0


def test_a_sketch_from_the_network_is_finite_and_as_long_as_it_should_be() -> None:
    good = pack_sums(sketch({"a": torch.ones(9)}))
    assert pack_sums(unpack_sketch(good)) == good
    nan, infinite = struct.pack("<d", float("nan")) + good[8:], good[:-8] + struct.pack("<d", float("inf"))
    for bad in (good[:-1], good + b"0", nan, infinite):
        with pytest.raises(ValueError, match=r"bytes, expected|holds NaN"):
            unpack_sketch(bad)


@pytest.mark.parametrize(("nudge", "agrees"), [(1e-5, False), (0.3, True)])
def test_a_replica_that_drifts_is_measured_and_past_the_limit_taken_back(
    tmp_path: Path,
    site_data: Callable[..., dict[str, SiteData]],
    monkeypatch: pytest.MonkeyPatch,
    nudge: float,
    agrees: bool,
) -> None:
    """One site computes a little differently, once: a nudge below the limit stays, one above it is undone."""
    spec = run_spec(
        training={"epochs": 2, "optimizer": {"name": "adam", "lr": 0.001}},
        federation={"sites": list(SITES), "compare_every": 4, "drift": 1e-2},
    )
    nudged: list[int] = []

    def faulty(spec: Any, plan: Any, data: Any, state: TrainingState, policy: Policy, observer: Observer) -> Any:
        def between_steps() -> None:
            if state.site == "beta" and state.run.replica.step == 3 and not nudged:
                nudged.append(1)
                with torch.no_grad():
                    next(state.run.replica.model.parameters()).add_(nudge)

        return site_of(spec, plan, data, state, policy, Observer(between_steps=between_steps))

    monkeypatch.setattr(lockstep, "site_of", faulty)
    results = lockstep.run(spec, site_data(spec), tmp_path / "run")
    assert nudged
    digests = results["alpha"].weights_sha256
    assert (digests["alpha"] == digests["beta"]) == agrees
    assert digests["alpha"] == digests["gamma"]
    summary = json.loads((tmp_path / "run" / "summary.json").read_text())
    assert summary["drift"] > 1e-2 if agrees else 0 < summary["drift"] < 1e-3
    said = {"weights-made-equal-after-a-comparison": list(SITES)}
    assert summary["warnings"] == (said if agrees else {})


def test_a_drift_is_made_equal_by_default_where_a_policy_still_takes_it_over() -> None:
    spec = run_spec()
    assert not policy_warnings(Policy(), spec)
    (said,) = policy_warnings(Policy(accept_replica=1e-5), spec)
    assert said.startswith(
        "a comparison of weights may end the run: weights that differ by more than 0.0001 are made equal"
    )


def test_the_furthest_of_named_tensors_counts_and_what_is_not_finite_is_infinitely_far() -> None:
    own = {"a": torch.tensor([3.0, 4.0]), "b": torch.zeros(2), "c": torch.ones(4)}
    assert furthest(own, own) == ("a", 0.0)
    name, apart = furthest(own, own | {"a": torch.tensor([3.0, 4.5]), "c": torch.ones(4) * 1.2})
    assert name == "c"
    assert apart == pytest.approx(0.2, rel=1e-6)
    for name, other in (("b", [0.0, 1e-30]), ("a", [3.0, float("nan")]), ("a", [float("inf"), 4.0])):
        assert furthest(own, own | {name: torch.tensor(other)}) == (name, float("inf"))


def test_a_comparison_follows_every_so_many_steps_and_goes_on_after_a_checkpoint() -> None:
    spec = run_spec(federation={"sites": list(SITES), "compare_every": 4})
    replica = Replica(spec)
    state = RunState(spec, make_plan(spec, replica.model), replica)
    due = []
    for step in range(10):
        replica.step = step
        due.append(state.comparison_due)
        state.note(compared=step)
    assert due == [False, False, False, False, True, False, False, False, True, False]
