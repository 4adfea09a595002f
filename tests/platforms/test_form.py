"""From fields to a run: what each field reads, what tables fill in, and what is said of wrong ones."""

from __future__ import annotations

import contextlib
from itertools import permutations
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rankdad.common.data.identifiers import names_patients
from rankdad.common.data.levels import ordered
from rankdad.common.spec import RunSpec
from rankdad.platforms.coinstac.completion import complete, complete_alone
from rankdad.platforms.coinstac.fields import FIELDS, shown
from rankdad.platforms.coinstac.form import FormError, columns
from rankdad.platforms.coinstac.inputs import read
from rankdad.platforms.coinstac.mounts import find_member
from rankdad.platforms.coinstac.table_profile import Profile, describe

OWNER = {"label": "diagnosis"}
SITES = ["a", "b", "c"]


def profile(**changes: Any) -> Profile:
    usual: dict[str, Any] = {"rows": 100, "min_rows": 8, "columns": ("age", "bmi")}
    return Profile(**usual | {"levels": {"diagnosis": ("benign", "malignant")}} | changes)


def run_of(inputs: dict[str, Any], *profiles: Profile) -> RunSpec:
    sites = SITES[: len(profiles)]
    return complete(read(inputs), dict(zip(sites, profiles, strict=True)), sites)[0]


def refusals(inputs: dict[str, Any], *profiles: Profile) -> list[str]:
    with pytest.raises(FormError) as raised:
        run_of(inputs, *profiles)
    return [problem.text for problem in raised.value.problems]


def test_the_label_alone_makes_a_run() -> None:
    filled = read(OWNER)
    assert not filled.problems
    spec = run_of(OWNER, profile(), profile(rows=40))
    assert spec.data.features == ("age", "bmi")  # type: ignore[union-attr]
    assert spec.data.values == ("benign", "malignant")  # type: ignore[union-attr]
    assert (spec.preparation.standardise, spec.evaluation.name) == ("federated", "k-fold")


def test_a_form_that_nobody_has_touched_lacks_nothing_but_the_label_and_the_files(tmp_path: Path) -> None:
    untouched = {field.variable: field.default for field in shown(folder=False)}
    filled = read(untouched)
    assert [problem.text.partition(":")[0] for problem in filled.problems] == ["Column of what is predicted (label)"]
    _, found = find_member(filled, untouched, tmp_path, "c1")
    assert [problem.text for problem in found] == ["Files (files): got no file, expected your table as CSV"]


@pytest.mark.parametrize(
    "field", [field for field in FIELDS.values() if field.choices], ids=lambda field: field.variable
)
def test_every_choice_makes_a_run(field: Any) -> None:
    for choice in field.choices:
        inputs = OWNER | {"label": "age" if choice == "regression" else "diagnosis", field.variable: choice}
        assert run_of(inputs, profile(columns=("bmi",)), profile(columns=("bmi",)))


def test_text_with_commas_becomes_columns() -> None:
    found = columns('age, "dose, mg" , s?, -id, sex = F | M')
    assert found.names == ("age", "dose, mg", "s?", "sex")
    assert found.excluded == ("id",)
    assert found.values == {"sex": ("F", "M")}


@given(st.text())
def test_any_text_is_read_or_refused_in_words(text: str) -> None:
    for field in FIELDS.values():
        with contextlib.suppress(ValueError):
            field.value(text)


def test_every_wrong_field_is_named_at_once() -> None:
    inputs = {
        "task": "guess",
        "label": "a, b",
        "epochs": "many",
        "rank": 0.5,
        "seed": -1,
        "min_rows": None,
        "max_rank": 0,
    }
    said = "\n".join(problem.text for problem in read({**inputs, "epoch": 3}).problems)
    for words in (
        'Task (task): got "guess", expected one of classification, regression',
        'Column of what is predicted (label): got "a, b", expected the name of one column',
        'Epochs (epochs): got "many", expected a whole number of at least 1',
        "Rank (rank): got 0.5, expected a whole number of at least 1",
        "Seed (seed): got -1",
        "Largest rank that leaves (max_rank): got 0, expected a whole number of at least 1",
        "epoch: is not known here: did you mean epochs?",
    ):
        assert words in said


def test_a_whole_specification_wins_over_the_rest() -> None:
    whole = run_of(OWNER, profile(), profile()).model_dump(mode="json")
    filled = read({"spec": whole, "label": "", "epochs": "nonsense"})
    assert not filled.problems
    assert filled.sites == ("a", "b")
    assert read({"spec": {"run": whole, "simulation": {}}}).draft == filled.draft, "a file for simulate does as well"
    wrong = read({"spec": whole | {"seeds": 1} | {"federation": {"quorum": 2, "sites": ["a", "b"]}}})
    said = [problem.text for problem in wrong.problems]
    assert said[0].startswith("Whole specification (spec): federation.quorum: the platform waits")
    late = read({"spec": whole | {"federation": {"staleness": 2, "sites": ["a", "b"]}}})
    (problem,) = late.problems
    assert problem.text.startswith("Whole specification (spec): federation.staleness: the platform waits for every")
    assert said[1].startswith("Whole specification (spec): seeds: is not known here: did you mean seed?")
    (tree,) = read({"spec": whole | {"federation": {"regions": {"north": ["a"]}}}}).problems
    assert tree.text.startswith("Whole specification (spec): federation.regions: the platform has one aggregator")


