"""The schedule of a run: what is due, round by round, is what one would write down by hand."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from rankdad.common.data import SiteData
from rankdad.common.protocol.messages import Kind
from rankdad.common.rounds.base import Due
from rankdad.remote.aggregator import Aggregator
from rankdad.simulations import lockstep
from tests.conftest import SITES, run_spec

MODEL = "tests.factories:masked"  # which has buffers


@pytest.mark.slow
def test_every_kind_of_round_is_due_in_its_turn(tmp_path: Path, site_data: Callable[..., dict[str, SiteData]]) -> None:
    spec = run_spec(
        model={"name": "factory", "factory": MODEL},
        method={"name": "powersgd", "rank": 2},
        preparation={"standardise": "federated"},
        evaluation={"name": "k-fold", "folds": 2},
        federation={"sites": list(SITES), "compare_every": 2},
    )
    seen: list[Due | None] = []
    steps: list[int] = []
    expected: list[tuple[object, ...]] = [(Kind.SUMS, 0, 0, 0, stage, None) for stage in ("sums", "squares")]

    def look(aggregator: Aggregator) -> None:
        due = aggregator.state.due
        if not seen or seen[-1] != due:
            seen.append(due)
            steps.append(aggregator.state.replica.steps_per_epoch)

    lockstep.run(spec, site_data(spec, (40, 30, 21)), tmp_path / "run", allowed_factories=[MODEL], on_round=look)
    assert seen.pop() is None
    found = [due for due in seen if due is not None]
    per_epoch = {due.fold: count for due, count in zip(found, steps, strict=False)}
    for fold in range(spec.folds):
        done = 0
        for epoch in range(2):
            for _ in range(per_epoch[fold]):
                expected += [(Kind.COMPARISON, 0, fold, epoch, None, None)] * (done > 0 and done % 2 == 0)
                expected += [(Kind.STEP, exchange, fold, epoch, None, None) for exchange in range(2)]
                done += 1
            expected.append((Kind.BUFFERS, 0, fold, epoch, None, None))
            expected.append((Kind.EVALUATION, 0, fold, epoch, None, "validation"))
            expected.append((Kind.DECISION, 0, fold, epoch, None, None))
        best = next(due.epoch for due in found if due.split == "test" and due.fold == fold)
        expected.append((Kind.EVALUATION, 0, fold, best, None, "test"))
    *rounds, last = found
    assert [(due.kind, due.exchange, due.fold, due.epoch, due.stage, due.split) for due in rounds] == expected
    assert last.kind is Kind.GOODBYE
    assert [due.round for due in found] == list(range(1, len(found) + 1))
