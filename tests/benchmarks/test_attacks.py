"""Attack programs find single patients where there are no rules, and nobody where there are."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from torch import Tensor

from benchmarks.privacy import differences
from benchmarks.privacy.bench import ATTACKS, attacked
from benchmarks.privacy.hospitals import NO_RULES, RULES, SITES, Refused, Seen, run_sites
from benchmarks.privacy.inversion import COLUMNS, Case, invert, specified
from benchmarks.privacy.judge import Claim, judge
from benchmarks.privacy.least_squares import logistic
from benchmarks.privacy.memberships import PATIENTS, Feint, attack, specification
from benchmarks.privacy.tables import patients
from benchmarks.privacy.units import told
from rankdad.common.documents import validate
from rankdad.common.policy import Policy
from rankdad.common.rounds.step import Step
from rankdad.common.spec import RunSpec
from rankdad.local.passes import Passes
from rankdad.local.privacy.log import DisclosureLog

pytestmark = pytest.mark.slow

COUNT = 90


def admit(folder: Path, counts: dict[str, int], columns: int = COLUMNS) -> dict[str, NDArray[np.float64]]:
    """Write hospitals of so many patients each, every second one of whom is ill; return their rows."""
    rows = {}
    for site, count in counts.items():
        rows[site] = np.random.default_rng(len(site)).normal(size=(count, columns))
        (folder / site / "data").mkdir(parents=True, exist_ok=True)
        np.savez(folder / site / "data" / "data.npz", x=rows[site], y=np.arange(count) % 2)
    return rows


@pytest.mark.parametrize("attack", ATTACKS)
def test_an_attack_finds_cells_without_the_rules_and_none_under_them(attack: str) -> None:
    assert attacked(ATTACKS[attack], COUNT, NO_RULES).right > 0
    assert attacked(ATTACKS[attack], COUNT, RULES).right == 0


def test_the_judge_counts_what_is_right_and_no_guess_and_rows_without_a_name_by_their_numbers() -> None:
    truth = {"alpha": patients("alpha", 40, 0)}
    name, row = next(iter(truth["alpha"].items()))
    numbers = {column: float(row[column] or 0) for column in ("age", "height")}
    mean = sum(float(own["bmi"] or 0) for own in truth["alpha"].values()) / 40

    def right(patient: str, **values: float) -> int:
        return judge([Claim("alpha", patient, column, value) for column, value in values.items()], truth).right

    assert right(name, **numbers) == right("somebody", **numbers) == 2
    assert right("somebody", age=numbers["age"]) == 0, "one number is nobody's"
    assert right(name, age=numbers["age"] + 1) == 0
    assert right(name, bmi=mean) == 0, "anybody would guess it"


def test_ratios_of_units_tell_rows_without_the_rules_and_none_under_them() -> None:
    """More units than half the samples tell rows by differences of two: such a layer is not sent whole."""
    found = told(16, 32, 100)
    assert found.alone > 0.2
    assert found.limited == found.pairs == found.reduced == 0
    assert told(64, 32, 20).pairs > 1


@pytest.mark.parametrize(
    ("steps", "patients", "policy", "cells", "refused"),
    [
        (60, 8, NO_RULES, 8 * COLUMNS, ""),
        (60, 40, RULES, 0, ""),
        (60, 8, RULES, 0, "steps-of-all-repeated"),  # a hospital of a single batch, step after step
        (2, 8, RULES, 0, ""),  # 24 numbers of 64 cells: of eight rows, seven columns tell the others
    ],
)
def test_batches_are_solved_from_whole_gradients_without_the_rules_alone(
    steps: int, patients: int, policy: Policy, cells: int, refused: str
) -> None:
    found = invert(Case("logistic", None, 8, steps, patients, policy), restarts=3)
    assert (found.cells, found.refused) == (cells, refused)


@pytest.mark.exhaustive
@pytest.mark.parametrize("rate", [1e-40, 1e-8])
def test_batches_at_weights_that_hardly_move_tell_all_rows_without_the_rules_and_are_refused_under_them(
    rate: float,
) -> None:
    free, ruled = (attack("five layers of 3", rate, 160, policy) for policy in (NO_RULES, RULES))
    assert (free.patients, free.rows) == (PATIENTS, PATIENTS)
    assert ruled.refused == "weights-hardly-move"


FEINTS: list[tuple[Feint, float, int]] = [("shift", 1e-10, 160), ("bias", 0.01, 40)]


@pytest.mark.parametrize(("feint", "rate", "rounds"), FEINTS)
def test_batches_at_a_model_that_stays_are_refused_though_its_weights_move(
    feint: Feint, rate: float, rounds: int
) -> None:
    """Programs from outside had all rows of 45 patients, and 75 of 80: what moved could be divided out."""
    assert attack("five layers of 3", rate, 40, RULES, feint=feint).refused == "weights-hardly-move"


@pytest.mark.exhaustive
@pytest.mark.parametrize(("feint", "rate", "rounds"), FEINTS)
def test_weights_alone_do_not_tell_that_a_model_stays(
    monkeypatch: pytest.MonkeyPatch, feint: Feint, rate: float, rounds: int
) -> None:
    monkeypatch.setattr(Passes, "flows", lambda passes: None)
    found = attack("five layers of 3", rate, rounds, RULES, feint=feint)
    assert found.refused == ""
    assert feint == "bias" or found.patients > PATIENTS // 2


@pytest.mark.parametrize(("rate", "runs"), [(0.05, 1), (1e-12, 1), (1e-12, 11)])
def test_no_difference_of_a_units_sums_is_one_patients(rate: float, runs: int) -> None:
    """With a seed that an owner has chosen, and both hospitals honest: 4 and 10 rows of 45 in a run, before."""
    assert differences.attack([10], "relu", 28608, rate, RULES, runs).rows == 0
    assert differences.attack([10], "relu", 28608, rate, NO_RULES).rows > 0


@pytest.mark.parametrize(("model", "code"), [({}, "columns-of-too-few"), ({"activation": "tanh"}, "")])
def test_columns_count_more_where_units_may_say_nothing(tmp_path: Path, model: dict[str, Any], code: str) -> None:
    """Of a unit that answers to as many patients as there are columns: 22 of 45 rows while weights moved by 82 %."""
    admit(tmp_path, dict.fromkeys(SITES, 45), 20)
    document = specification("one layer of 16", 0.003, 24, None, 0)
    document["model"] = {"name": "mlp", "hidden": [2], **model}
    document["data"]["shape"] = [20]
    document["training"] |= {"batch_size": 9, "optimizer": {"name": "adam", "lr": 0.003}}
    seen = run_sites(validate(RunSpec, document), tmp_path, RULES)
    assert (seen.code if isinstance(seen, Refused) else "") == code


def test_rounds_of_local_steps_at_weights_that_hardly_move_are_refused(tmp_path: Path) -> None:
    """By momentum a round weighs the second batch more than the first: of 700 a program had all 45 rows."""
    admit(tmp_path, dict.fromkeys(SITES, PATIENTS))
    document = specification("five layers of 3", 3e-7, 30, None, 0)
    document["training"] |= {"batch_size": 23, "optimizer": {"name": "sgd", "lr": 3e-7, "momentum": 0.9}}
    document["method"] |= {"local_steps": "epoch", "moments": "reset", "outer": {"name": "average", "lr": 1e-12}}
    seen = run_sites(validate(RunSpec, document), tmp_path, RULES)
    assert isinstance(seen, Refused)
    assert seen.code == "weights-hardly-move"


@pytest.mark.parametrize(("begins", "right"), [("once", True), ("again", False)])
def test_two_runs_of_a_specification_tell_a_patient_only_where_their_batches_are_the_same(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, begins: str, right: bool
) -> None:
    """In between another hospital has grown: the first batch of 80 patients had 16 of them, then one more."""
    if begins == "once":
        monkeypatch.setattr(DisclosureLog, "beginning", lambda log, run, spec: 0)
    rows, sent = admit(tmp_path, {SITES[0]: 80})[SITES[0]], list[list[Tensor]]()
    spec = specification("one layer of 16", 0.1, 1, None, 0)
    spec |= {"model": {"name": "mlp", "hidden": [8], "activation": "tanh"}}
    spec["training"] |= {"batch_size": 17}
    for count in (80, 100):
        admit(tmp_path, {SITES[1]: count})
        shutil.rmtree(tmp_path / SITES[1] / "privacy", ignore_errors=True)  # it is the attacker's
        seen = run_sites(validate(RunSpec, spec), tmp_path, RULES, f"run-{count}")
        assert isinstance(seen, Seen)
        step = next(own.body for own in seen.up[SITES[0]] if isinstance(own.body, Step))
        sent.append([value.double() for value in step.payload if isinstance(value, Tensor)])
    weight, bias, *_ = (17 * more - 16 * fewer for fewer, more in zip(*sent, strict=True))
    bias = bias.flatten()
    unit = int(bias.abs().argmax())
    claimed = weight[unit] / bias[unit]
    assert (float((torch.from_numpy(rows) - claimed).abs().amax(1).min()) < 0.01) == right


def test_an_attacker_knows_the_weights_at_which_a_message_was_made(tmp_path: Path) -> None:
    """They had been those of a later one: a program that solves gradients at other weights finds nobody."""
    rows, labels = admit(tmp_path, dict.fromkeys(SITES, 8)), np.arange(8) % 2
    seen = run_sites(validate(RunSpec, specified(Case("logistic", None, 8, 5, 8, NO_RULES))), tmp_path, NO_RULES)
    assert isinstance(seen, Seen)
    steps = [place for place, message in enumerate(seen.up["alpha"]) if isinstance(message.body, Step)]
    assert len(steps) == 5
    assert len(seen.before) == len(seen.up["alpha"])
    for place in steps:
        body, weights = seen.up["alpha"][place].body, seen.before[place]
        assert isinstance(body, Step)
        weights = {name: value.double()[None] for name, value in weights.items()}
        found = logistic(weights, torch.tensor(rows["alpha"]), torch.tensor(labels).double())
        sent = body.payload[0]
        assert isinstance(sent, Tensor)
        torch.testing.assert_close(sent.double().flatten(), found["1.weight"].flatten(), rtol=1e-9, atol=1e-12)


def test_runs_with_one_seed_begin_at_the_same_weights_and_their_batches_add_up(tmp_path: Path) -> None:
    """Each sent fewer than half as many as there are patients: twelve of them had told all rows."""
    admit(tmp_path, dict.fromkeys(SITES, 45), 9)
    outcomes = list[str]()
    for number, seed in enumerate((0, 0, 1, 0)):
        spec = validate(RunSpec, specification("five layers of 3", 1e-40, 3, None, seed) | {"name": f"run-{number}"})
        seen = run_sites(spec, tmp_path, RULES, f"{number:016x}")
        outcomes.append("" if isinstance(seen, Seen) else seen.code)
    assert outcomes == ["", "weights-hardly-move", "", "weights-hardly-move"]
