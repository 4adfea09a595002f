"""A quorum goes on without a site: it catches up, or is left out for good, and the run says so."""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from rankdad.common.lowrank.factors import Factor
from rankdad.common.methods.rank_dad import MAX_ROWS
from rankdad.common.protocol.messages import Kind
from rankdad.remote.export import export
from tests.conftest import SITES, run_spec, sampled
from tests.simulations.recovering import FACTORED, METHODS, NAMES, Data, Run

QUORUM: dict[str, Any] = {"sites": list(SITES), "quorum": 2, "grace": 2.0, "compare_every": 5}


def without(run: Run, site: str, since: int, until: int, *, killed: bool) -> Callable[[int], str | None]:
    """A site that is not there from one message to another; then it is started again, or goes on where it stood."""

    def crash(message: int) -> str | None:
        if message == since:
            run.gone.add(site)
        if message != until:
            return None
        run.gone.discard(site)
        return site if killed else None

    return crash


@pytest.mark.slow
@pytest.mark.parametrize("method", sampled(METHODS, 2), ids=NAMES)
@pytest.mark.parametrize("killed", [True, False], ids=["restarted", "late"])
def test_a_quorum_goes_on_without_a_site_which_catches_up(
    tmp_path: Path, site_data: Data, method: dict[str, Any], killed: bool
) -> None:
    local = method.get("local_steps", 1)
    factored = FACTORED if killed and local == 1 else {}
    training = {"epochs": 3, "batch_size": 8 // local} | factored
    spec = run_spec(method=method, training=training, federation=QUORUM)
    run = Run(spec, site_data(spec), tmp_path)
    digest = run.go(without(run, "gamma", 17, 41, killed=killed))
    progress = run.aggregator.recorder.progress
    assert 3 <= progress.left_out["gamma"] < progress.step - 5, "it was away for a while, and came back"
    assert set(progress.left_out) == {"gamma"}
    assert set(progress.weights_sha256) == set(SITES)
    assert progress.drift == 0.0
    assert export(tmp_path / "run", None, tmp_path / "replayed").replica.digest() == digest


@pytest.mark.slow
def test_a_step_that_left_a_site_out_changes_none_of_its_moments(tmp_path: Path, site_data: Data) -> None:
    training = {"epochs": 1, "batch_size": 4}
    spec = run_spec(method={"name": "dsgd", "local_steps": 2}, training=training, federation=QUORUM)
    run = Run(spec, site_data(spec, (48, 48, 48)), tmp_path)
    away, gamma = without(run, "gamma", 7, 15, killed=False), run.sites["gamma"].state
    before: dict[int, Any] = {}  # its moments, by the round in which it stands

    def crash(message: int) -> str | None:
        before.setdefault(gamma.run.round, gamma.moments)
        return away(message)

    run.go(crash)
    assert run.aggregator.recorder.progress.left_out["gamma"] == 1
    steps = [before.get(round_, before[4]) for round_ in range(1, 6)]
    assert [one is other for one, other in pairwise(steps)] == [False, True, False, False]


@pytest.mark.slow
def test_a_site_that_is_away_where_models_are_compared_is_named(tmp_path: Path, site_data: Data) -> None:
    """Nothing is known of any difference then, and nobody said why."""
    evaluation = {"name": "holdout", "references": ["site"]}
    changes: dict[str, Any] = {"model": {"name": "linear"}, "method": {"name": "dsgd"}, "training": {"solver": "exact"}}
    spec = run_spec(**changes, task={"name": "regression"}, evaluation=evaluation, federation=QUORUM)
    run = Run(spec, site_data(spec), tmp_path)

    def crash(message: int) -> None:
        if (due := run.aggregator.state.due) is not None and due.kind is Kind.PAIRED:
            run.gone.add("gamma")

    run.go(crash)
    progress = run.aggregator.recorder.progress
    assert progress.warnings == {"left-out-of-a-comparison": ["gamma"]}
    assert not any(progress.study.summary()["differences"].values())


@pytest.mark.slow
def test_a_site_gone_for_good_is_left_out_and_the_run_says_so(tmp_path: Path, site_data: Data) -> None:
    spec = run_spec(method={"name": "rank-dad", "rank": 2}, training={"epochs": 2}, federation=QUORUM)
    data = site_data(spec)
    undisturbed = Run(spec, data, tmp_path / "undisturbed")
    undisturbed.go(lambda message: None)
    run = Run(spec, data, tmp_path)
    digest = run.go(without(run, "beta", 10, 10_000, killed=True))
    progress = run.aggregator.recorder.progress
    assert set(progress.weights_sha256) == {"alpha", "gamma"}
    assert progress.left_out["beta"] > progress.step / 2
    assert run.now <= undisturbed.now + QUORUM["grace"] + 1, "only the first round without it waits for its grace"
    assert export(tmp_path / "run", None, tmp_path / "replayed").replica.digest() == digest


@pytest.mark.slow
def test_an_aggregator_that_dies_in_a_run_of_a_quorum_goes_on_from_its_ledger(tmp_path: Path, site_data: Data) -> None:
    spec = run_spec(method={"name": "rank-dad", "rank": 2}, training={"epochs": 3}, federation=QUORUM)
    run = Run(spec, site_data(spec), tmp_path)
    away = without(run, "gamma", 14, 50, killed=False)
    digest = run.go(lambda message: away(message) or ("aggregator" if message % 9 == 0 else None))
    assert export(tmp_path / "run", None, tmp_path / "replayed").replica.digest() == digest


@pytest.mark.slow
def test_what_a_site_keeps_does_not_grow_while_others_are_left_out_in_turn(tmp_path: Path, site_data: Data) -> None:
    federation = QUORUM | {"overrides": {"gamma": {"batch_size": 8}}}
    method = {"name": "rank-dad", "rank": 1, "wire": "int8"}
    model = {"name": "mlp", "hidden": [32, 32]}
    spec = run_spec(method=method, model=model, training={"epochs": 12, "batch_size": 4}, federation=federation)
    run = Run(spec, site_data(spec, (48, 48, 96)), tmp_path)
    alpha, most = run.sites["alpha"].state, 0

    def crash(message: int) -> None:
        nonlocal most
        if message > 10:  # each part is then another than the one that was meant
            run.gone.add(("beta", "gamma")[run.aggregator.state.steps % 2])
            run.gone.discard(("gamma", "beta")[run.aggregator.state.steps % 2])
        rows = [value.rows for value in alpha.residuals.values() if isinstance(value, Factor)]
        most = max(most, *rows, 0)

    run.go(crash)
    assert min(run.aggregator.recorder.progress.left_out.values()) > 20
    assert 0 < most < 2 * MAX_ROWS