def test_tables_are_described_without_their_cells(tmp_path: Path) -> None:
    table = pd.DataFrame(
        {
            "PatientID": range(1001, 1041),
            "row": range(40),
            "age": [None, *range(39)],
            "comment": "ok",
            "sex": ["F", "M"] * 20,
            "diagnosis": ["benign"] * 30 + ["malignant"] * 7 + [None] * 3,
        }
    )
    path = tmp_path / "t.csv"
    table.to_csv(path, index=False)
    found = describe(read({"label": "diagnosis", "categorical": "sex"}), path, 8)
    assert found.whole.levels == {"diagnosis": ("benign", "malignant"), "sex": ("F", "M")}
    assert found.public.levels == {"diagnosis": ("benign",), "sex": ("F", "M")}, "too few are malignant to say so"
    assert (found.public.rows, found.public.columns) == (37, ("age",))
    assert len(found.notes) == 3
    named = describe(read({"label": "diagnosis", "features": "*", "categorical": "sex"}), path, 8)
    assert named.public.columns == ("PatientID", "row", "age"), "who writes a pattern gets what it stands for"
    with pytest.raises(FormError) as lost:
        describe(read({"label": "Diagnosis", "categorical": "gender", "features": "agee"}), path, 8)
    refused = [(problem.code, problem.field, problem.details.rpartition(" ")[2]) for problem in lost.value.problems]
    assert refused == [
        ("column-missing", "label", "diagnosis?"),
        ("column-missing", "features", "age?"),
        ("column-missing", "categorical", "t.csv"),
    ]


def test_a_label_with_many_values_is_no_class(tmp_path: Path) -> None:
    path = tmp_path / "t.csv"
    pd.DataFrame({"age": range(50), "bmi": range(50)}).to_csv(path, index=False)
    with pytest.raises(FormError) as raised:
        describe(read({"label": "age"}), path, 8)
    assert [(problem.code, problem.field) for problem in raised.value.problems] == [("too-many-values", "label")]


@pytest.mark.parametrize(
    "name", ["id", "ID", "subject_id", "PatientID", "studyId", "MRN", "Subject", "record.id", "uid"]
)
def test_identifiers_are_known_by_their_names(name: str) -> None:
    numbers = np.arange(60) * 7 + 1000
    assert names_patients(name, list(map(str, numbers)), numbers)


@pytest.mark.parametrize("name", ["age", "s1", "lipid", "idx_volume", "Left-Hippocampus", "case_count", "valid", "°C"])
def test_other_columns_are_no_identifiers(name: str) -> None:
    numbers = np.arange(60) * 7 + 1000
    assert not names_patients(name, list(map(str, numbers)), numbers)


@pytest.mark.parametrize("name", ["case", "patient", "record", "index", "id"])
def test_a_name_alone_makes_no_identifier_of_two_values(name: str) -> None:
    numbers = np.arange(60) % 2
    assert not names_patients(name, list(map(str, numbers)), numbers)


def test_values_that_differ_in_case_alone_have_one_order_in_every_process() -> None:
    assert [ordered(order) for order in permutations(("m", "M", "f", "F"))] == [["F", "f", "M", "m"]] * 24


def test_levels_stand_in_the_order_of_numbers_then_of_letters() -> None:
    assert ordered({"10", "9", "b", "A", "-1"}) == ["-1", "9", "10", "A", "b"]


def test_inputs_are_the_columns_that_all_have_and_the_owner_hears_of_others() -> None:
    profiles = {"a": profile(columns=("x", "age", "bmi")), "b": profile(columns=("bmi", "age"))}
    spec, warnings = complete(read(OWNER), profiles, ["a", "b"])
    assert spec.data.features == ("age", "bmi")  # type: ignore[union-attr]
    assert warnings == ["b: its table has no column of numbers called x, which is therefore not an input"]


def test_members_without_a_column_in_common_are_told_so() -> None:
    (said,) = refusals(OWNER, profile(columns=("x",)), profile(columns=("y",)))
    assert said.startswith("Columns of the inputs (features): no column of numbers is in every member's table")


def test_one_class_at_all_members_is_an_error_and_at_one_member_is_not() -> None:
    one = profile(levels={"diagnosis": ("benign",)})
    assert complete_alone(read(OWNER), one, ["a", "b"])
    assert run_of(OWNER, one, profile())
    (said,) = refusals(OWNER, one, one)
    assert "has the one value benign in enough rows of any member, expected at least two" in said


@pytest.mark.parametrize("rows", [(300, 180, 89), (1000, 60, 20), (40, 40), (5000, 5000), (30, 12)])
@pytest.mark.parametrize("evaluation", ["k-fold", "holdout", "leave-one-site-out"])
def test_steps_have_enough_rows_of_every_member(rows: tuple[int, ...], evaluation: str) -> None:
    run = run_of(OWNER | {"evaluation": evaluation}, *(profile(rows=count) for count in rows))
    size = run.training.batch_size
    share = 0.85 if evaluation == "leave-one-site-out" else 0.68
    steps = -(-share * max(rows) // size)
    assert steps == 1 or min(rows) * share / steps >= 8
    assert size <= 32 or min(rows) * share / (steps + 1) < 8 * 1.4, "no larger than that makes it"
