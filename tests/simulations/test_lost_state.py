"""What stands on a disk is lost, torn or another run's: who can goes on, and everybody else is told why not."""

from __future__ import annotations

import contextlib
import json
import shutil
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import safetensors.torch
import torch

from rankdad.common.errors import PolicyError, ProtocolError, UserError
from rankdad.common.policy import Policy
from rankdad.common.rounds.base import Collected
from rankdad.common.run.checkpoints import Checkpoints, take_over
from rankdad.common.run.replica import Replica
from rankdad.common.run.state import RunState
from rankdad.local.starting import loaded_state
from rankdad.remote.aggregator import Aggregator
from rankdad.remote.export import export
from rankdad.remote.persistence import LedgerOptions
from rankdad.remote.records import Retention
from tests.conftest import run_spec
from tests.simulations.recovering import EVERY, LEDGER_OPTIONS, Data, Run

pytestmark = pytest.mark.slow


@pytest.mark.parametrize(
    ("tuning", "fold"), [(None, 1), ({"weight_decay": [0, 0.5]}, 4), ({"weight_decay": [0, 0.5]}, 5)]
)
def test_a_site_that_lost_its_disk_in_a_later_fold_goes_on(
    tmp_path: Path, site_data: Data, tuning: Any, fold: int
) -> None:
    """With tuning in the second fold's second candidate, or in what the candidates have chosen."""
    spec = run_spec(
        method={"name": "rank-dad", "rank": 1},
        evaluation={"name": "k-fold", "folds": 2},
        training={"epochs": 2, "validation": 0.3},
        tuning=tuning,
    )
    run = Run(spec, site_data(spec, (40, 30, 21)), tmp_path)

    def crash(message: int) -> str | None:
        run_state = run.aggregator.state
        if run_state.fold != fold or run_state.step != 2 or run.aggregator.recorder.progress.resets:
            return None
        shutil.rmtree(tmp_path / "beta")
        return "beta"

    digest = run.go(crash)
    (reset,) = run.aggregator.recorder.progress.resets
    assert reset["site"] == "beta"
    assert export(tmp_path / "run", None, tmp_path / "replayed").replica.digest() == digest


def test_a_site_that_lost_its_disk_in_the_middle_of_a_step_ends_it_with_the_others(
    tmp_path: Path, site_data: Data
) -> None:
    """It sent a weight of 0 to the step's later exchanges, and the others ended over the sum."""
    spec = run_spec(method={"name": "powersgd", "rank": 2}, training={"epochs": 3})
    run = Run(spec, site_data(spec), tmp_path)

    def crash(message: int) -> str | None:
        state = run.aggregator.state
        lost = run.aggregator.recorder.progress.resets
        if lost or state.replica.step < 5 or not state.due or not state.due.exchange:
            return None
        shutil.rmtree(tmp_path / "beta")
        return "beta"

    digest = run.go(crash)
    (reset,) = run.aggregator.recorder.progress.resets
    assert reset["site"] == "beta"
    assert export(tmp_path / "run", None, tmp_path / "replayed").replica.digest() == digest


@pytest.mark.parametrize(
    "changes",
    [
        {"study": {"fold": 3}},
        {"study": {"fold": 2, "began": 10**6}},
        {"study": {"fold": 2, "before": 10**6}},
        {"roster": [[9, 9, 9]]},
        {"roster": [[9, 9]] * 3},
        {"total": torch.ones(3, 1)},
        {"study": {"fold": 2, "tried": [[0.5, 0]]}},
    ],
)
def test_a_snapshot_of_other_folds_is_refused_and_changes_nothing(
    tmp_path: Path, site_data: Data, changes: dict[str, Any]
) -> None:
    spec = run_spec(
        preparation={"standardise": "federated"},
        evaluation={"name": "k-fold", "folds": 2},
        training={"epochs": 1, "batch_size": 5},
    )
    run = Run(spec, site_data(spec, (40, 30, 21)), tmp_path)
    run.go(lambda message: None)
    good = Aggregator(spec, Replica(spec), tmp_path / "run", time.perf_counter, ledger=LEDGER_OPTIONS)
    with contextlib.closing(good):
        snapshot = good.snapshot("beta")
    assert snapshot is not None
    size = int.from_bytes(snapshot[:4], "little")
    document, tensors = json.loads(snapshot[4 : 4 + size]), safetensors.torch.load(snapshot[4 + size :])
    if "total" in changes:
        tensors |= {"total/sums": changes["total"]}
    standing = json.dumps(document | {name: value for name, value in changes.items() if name != "total"}).encode()
    run_state = RunState(spec, run.aggregator.plan, Replica(spec))
    with pytest.raises(ProtocolError, match="snapshot cannot be used"):
        take_over(run_state, len(standing).to_bytes(4, "little") + standing + safetensors.torch.save(tensors))
    assert (run_state.round, run_state.fold, run_state.roster) == (0, 0, ())
    take_over(run_state, snapshot)
    assert run_state.fold == document["study"]["fold"] == 2


