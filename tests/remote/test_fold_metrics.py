"""A study of several folds: what its figures are of, and that it goes on from its own JSON."""

from __future__ import annotations

import json

import pytest
import torch

from rankdad.common.metrics import Tally, empty, summarise
from rankdad.common.spec.tasks import TaskSpec
from rankdad.remote.fold_metrics import FoldMetrics
from tests.common.metrics.samples import TASKS, draw, pooled, tallied

SITES = ("alpha", "beta", "gamma")


def tallies(task: TaskSpec, fold: int, sizes: tuple[int, ...] = (40, 30, 20)) -> dict[str, Tally]:
    return {
        site: tallied(task, *draw(task, size, 10 * fold + place))
        for place, (site, size) in enumerate(zip(SITES, sizes, strict=True))
    }


@pytest.mark.parametrize("task", TASKS, ids=lambda task: task.name)
def test_figures_are_of_all_folds_and_go_on_from_json(task: TaskSpec) -> None:
    study, again = FoldMetrics(task, SITES), FoldMetrics(task, SITES)
    assert study.summary() == {}
    study.add(tallies(task, 0), tallies(task, 5))
    again.restore(json.loads(json.dumps(study.state())))
    for one in (study, again):
        one.add(tallies(task, 1), tallies(task, 6))
    assert json.dumps(again.state()) == json.dumps(study.state())
    assert again.summary() == study.summary()
    assert again.by_site() == study.by_site()
    json.dumps(study.summary(), allow_nan=False)

    found = study.pooled
    assert found is not None
    assert found.samples == 2 * 90
    assert study.summary()["folds"]["loss"]["mean"] == pytest.approx(found.values["loss"])
    for site, row in zip(SITES, study.by_site(), strict=True):
        of_both = summarise(task, tallies(task, 0)[site] + tallies(task, 1)[site])
        guessed = summarise(task, tallies(task, 5)[site] + tallies(task, 6)[site])
        assert (row["site"], row["samples"]) == (site, of_both.samples)
        assert {name: row[name] for name in task.metrics} == of_both.values
        assert {name: row[f"baseline_{name}"] for name in task.metrics} == guessed.values


def test_sums_of_folds_may_be_beyond_what_one_tally_has_on_the_wire() -> None:
    task = TASKS[0]
    study, again, one = FoldMetrics(task, SITES), FoldMetrics(task, SITES), tallied(task, *draw(task, 40, 0))
    large = Tally(one.counts * 2**25, torch.full_like(one.sums, 9e299))
    for _ in range(2):
        study.add(dict.fromkeys(SITES, large), dict.fromkeys(SITES, large))
    again.restore(json.loads(json.dumps(study.state())))
    assert again.state() == study.state()


def test_all_samples_are_pooled_as_if_they_were_of_one_site() -> None:
    task = TASKS[1]
    outputs, labels = draw(task, 90, 0)
    study, parts = FoldMetrics(task, SITES), zip(SITES, outputs.split(30), labels.split(30), strict=True)
    for site, x, y in parts:  # each fold tests one site
        models = {name: tallied(task, x, y) if name == site else empty(task) for name in SITES}
        study.add(models, models)
    assert study.pooled is not None
    assert study.pooled.values == pytest.approx(summarise(task, pooled(task, outputs, labels, [90])).values)
    assert study.summary()["baseline"] == study.pooled.values


def test_a_fold_that_tests_nothing_and_a_site_that_is_away_are_no_figures() -> None:
    task = TASKS[1]
    study = FoldMetrics(task, SITES)
    study.add({site: empty(task) for site in SITES}, {})
    assert study.summary() == {}
    first = {"alpha": tallies(task, 0)["alpha"]}
    study.add(first, first)
    study.add({site: empty(task) for site in SITES}, {})
    assert study.summary()["folds"]["loss"]["sd"] is None, "there is one fold"
    assert [row["samples"] for row in study.by_site()] == [40, 0, 0]
    assert study.by_site()[1]["loss"] is None
