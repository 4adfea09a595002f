"""What a run takes on the aggregator's disk: the tail is enough to recover, and no more than was predicted is taken."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from rankdad.common.errors import UserError
from rankdad.remote.export import export
from rankdad.remote.persistence import LedgerOptions
from rankdad.remote.records import Retention
from rankdad.remote.run_reader import FILE, reading
from rankdad.simulations.footprint import footprint
from tests.conftest import SITES, run_spec, sampled
from tests.simulations.recovering import EVERY, METHODS, NAMES, Data, Run, size_of, whole


@pytest.mark.slow
def test_the_tail_alone_is_enough_to_recover_and_has_a_bound(tmp_path: Path, site_data: Data) -> None:
    spec = run_spec(method={"name": "powersgd", "rank": 1}, training={"epochs": 4})
    data = site_data(spec)
    undisturbed = Run(spec, data, tmp_path / "undisturbed").go(lambda message: None)
    victims = ["aggregator", *SITES]
    run = Run(spec, data, tmp_path, LedgerOptions(retention=Retention.TAIL, every=EVERY))
    assert run.go(lambda message: victims[message // 13 % 4] if message % 13 == 0 else None) == undisturbed
    with reading(tmp_path / "run") as file:
        assert file.end - file.oldest < 3 * (EVERY + 3), "of two checkpoints, and until the next"
    steps = run.aggregator.recorder.progress.step
    assert export(tmp_path / "run", steps - 1, tmp_path / "exported").steps == steps - 1
    with pytest.raises(UserError, match="keeps only the last checkpoints"):
        export(tmp_path / "run", 2, tmp_path / "exported")


@pytest.mark.slow
def test_candidates_take_no_more_disk_than_was_predicted(tmp_path: Path, site_data: Data) -> None:
    training = {"epochs": 2, "validation": 0.3}
    tuning = {"weight_decay": [0.0, 0.1, 0.5, 1.0]}
    spec = run_spec(evaluation={"name": "k-fold", "folds": 2}, training=training, tuning=tuning)
    run = Run(spec, site_data(spec), tmp_path)
    run.go(lambda message: None)
    most, steps = footprint(run.aggregator.plan, EVERY), run.aggregator.recorder.progress.step
    ledger, checkpoints = (size_of(tmp_path / "run" / name) for name in (FILE, "checkpoints"))
    assert checkpoints <= 2 * most.checkpoint
    assert ledger <= whole(most, steps, 2 * spec.folds)


@pytest.mark.slow
@pytest.mark.parametrize("method", sampled([*METHODS, {"name": "dsgd"}], 2), ids=[*NAMES, "dsgd"])
@pytest.mark.parametrize("retention", list(Retention))
def test_a_run_takes_no_more_disk_than_was_predicted(
    tmp_path: Path, site_data: Data, method: dict[str, Any], retention: Retention
) -> None:
    """And not much less: contributions of three times EVERY steps, the updates of all or of as many."""
    spec = run_spec(method=method, training={"epochs": 3}, federation={"sites": list(SITES), "compare_every": 0})
    run = Run(spec, site_data(spec), tmp_path, LedgerOptions(retention=retention, every=EVERY))
    run.go(lambda message: None)
    most, steps = footprint(run.aggregator.plan, EVERY), run.aggregator.recorder.progress.step
    ledger, checkpoints = (size_of(tmp_path / "run" / name) for name in (FILE, "checkpoints"))
    assert checkpoints <= 2 * most.checkpoint
    if retention is Retention.ALL:
        assert 0.3 * whole(most, steps, 3) < ledger <= whole(most, steps, 3)
    else:
        assert ledger + checkpoints <= most.tail(epochs=2)
