"""What members' tables make of a form: steps, ranks, values that are written in several ways, the outcome."""

from __future__ import annotations

import math
from itertools import permutations
from typing import Any

import pytest

from rankdad.common.data.levels import ordered, respelled
from rankdad.common.models import build_model
from rankdad.common.protocol.plan import make_plan
from rankdad.common.spec import RunSpec
from rankdad.platforms.coinstac.completion import check_opened, complete, complete_alone
from rankdad.platforms.coinstac.form import FormError
from rankdad.platforms.coinstac.inputs import read
from tests.platforms.test_form import OWNER, SITES, profile, run_of

SIZES = (640, 210, 24)


def form_error(inputs: dict[str, Any], *profiles: Any) -> FormError:
    with pytest.raises(FormError) as raised:
        run_of(inputs, *profiles)
    return raised.value


def steps_of(run: RunSpec, rows: int) -> int:
    """Steps of a fold, at a largest member of so many rows."""
    return run.training.epochs * math.ceil(0.68 * rows / run.training.batch_size)


@pytest.mark.parametrize("network", ["mlp-32", "linear"])
def test_a_small_member_makes_no_fewer_steps(network: str) -> None:
    inputs = OWNER | {"network": network, "patience": 5}
    profiles = [profile(rows=rows) for rows in SIZES]
    alone, together = run_of(inputs, *profiles[:2]), run_of(inputs, *profiles)
    assert together.training.batch_size > 400, "so that 24 rows give enough of them to a step"
    wanted = 40 * math.ceil(0.68 * 640 / 32)
    assert wanted <= steps_of(together, 640) <= steps_of(alone, 640) < 1.1 * wanted
    assert together.training.early_stopping is not None
    assert together.training.early_stopping.patience * 40 == 5 * together.training.epochs
    _, warnings = complete(read(inputs), dict(zip(SITES, profiles, strict=True)), SITES)
    assert any(line.startswith("c ") and str(together.training.epochs) in line for line in warnings)
    _, warnings = complete(read(inputs), dict(zip(SITES, profiles[:2], strict=False)), SITES[:2])
    assert not warnings, "a few more epochs are worth no word"


def test_a_batch_size_of_the_owners_own_leaves_epochs_alone() -> None:
    run = run_of(OWNER | {"batch_size": 16.0, "epochs": 7}, *(profile(rows=rows) for rows in SIZES))
    assert (run.training.batch_size, run.training.epochs) == (16, 7)


def test_a_member_refuses_more_epochs_than_steps_of_that_size_may_make() -> None:
    filled, own = read(OWNER), profile(rows=24)
    run = run_of(OWNER, profile(rows=640), own)
    check_opened(filled, own, run)
    longer = run.training.model_copy(update={"epochs": 40 * math.ceil(run.training.batch_size / 32) + 1})
    with pytest.raises(Exception, match="training differ"):
        check_opened(filled, own, run.model_copy(update={"training": longer}))


def test_rate_and_patience_are_the_owners() -> None:
    run = run_of(OWNER | {"learning_rate": 0.01, "patience": 3.0}, profile(), profile())
    assert run.training.optimizer.lr == 0.01
    assert run.training.early_stopping is not None
    for given in (0, -1, 2, "fast", True, float("nan")):
        (problem,) = read(OWNER | {"learning_rate": given}).problems
        assert problem.field == "learning_rate"


@pytest.mark.parametrize("method", ["rank-dad", "powersgd"])
@pytest.mark.parametrize(
    ("columns", "network"), [(("age", "bmi"), "linear"), (("age",), "mlp-32"), (("age", "bmi"), "mlp-64-32")]
)
def test_the_forms_own_rank_suits_every_network(columns: tuple[str, ...], network: str, method: str) -> None:
    inputs = {"label": "height", "task": "regression", "network": network, "method": method, "rank": 50}
    run = run_of(inputs, *[profile(columns=columns, levels={})] * 2)
    make_plan(run, build_model(run))
    assert run.method.rank == {"linear": 1, "mlp-32": 1, "mlp-64-32": 32}[network]  # type: ignore[attr-defined]


