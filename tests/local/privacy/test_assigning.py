"""Splits of a site that deals its patients out by a secret: unions of parts, in every run and between runs."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rankdad.common.data import SiteData, read_samples, read_site, split_samples
from rankdad.common.data.folds import Split, folds
from rankdad.common.data.parts import Assignment
from rankdad.common.data.reading import Reading
from rankdad.common.errors import DataError, FewSamplesError, UserError
from rankdad.common.models import build_model
from rankdad.common.policy import EVERYTHING, MinLevel, Policy
from rankdad.common.privacy.parts import Secret
from rankdad.common.protocol.plan import make_plan
from rankdad.common.protocol.versions import OUR_VERSION
from rankdad.common.spec import RunSpec
from rankdad.local.admission import admitted, check_steps
from rankdad.local.privacy.assigning import PartAssigner, assigner_of, secret_of_files
from rankdad.local.privacy.log import DisclosureLog, Waiting
from rankdad.local.privacy.log_file import FILE
from rankdad.local.taking_part import taking_part
from tests.conftest import examples, run_spec, site_config, write_site

SECRET = Secret(b"s" * 32)
EVALUATIONS: list[dict[str, Any]] = [
    {"evaluation": {"name": "k-fold", "folds": 5}},
    {"evaluation": {"name": "k-fold", "folds": 3, "repeats": 3, "stratified": True, "seed": 4}},
    {"evaluation": {"name": "k-fold", "folds": 60}, "training": {"validation": 0.5}},
    {"evaluation": {"name": "leave-one-site-out"}},
    {"evaluation": {"name": "holdout"}, "training": {"test": 0.3, "validation": 0.2}},
    {
        "evaluation": {"name": "k-fold", "folds": 4},
        "tuning": {"weight_decay": [0.1, 0.01]},
        "training": {"validation": 0.2},
    },
]


CLASSES = {"name": "classification", "classes": 2}


def kept(spec: RunSpec, reading: Reading, log: DisclosureLog, run: str, fewest: int = 8) -> tuple[Reading, Assignment]:
    """Deal the patients of a run that begins."""
    own, assignment = PartAssigner(spec, SECRET, fewest, log, run).assign(reading)
    assert assignment.kept()
    return own, assignment


def used_by(
    spec: RunSpec, folder: Path, log: DisclosureLog, run: str, level: MinLevel = EVERYTHING.min_level
) -> set[str]:
    """Return the patients whom a run of the tables of a folder uses."""
    read = read_site(spec, folder, 0, assigner=PartAssigner(spec, SECRET, 8, log, run, level))
    assert read.parts is not None
    assert read.parts.kept()
    return set(read.group_names or read.keys)


def reading_of(count: int, groups: Sequence[str] | None = None, split: Any = None) -> Reading:
    labels = np.arange(count) % 7 // 5
    names = tuple(f"p{row}" for row in range(count))
    return Reading("data", np.zeros((count, 6)), labels, split, names, None if groups is None else tuple(groups))


def fewest_told(splits: Sequence[Split], patients: Sequence[str]) -> int:
    """Return how many patients the smallest set has that sums over all of these sets tell of, added and subtracted."""
    rows = [getattr(split, name).tolist() for split in splits for name in ("train", "validation", "test")]
    told: dict[tuple[int, ...], set[str]] = {}
    members: list[list[int]] = [[] for _ in patients]
    for number, own in enumerate(rows):
        for row in own:
            members[row].append(number)
    for row, patient in enumerate(patients):
        if members[row]:
            told.setdefault(tuple(members[row]), set()).add(patient)
    return min(map(len, told.values()))


@settings(max_examples=examples(25))
@given(data=st.data(), fewest=st.integers(1, 9), changes=st.sampled_from(EVALUATIONS), grouped=st.booleans())
def test_every_set_is_a_union_of_parts(
    data: st.DataObject, fewest: int, changes: dict[str, Any], grouped: bool
) -> None:
    count = data.draw(st.integers(max(20, 4 * fewest), 90))  # of fewer, marked ones may not fill a part
    groups = [f"g{row // 2 % 30}" for row in range(count)] if grouped else None
    marked = changes["evaluation"]["name"] == "holdout" and data.draw(st.booleans())
    reading = reading_of(count, groups, np.arange(count) // 2 % 30 % 3 // 2 * 2 if marked else None)
    spec = run_spec(**changes)
    reading, assignment = PartAssigner(spec, SECRET, fewest).assign(reading)
    patients = list(reading.groups or reading.keys or ())
    assert min(assignment.sizes.values()) >= fewest
    splits = folds(spec, reading, 1, assignment)
    assert fewest_told(splits, patients) >= fewest
    for split in splits:
        sets = [set(getattr(split, name).tolist()) for name in ("train", "validation", "test")]
        assert len(set.union(*sets)) == sum(map(len, sets))
        assert all((assignment.parts[list(own)] >= 0).all() for own in sets if own)
        assert sum(map(len, sets)) == (assignment.parts >= 0).sum() or "tuning" in changes
    tests = [set(split.test.tolist()) for split in splits]
    if changes["evaluation"]["name"] == "k-fold" and len(assignment.sizes) > 1:
        repeats = changes["evaluation"].get("repeats", 1)
        assert sum(map(len, tests)) == repeats * (assignment.parts >= 0).sum(), "every patient is tested once a repeat"


PAIRS: dict[str, list[dict[str, Any]]] = {
    "S1: validation drawn anew in 60 folds": [EVALUATIONS[2]],
    "S2: the refit has what two folds have not": [{"evaluation": {"name": "k-fold", "folds": 2}}],
    "S3: seeds whose folds differ by a row": [
        {"evaluation": {"name": "k-fold", "folds": 2, "seed": seed}} for seed in range(12)
    ],
    "S6: two shares of validation": [
        {"evaluation": {"name": "holdout"}, "training": {"validation": share}} for share in (0.2, 0.21, 0.22)
    ],
    "repeats": [{"evaluation": {"name": "k-fold", "folds": 2, "repeats": 20}}],
    "another evaluation": EVALUATIONS,
}


@pytest.mark.slow
@pytest.mark.parametrize("attack", PAIRS)
def test_runs_that_an_owner_subtracts_tell_of_no_fewer_patients_than_a_part_has(tmp_path: Path, attack: str) -> None:
    """Where folds follow from keys, each of these reaches one patient: the same specs, the same rows."""
    reading, log = reading_of(60), DisclosureLog(tmp_path, "alpha", SECRET)
    told = {}
    for parted in (False, True):
        found = []
        for number, changes in enumerate(PAIRS[attack]):
            spec, own, assignment = run_spec(**changes), reading, None
            if parted:
                own, assignment = kept(spec, reading, log, f"run-{number}")
                assert own.keys == reading.keys
            found.append(folds(spec, own, 0, assignment))
        told[parted] = fewest_told(list(chain(*found)), reading.keys or ())
    assert told[False] < 8 <= told[True]


def test_the_sites_strata_deal_patients_out_evenly_whatever_the_outcome_is() -> None:
    """Columns that the run does not read are passed over; without any of them the outcome decides."""
    data = {"reader": "csv", "file": "d.csv", "features": ["sex", "age"], "label": "ill", "values": ["0", "1"]}
    spec = run_spec(task=CLASSES, data=data | {"categorical": {"sex": ["f", "m"]}})
    men = np.arange(60) % 6 // 5  # ten, one for each part
    reading = replace(reading_of(60), inputs=np.stack([1 - men, men, np.arange(60)], axis=1).astype(np.float32))
    for by, even in ((("sex", "ward"), True), (("ward",), False), (None, False)):
        _, assignment = PartAssigner(spec, SECRET, 6, by=by).assign(reading)
        counts = np.bincount(assignment.parts, weights=men)
        assert (counts.max() - counts.min() <= 1) == even


def test_whoever_has_a_third_of_a_part_is_named_at_the_site() -> None:
    names = [f"p{row}" for row in range(40)] + ["p7"] * 9
    _, assignment = PartAssigner(run_spec(), SECRET, 20).assign(reading_of(49, names))
    assert (len(assignment.sizes), assignment.large) == (2, ("p7",))
    assert any("p7" in note for note in assignment.notes())
    _, assignment = PartAssigner(run_spec(), SECRET, 5).assign(reading_of(40))
    assert assignment.large == ()


def test_rows_of_a_patient_beyond_a_share_of_a_part_are_left_out_and_the_same_in_every_run(tmp_path: Path) -> None:
    names = [f"p{row}" for row in range(40)] + ["p7"] * 60 + ["p8"] * 30
    reading, log = reading_of(130, names), DisclosureLog(tmp_path, "alpha", SECRET)
    found = list[tuple[Reading, Assignment]]()
    for run in ("first", "second"):
        found.append(PartAssigner(run_spec(), SECRET, 8, log, run, share=1 / 3).assign(reading))
        assert found[-1][1].kept()
    (used, assignment), (again, _) = found
    rows = Counter(zip(assignment.parts.tolist(), used.groups or (), strict=True))
    of_part = Counter(assignment.parts.tolist())
    assert all(count <= of_part[part] / 3 for (part, _), count in rows.items())
    assert min(count for (_, name), count in rows.items() if name in ("p7", "p8")) > 2
    assert (assignment.large, assignment.waits, assignment.beyond) == ((), 0, 130 - len(used.keys or ()))
    assert used.keys == again.keys
    _, assignment = PartAssigner(run_spec(), SECRET, 8).assign(reading)
    assert (set(assignment.large), assignment.beyond) == ({"p7", "p8"}, 0)


def test_known_patients_who_are_gone_unsaid_are_counted_with_those_whom_that_costs(tmp_path: Path) -> None:
    """A row that was deleted without `rankdad purge` cost a hospital of 45 a part, and no sentence said why."""
    reading, log = reading_of(45), DisclosureLog(tmp_path, "alpha", SECRET)
    _, first = kept(run_spec(), reading, log, "first")
    assert first.why == ""
    rest = reading.take(np.arange(1, 45))
    _, second = PartAssigner(run_spec(), SECRET, 8, log, "second").assign(rest)
    others = first.sizes[int(first.parts[0])] - 1
    used = [f"p{row}" for row in range(45) if first.parts[row] != first.parts[0]]
    assert log.waiting(rest.keys or (), used) == Waiting(gone=1, beside_gone=others)
    assert second.waits == others
    with pytest.raises(DataError) as raised:
        PartAssigner(run_spec(), SECRET, 23, log, "third").assign(rest)
    assert (raised.value.code, raised.value.field) == ("too-few-patients", "min_rows")
    assert "purge" in str(raised.value)
    assert "purge" not in raised.value.public_message
    log.withdraw(["p0"])
    _, fourth = PartAssigner(run_spec(), SECRET, 8, log, "fourth").assign(rest)
    assert ("purge" in fourth.why, fourth.waits) == (False, others)
    assert log.waiting(rest.keys or (), used) == Waiting(beside_withdrawn=others)
    assert log.waiting([*(rest.keys or ()), "new", "newer"], []) == Waiting(
        beside_withdrawn=others, changed=44 - others, new=2
    )


def test_a_site_of_too_few_patients_lets_nothing_out() -> None:
    with pytest.raises(DataError) as raised:
        PartAssigner(run_spec(), SECRET, 8).assign(reading_of(40, [f"g{row % 7}" for row in range(40)]))
    assert (raised.value.code, raised.value.field) == ("too-few-patients", "min_rows")


def test_the_same_files_give_the_same_secret(tmp_path: Path) -> None:
    for folder in ("one", "two"):
        (tmp_path / folder / "deep").mkdir(parents=True)
        (tmp_path / folder / "deep" / "a.csv").write_text("age\n7\n")
    first = secret_of_files(tmp_path / "one")
    assert secret_of_files(tmp_path / "two") == first
    (tmp_path / "two" / "deep" / "a.csv").write_text("age\n8\n")
    assert secret_of_files(tmp_path / "two") != first


TABLE: dict[str, Any] = {
    "reader": "csv",
    "file": "a.csv",
    "label": "mrs",
    "positive": "> 2",
    "values": ["no", "yes"],
    "group": "id",
}
RECODED: dict[str, dict[str, Any]] = {
    "another label rule": {"positive": "> 3"},
    "another bound": {"clip": {"age": [0, 50]}},
    "a value that is called missing": {"missing": "impute", "missing_values": {"age": ["51"]}},
    "a visit that is dropped": {"missing": "drop", "missing_values": {"age": ["51.5"]}},
    "another level": {"categorical": {"sex": ["m", "f"]}, "categorical_other": ["sex"]},
}


@pytest.mark.parametrize("change", RECODED)
def test_an_owner_who_says_otherwise_how_a_column_is_read_learns_of_no_single_patient(
    tmp_path: Path, change: str
) -> None:
    """p0 alone has mrs 3, the greatest age, the age 51, a visit at 51.5, and a sex that nobody else has."""
    lines = ["id,age,sex,mrs"]
    for number in range(60):
        age, sex, mrs = (88, "x", 3) if not number else (20 + number % 30, "mf"[number % 2], 5 * (number % 3 == 0))
        lines += [f"p{number},{(age if number else 51) + more},{sex},{mrs}" for more in (0, 0.5)]
    if change == "another bound":
        lines[1:3] = ["p0,88,x,3", "p0,89,x,3"]
    (tmp_path / "a.csv").write_text("\n".join(lines))
    log, used = DisclosureLog(tmp_path / "privacy", "alpha", SECRET), list[set[str]]()
    levels = {"categorical": {"sex": ["m", "f", "x"]}}
    for own in ({}, RECODED[change]):
        data = TABLE | {"features": ["age", "sex"]} | levels | own
        spec = run_spec(task=CLASSES, data=data, evaluation={"name": "holdout"})
        used.append(used_by(spec, tmp_path, log, f"run-{len(used)}"))
    assert "p0" in used[0]
    assert used[1] < used[0]
    assert "p0" not in used[1]
    assert len(used[0] - used[1]) >= 8


@pytest.mark.parametrize("few", ["x", ""])
def test_a_value_that_is_moved_in_one_run_alone_makes_a_set_of_whom_it_is_moved(tmp_path: Path, few: str) -> None:
    """Four patients have a level, or none; once two of them have withdrawn, what the other two have is rare."""
    lines = ["id,age,sex,mrs"]
    lines += [f"p{row},{20 + row % 30},{few if row < 4 else 'm'},{5 * (row % 3 == 0)}" for row in range(96)]
    (tmp_path / "a.csv").write_text("\n".join(lines))
    log, used = DisclosureLog(tmp_path / "privacy", "alpha", SECRET), list[set[str]]()
    data = TABLE | {"features": ["age", "sex"], "categorical": {"sex": ["m", "x"]}, "missing": "impute"}
    spec = run_spec(task=CLASSES, data=data, evaluation={"name": "holdout"})
    for run in ("first", "second"):
        used.append(used_by(spec, tmp_path, log, run, MinLevel(count=3)))
        log.withdraw(["p0", "p1"])
    assert {"p0", "p1", "p2", "p3"} < used[0]
    assert {"p0", "p1", "p2", "p3"}.isdisjoint(used[1])
    assert len(used[1]) >= 48


@pytest.mark.parametrize(("each", "admitted_"), [(2, False), (8, True)])
def test_products_of_a_linear_model_leave_only_where_a_part_by_itself_has_enough_of_a_class(
    each: int, admitted_: bool
) -> None:
    """Repeats of two folds are unions of parts: together they tell the sums of each."""
    evaluation = {"name": "k-fold", "folds": 2, "repeats": 20}
    spec = run_spec(task=CLASSES, model={"name": "linear"}, training={"solver": "exact"}, evaluation=evaluation)
    labels = np.zeros(200, np.int64)
    labels[: 10 * each] = 1
    inputs = np.random.default_rng(0).normal(size=(200, 6)).astype(np.float32)
    reading = Reading("data", inputs, labels, None, tuple(f"p{row}" for row in range(200)))
    data = split_samples(spec, reading, 0, assigner=PartAssigner(spec, SECRET, 8))
    policy = Policy(rows_per_rank=None, min_sites=1)
    if admitted_:
        assert admitted(policy, spec, make_plan(spec, build_model(spec)), data).fewest == 8
    else:
        with pytest.raises(FewSamplesError) as raised:
            admitted(policy, spec, make_plan(spec, build_model(spec)), data)
        assert (raised.value.code, raised.value.field) == ("sums-of-too-few", "training.solver")


def test_steps_of_all_samples_are_as_those_of_a_part_since_trainings_begin_alike() -> None:
    spec = run_spec(task=CLASSES, evaluation={"name": "k-fold", "folds": 5}, method={"name": "rank-dad", "rank": 12})
    data = split_samples(spec, reading_of(200), 0, assigner=PartAssigner(spec, SECRET, 8))
    whole = len(data.splits[0].train)
    assert data.behind_step(0, whole) == 20
    assert data.behind_step(0, whole - 9) == 9, "what a step of all has more"
    assert Policy().rank(data.behind_step(0, whole)) == 5
    plan = make_plan(spec, build_model(spec))
    check_steps(Policy(), spec, plan, data, [[whole // 2]] * 5)
    with pytest.raises(FewSamplesError):
        check_steps(Policy(min_rows=21), spec, plan, data, [[whole]] * 5)


@pytest.mark.parametrize("lost", [False, True])
def test_folds_by_keys_do_not_go_beside_parts_of_which_the_log_tells(tmp_path: Path, lost: bool) -> None:
    """The policy's default, or another file of it, went past the log in silence."""

    def assigner(run: str | None = None, *, keyed: bool = True) -> PartAssigner | None:
        return assigner_of(folder, "alpha", Policy(keyed_folds=keyed), run_spec(), run, results=[tmp_path])

    folder = tmp_path / "privacy"
    assert assigner() is None
    assert not folder.exists(), "in a kit that is mounted to be read alone none can be made"
    by_parts = assigner("run", keyed=False)
    assert by_parts is not None
    _, assignment = by_parts.assign(reading_of(40))
    assert assigner() is None, "it has only looked"
    assert assignment.kept()
    if lost:
        (folder / FILE).unlink()
    with pytest.raises(UserError) as raised:
        assigner()
    assert raised.value.code == ("log-too-old" if lost else "log-bypassed")


