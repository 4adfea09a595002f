"""The adversary of disclosure control: a short look, and what it has found."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from rich.console import Console

from benchmarks.privacy.adversary import OFF, RULES, STRICT, Outcome, analysed, bench_adversary, held, sequence
from benchmarks.privacy.adversary_runs import Run, attend
from benchmarks.privacy.adversary_specs import FILES, LEVELS, OTHER, VICTIM, Hospital
from benchmarks.privacy.adversary_sums import Finding, Sum, atoms, subtracted, told_by_cells, told_of_few
from rankdad.common.policy import Policy
from rankdad.common.rounds.evaluation import Evaluation
from tests.conftest import run_spec

ONE = {"name": "classification", "classes": 2}


def asked(tmp_path: Path, policy: Policy, patients: int, other: int, *changes: dict[str, Any]) -> list[Run]:
    """Return runs of a table of patients, one after the other."""
    folders = {name: tmp_path / name / "data" for name in (VICTIM, OTHER)}
    for number, (name, count) in enumerate(((VICTIM, patients), (OTHER, other))):
        Hospital(folders[name], np.random.default_rng(number), gaps=False).admit(count)
    data: dict[str, Any] = {"reader": "csv", "file": FILES, "key": "id", "features": ["age", "pressure", "sex"]}
    data |= {"categorical": {"sex": LEVELS["sex"]}, "label": "rankin", "values": ["no", "yes"], "positive": "> 2"}
    alike = {"task": ONE, "model": {"name": "linear"}, "data": data, "federation": {"sites": [VICTIM, OTHER]}}
    specs = [run_spec(**alike | own) for own in changes]
    return [
        attend(spec, folders, tmp_path, policy, f"run-{number}", tmp_path / "weights")
        for number, spec in enumerate(specs)
    ]


def below(runs: list[Run]) -> list[Finding]:
    """Return what is found of sets below a part; cells of histograms and levels aside."""
    found = analysed(runs, np.random.default_rng(0), RULES.min_rows)
    return [one for one in found if one.level is None and not one.source.startswith("cells")]


def test_subtracting_sums_finds_the_smallest_set_that_they_tell_of() -> None:
    """Whole and two halves but one, as of a refit and folds: a + b − whole is not a set, whole − a − b is one."""
    whole = frozenset("abcdefghij")
    sums = [Sum("x", own, 0) for own in (whole, frozenset("abcde"), frozenset("fghi"))]
    assert subtracted(sums, np.random.default_rng(0))[0] == {"j"}
    assert min(map(len, atoms([one.behind for one in sums]))) == 1


SEEDS = [
    {"evaluation": {"name": "k-fold", "folds": 2, "seed": seed}, "training": {"epochs": 1, "batch_size": 200}}
    for seed in range(2)
]


@pytest.mark.slow
@pytest.mark.parametrize("off", [False, True])
def test_seeds_tell_of_a_few_patients_without_rules_alone(tmp_path: Path, off: bool) -> None:
    found = below(asked(tmp_path, OFF if off else RULES, 60, 30, *SEEDS))
    assert (min((len(one.patients) for one in found), default=8) <= 2) == off
    assert bool(found) == off


@pytest.mark.exhaustive
@pytest.mark.parametrize("policy", [STRICT, OFF])
def test_a_short_look(policy: Policy) -> None:
    """Two minutes of it: `python -m benchmarks adversary --seconds 120`, with --strict and --off."""
    found = bench_adversary(policy, 30, 15, 0, Console(quiet=True))
    assert found.runs > 2
    assert {"splits", "sums of rows", "sums of products"}.isdisjoint(found.below) == (policy is STRICT)
    assert sum(counts["part"] for counts in found.levels.values()) == 0 or policy is OFF


def test_rules_hold_if_nothing_is_found_and_their_absence_if_somebody_is() -> None:
    nothing, found = Outcome(), Outcome()
    found.note([Finding("splits", frozenset({"P1"}))], 1.0, 0)
    of_part = Outcome()
    of_part.note([Finding("part", frozenset({"P1"}), "linear", "stage=V")], 1.0, 0)
    assert [held(RULES, one) for one in (nothing, found, of_part)] == [True, False, True]
    assert [held(STRICT, one) for one in (nothing, found, of_part)] == [True, False, False]
    assert [held(OFF, one) for one in (nothing, found, of_part)] == [False, True, False]
    curve = {-3: 1450, -2: 1528, -1: 1642, 1: 1582, 2: 1503, 3: 1475}
    assert [held(RULES, Outcome(cells=Counter(curve | {0: right}))) for right in (1701, 1950)] == [True, False]


@pytest.mark.slow
def test_a_batch_and_a_step_of_all_differ_by_no_fewer_than_a_part_has(tmp_path: Path) -> None:
    """One step of all 20, at the weights with which another run begins with a batch of half of them."""
    training = {"epochs": 1, "batches": "even", "validation": 0.0, "solver": "steps"}
    changes = [
        {"evaluation": {"name": "holdout"}, "training": training | {"test": 0.1, "batch_size": size}}
        for size in (200, 16)
    ]
    assert not [one for one in below(asked(tmp_path, RULES, 20, 60, *changes)) if "batches" in one.source]
    found = below(asked(tmp_path / "off", OFF, 14, 60, *changes))
    assert min(len(one.patients) for one in found if "batches" in one.source) < 8


@pytest.mark.exhaustive
def test_a_large_learning_rate_makes_no_step_of_one_patient() -> None:
    """At a rate of 10 one patient on the wrong side is a step's whole gradient: divided by its bias's it is the row.

    The third run of the sequence: a linear model of three classes, raw ages, batches of 32, rank-dad of two rows.
    """
    rng, any_weights = np.random.default_rng([1, 26]), RULES.model_copy(update={"pretrained": None})
    found = sequence(any_weights, rng, Outcome(), int(rng.integers(1, 7)))
    assert [one.patients for one in found if one.source == "rows of gradients"] == []


@pytest.mark.slow
def test_what_is_moved_in_one_run_alone_does_not_differ_by_few() -> None:
    """Beyond `clip` 60 a part has three patients in one run, and two in another: these are moved to the next age."""
    rng = np.random.default_rng([0, 33])
    found = sequence(STRICT, rng, Outcome(), int(rng.integers(1, 7)))
    assert [one.patients for one in found if one.source.startswith("values")] == []


HOLDOUT = {"evaluation": {"name": "holdout"}, "training": {"epochs": 3, "batch_size": 32, "solver": "steps"}}


@pytest.mark.exhaustive
@pytest.mark.slow
def test_between_epochs_no_number_is_of_a_score_and_cells_of_a_test_are_nobodys(tmp_path: Path) -> None:
    """Of two classes five numbers leave for each epoch: they were 2,000 cells of one patient or none."""
    (run,) = asked(tmp_path, RULES, 60, 30, HOLDOUT)
    sent = [heard.body for heard in run.heard if isinstance(heard.body, Evaluation)]
    validated = [body.tally for body in sent if body.split == "validation"]
    assert validated
    assert {(len(one.counts), len(one.sums)) for one in validated} == {(2, 3)}
    assert run.tests
    assert list(told_by_cells(run)) == []
    exact = replace(run, tests=tuple((true, true) for _, true in run.tests))
    assert list(told_by_cells(exact)), "the judge sees exact scores"


@pytest.mark.parametrize(
    ("sets", "few"),
    [
        (["abcdefgh", "abcdefg", "ijklmnopq"], ["abcdefg", "h"]),
        (["abcdefgh", "bcdefghijklmnopqr"], []),  # the first differs from the others, of whom nothing else is known
        (["abcdefghABCDEFGH", "bcdefghijklmnopqrs", "ABCDEFGH"], []),  # a and the other seven are 8 together
        (["abcdABCDEFGH", "bcdeABCDEFGH", "ABCDEFGH"], ["a", "bcd", "e"]),  # together 4
    ],
)
def test_what_sums_tell_together_of_a_part_is_not_below_it(sets: list[str], few: list[str]) -> None:
    found = told_of_few([frozenset(one) for one in sets], 8)
    assert sorted("".join(sorted(one)) for one in found) == few  # type: ignore[arg-type]