@pytest.mark.parametrize("method", [{"name": "rank-dad", "rank": 2}, {"name": "powersgd", "rank": 2}])
def test_a_snapshot_that_would_fail_later_is_refused_at_once(
    tmp_path: Path, site_data: Data, method: dict[str, Any]
) -> None:
    """Each of these ended the site with a traceback, in its next step or at the end of its fold."""
    spec = run_spec(method=method, training={"epochs": 3})
    run = Run(spec, site_data(spec), tmp_path)
    run.go(lambda message: None)
    good = Aggregator(spec, Replica(spec), tmp_path / "run", time.perf_counter, ledger=LEDGER_OPTIONS)
    with contextlib.closing(good):
        snapshot = good.snapshot("beta")
    assert snapshot is not None
    head = 4 + int.from_bytes(snapshot[:4], "little")
    tensors = safetensors.torch.load(snapshot[head:])
    weights = tensors["replica/weights/3.weight"]
    for changes in (
        {"replica/exp_avg/3.weight": None},
        {"replica/step/3.weight": None},
        {"replica/step/3.weight": weights.clone()},
        {"replica/other/3.weight": weights.clone()},
        {"best/3.weight": weights[:1].clone()},
        {"best/3.weight": None},
        {"best/other": weights.clone()},
        {"basis/3.weight": torch.ones(2, 99)},
        {"basis/3.weight": torch.ones(99, weights.shape[1])},
        {"basis/3.weight": torch.ones(16)},
        {"basis/other": torch.ones(2, 16)},
    ):
        changed = {name: value for name, value in (tensors | changes).items() if value is not None}
        assert changed.keys() != tensors.keys() or changed[name := next(iter(changes))].shape != tensors[name].shape
        with pytest.raises(ProtocolError, match="snapshot cannot be used"):
            take_over(
                RunState(spec, run.aggregator.plan, Replica(spec)), snapshot[:head] + safetensors.torch.save(changed)
            )


def test_a_checkpoint_of_another_run_is_refused_and_a_torn_one_passed_over(tmp_path: Path, site_data: Data) -> None:
    spec = run_spec(method={"name": "rank-dad", "rank": 2})
    run = Run(spec, site_data(spec), tmp_path)
    run.go(lambda message: None)
    kept = sorted((tmp_path / "alpha").iterdir())
    assert len(kept) == 2
    kept[1].write_bytes(kept[1].read_bytes()[:200])
    run_state = RunState(spec, run.aggregator.plan, Replica(spec))
    loaded = Checkpoints(tmp_path / "alpha", run.aggregator.plan, "alpha").load(run_state)
    assert loaded is not None
    places = loaded_state("alpha", run_state, loaded).places
    assert places[-1].steps > 0, "what has been sent near some weights counts after a restart, too"
    assert all(place.sketch.shape == run_state.replica.sketch().shape for place in places)
    assert run_state.round == int(kept[0].name[:12]) > 0
    assert run_state.roster == run.aggregator.state.roster
    with pytest.raises(UserError) as refused:
        Checkpoints(tmp_path / "alpha", run.aggregator.plan, "beta").load(run_state)
    assert refused.value.code == "checkpoint-of-another-run"
    assert Checkpoints(tmp_path / "nowhere", run.aggregator.plan, "alpha").load(run_state) is None