def test_names_from_another_place_are_refused_though_the_schema_is_the_same(tmp_path: Path) -> None:
    """With and without an array of keys each patient was two, and both times named by their place, as it was said."""
    log, names = DisclosureLog(tmp_path / "privacy", "alpha", SECRET), [f"p{row}" for row in range(40)]
    spec = run_spec(data={"reader": "npz", "file": "data.npz", "shape": [6]})
    for number, arrays in enumerate(({}, {"key": names}, {"group": names})):
        reading = read_samples(spec, write_site(tmp_path / str(number), 40, 1, **arrays))
        if not arrays:
            kept(spec, reading, log, "first")
            continue
        with pytest.raises(UserError) as raised:
            PartAssigner(spec, SECRET, 8, log, f"run-{number}").assign(reading)
        assert raised.value.code == "patients-named-otherwise"


def test_a_run_whose_parts_another_has_divided_meanwhile_is_told_so_and_begins_after_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def begin_another(*given: Any) -> SiteData:
        log = DisclosureLog(tmp_path / "privacy", "alpha")
        _, assignment = PartAssigner(spec, log.secret, 4, log, "another").assign(
            read_samples(spec, data).take(np.arange(36))
        )
        assert assignment.kept()
        return admitted(*given)

    keys = [f"p{row}" for row in range(60)]
    spec = run_spec(data={"reader": "npz", "file": "data.npz", "shape": [6]})
    data = write_site(tmp_path / "data", 60, 1, key=keys)
    (tmp_path / "policy.json").write_text(Policy(rows_per_rank=None, min_rows=4).text())
    places = {"data": str(data), "output": str(tmp_path / "out"), "privacy": str(tmp_path / "privacy")}
    config = site_config(1, **places, policy=str(tmp_path / "policy.json"))
    offered: dict[str, object] = {**OUR_VERSION, "run": spec.model_dump(mode="json"), "id": "0" * 16}
    with monkeypatch.context() as patched:
        patched.setattr("rankdad.local.taking_part.admitted", begin_another)
        with pytest.raises(UserError) as raised:
            taking_part(config, offered)
    assert (raised.value.code, raised.value.field) == ("another-run-began", "data")
    parts = taking_part(config, offered).data.parts
    assert parts is not None
    heads = parts.heads()
    assert heads is not None
    assert heads.length == 2, "the log tells of both"