def test_the_order_of_values_does_not_depend_on_how_they_come() -> None:
    """A set has another order in every process."""
    assert len({tuple(ordered(values)) for values in permutations(["case", "Case", "CASE", "1", "1.0", "01"])}) == 1


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("Case", "case"),
        ("FALSE", "False"),
        ("stage II", "stage  II"),
        ("non-smoker", "Non smoker"),
        ("left_handed", "left handed"),
        ("case", "case\u200b"),
        ("Ⅱ", "II"),
    ],
)
def test_values_that_differ_in_how_they_are_written_are_found(one: str, other: str) -> None:
    assert respelled({one, other, "else"}) == [ordered([one, other])]


@pytest.mark.parametrize("values", [("-1", "1"), ("A+", "A-"), ("1", "10"), ("benign", "malignant"), ("I", "II")])
def test_other_values_are_not(values: tuple[str, str]) -> None:
    assert respelled(values) == []


@pytest.mark.parametrize("field", ["label", "categorical"])
def test_one_value_written_in_two_ways_is_refused_with_column_and_members(field: str) -> None:
    ways = [("control", "Case"), ("control", "case"), ("control", "case")]
    levels = [{"group": own, "diagnosis": ("a", "b")} for own in ways]
    inputs = {"label": "group"} if field == "label" else OWNER | {"categorical": "group"}
    error = form_error(inputs, *(profile(levels=own) for own in levels))
    assert (error.code, error.field) == ("values-spelled-apart", field)
    (problem,) = error.problems
    for words in ("column group", "'Case' (a)", "'case' (b, c)"):
        assert words in problem.text
    assert run_of(inputs, *[profile(levels=levels[0])] * 2), "alike at all members"
    named = {name: text.replace("group", "group = control | Case") for name, text in inputs.items()}
    assert run_of(named, *[profile(levels=levels[0])] * 2), "the owner has the last word"


def test_numbers_that_are_equal_are_one_value(tmp_path: Any) -> None:
    from rankdad.platforms.coinstac.table_profile import describe

    found = []
    for name, texts in (("a", "0 1"), ("b", "0.0 1.0"), ("c", "00 01")):
        path = tmp_path / f"{name}.csv"
        path.write_text("age,case\n" + "".join(f"{row},{text}\n" for row in range(20) for text in texts.split()))
        found.append(describe(read({"label": "case"}), path, 8).public)
    run = run_of({"label": "case"}, *found)
    assert run.data.values == ("0", "1")  # type: ignore[union-attr]


@pytest.mark.parametrize(
    ("values", "positive", "outcome"),
    [
        (("case", "control"), "", "case"),
        (("Healthy", "ADHD"), "", "ADHD"),
        (("no", "yes"), "", "yes"),
        (("affected", "unaffected"), "", "affected"),
        (("no diabetes", "diabetes"), "", "diabetes"),
        (("smoker", "non-smoker"), "", "smoker"),
        (("0", "1"), "", "1"),
        (("benign", "malignant"), "benign", "benign"),
        (("F", "M"), "f", "F"),
        (("F", "M"), "", "M"),
    ],
)
def test_the_outcome_is_what_is_named_or_what_is_no_control(
    values: tuple[str, str], positive: str, outcome: str
) -> None:
    own = profile(levels={"diagnosis": tuple(ordered(values))})
    filled = read(OWNER | {"positive": positive})
    spec, warnings = complete(filled, {"a": own, "b": own}, ["a", "b"])
    assert spec.data.values[-1] == outcome  # type: ignore[union-attr]
    assert any("the outcome is" in line for line in warnings) == (values == ("F", "M") and not positive)
    check_opened(filled, own, spec)
    one = profile(levels={"diagnosis": (values[0],)})
    assert complete_alone(filled, one, ["a", "b"]), "others may have the outcome"


@pytest.mark.parametrize(
    ("levels", "positive", "code"),
    [(("a", "b"), "c", "outcome-unknown"), (("a", "b", "c"), "a", "outcome-of-several")],
)
def test_an_outcome_that_is_none_is_refused(levels: tuple[str, ...], positive: str, code: str) -> None:
    own = profile(levels={"diagnosis": levels})
    error = form_error(OWNER | {"positive": positive}, own, own)
    assert (error.code, error.field) == (code, "positive")


def test_members_without_a_column_in_common_are_named() -> None:
    error = form_error(OWNER, profile(columns=("x", "y")), profile(columns=()))
    assert (error.code, error.field) == ("no-common-column", "features")
    assert "a has x, y; b has none" in str(error)