@pytest.mark.parametrize("retention", list(Retention))
def test_a_site_that_lost_its_disk_goes_on_without_residuals_and_the_ledger_says_so(
    tmp_path: Path, site_data: Data, retention: Retention
) -> None:
    spec = run_spec(method={"name": "rank-dad", "rank": 1}, training={"epochs": 3})
    run = Run(spec, site_data(spec), tmp_path, LedgerOptions(retention=retention, every=EVERY))

    def crash(message: int) -> str | None:
        if message == 50:
            shutil.rmtree(tmp_path / "beta")
            return "beta"
        return "aggregator" if message == 53 else None

    digest = run.go(crash)
    (reset,) = run.aggregator.recorder.progress.resets
    assert reset["site"] == "beta"
    assert 10 <= reset["round"] < 20
    assert export(tmp_path / "run", None, tmp_path / "replayed").replica.digest() == digest
    (notice,) = run.sites["beta"].notices
    assert "beta: has lost its checkpoints; continues" in notice
    assert notice.endswith("takes over weights that it cannot compare with its own")


@pytest.mark.parametrize(
    ("accepts", "lost", "sentence"),
    [
        (0, True, r'\(accept_replica 0\); "accept_replica": 0.001 in its policy accepts'),
        (1e-3, False, r'no longer covers .* within 0.001 of its own \(accept_replica\); "accept_replica": null in its'),
    ],
    ids=["none left", "its own are said to be too old"],
)
def test_a_site_goes_on_from_the_aggregators_weights_only_as_its_policy_says(
    tmp_path: Path,
    site_data: Data,
    accepts: float,
    lost: bool,
    sentence: str,
) -> None:
    spec = run_spec(method={"name": "rank-dad", "rank": 1}, training={"epochs": 3})
    run = Run(spec, site_data(spec), tmp_path)
    run.sites["beta"].policy = Policy(accept_replica=accepts)

    def crash(message: int) -> str | None:
        if message != 50:
            return None
        if lost:
            shutil.rmtree(tmp_path / "beta")
        run.aggregator.status = replace(run.aggregator.status, oldest=10**9)
        return "beta"

    with pytest.raises(PolicyError, match=sentence):
        run.go(crash)
    run.aggregator.abandon()
    assert (tmp_path / "beta").exists() is not lost


def test_the_last_checkpoint_lost_too_is_said(tmp_path: Path, site_data: Data) -> None:
    spec = run_spec(method={"name": "rank-dad", "rank": 2}, training={"epochs": 3})
    run = Run(spec, site_data(spec), tmp_path)
    run.go(lambda message: None)
    shutil.rmtree(tmp_path / "run" / "checkpoints")
    with pytest.raises(UserError, match="no checkpoint is readable"):
        Aggregator(spec, Replica(spec), tmp_path / "run", time.perf_counter, ledger=LEDGER_OPTIONS)


def test_a_site_that_loses_its_state_while_a_round_is_aggregated_is_reset_for_the_next(
    tmp_path: Path, site_data: Data
) -> None:
    spec = run_spec(method={"name": "rank-dad", "rank": 2}, training={"epochs": 2, "batch_size": 12})
    run = Run(spec, site_data(spec), tmp_path)
    make = run.aggregator.source.make
    lost: list[int] = []

    def lose(here: Collected) -> Any:
        if not lost and run.aggregator.snapshot("beta") is not None:
            lost.append(here.ready.round)
        return make(here)

    run.aggregator.source.make = lose  # type: ignore[method-assign]
    run.go(lambda message: "aggregator" if message % 5 == 0 and lost else None)
    assert [reset["round"] for reset in run.aggregator.recorder.progress.resets] == [lost[0] + 1]


def test_a_site_that_comes_back_with_other_data_is_refused_by_itself(tmp_path: Path, site_data: Data) -> None:
    spec = run_spec(method={"name": "rank-dad", "rank": 2}, training={"epochs": 2})
    data = site_data(spec)
    run = Run(spec, data, tmp_path)

    def crash(message: int) -> str | None:
        if message != 20:
            return None
        run.sites["beta"].data = data["alpha"]
        return "beta"

    with contextlib.closing(run.aggregator), pytest.raises(UserError, match="restore the data"):
        run.go(crash)
