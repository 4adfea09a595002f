"""Splits of a site that deals its patients out by a secret: unions of parts, in every run and between runs."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rankdad.common.errors import DataError, UserError
from rankdad.common.policy import Policy
from rankdad.common.privacy.parts import Secret
from rankdad.local.data import read_samples
from rankdad.local.data.folds import Split, folds
from rankdad.local.data.reading import Reading
from rankdad.local.privacy.dealing import Dealing, dealing_of, secret_of_files
from rankdad.local.privacy.log import FILE, DisclosureLog
from tests.conftest import examples, run_spec, write_site

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
    count = data.draw(st.integers(20, 90))
    groups = [f"g{row // 2 % 30}" for row in range(count)] if grouped else None
    marked = changes["evaluation"]["name"] == "holdout" and data.draw(st.booleans())
    reading = reading_of(count, groups, np.arange(count) // 2 % 30 % 3 // 2 * 2 if marked else None)
    patients = groups or list(reading.keys or ())
    dealt = Dealing(SECRET, fewest).deal(reading)
    assert min(dealt.sizes.values()) >= fewest
    splits = folds(run_spec(**changes), reading, 1, dealt)
    assert fewest_told(splits, patients) >= fewest
    for split in splits:
        sets = [set(getattr(split, name).tolist()) for name in ("train", "validation", "test")]
        assert len(set.union(*sets)) == sum(map(len, sets))
        assert all((dealt.parts[list(own)] >= 0).all() for own in sets if own)
        assert sum(map(len, sets)) == (dealt.parts >= 0).sum() or "tuning" in changes
    tests = [set(split.test.tolist()) for split in splits]
    if changes["evaluation"]["name"] == "k-fold" and len(dealt.sizes) > 1:
        repeats = changes["evaluation"].get("repeats", 1)
        assert sum(map(len, tests)) == repeats * (dealt.parts >= 0).sum(), "every patient is tested once a repeat"


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


@pytest.mark.parametrize("attack", PAIRS)
def test_runs_that_an_owner_subtracts_tell_of_no_fewer_patients_than_a_part_has(tmp_path: Path, attack: str) -> None:
    """Where folds follow from keys, each of these reaches one patient: the same specs, the same rows."""
    reading, log = reading_of(60), DisclosureLog(tmp_path, "alpha", SECRET)
    dealings = [Dealing(SECRET, 8, log, f"run-{number}") for number in range(len(PAIRS[attack]))]
    told = {}
    for kept in (False, True):
        found = [
            folds(run_spec(**changes), reading, 0, dealing.deal(reading) if kept else None)
            for dealing, changes in zip(dealings, PAIRS[attack], strict=True)
        ]
        told[kept] = fewest_told(list(chain(*found)), reading.keys or ())
    assert told[False] < 8 <= told[True]


def test_a_site_of_too_few_patients_lets_nothing_out() -> None:
    with pytest.raises(DataError) as raised:
        Dealing(SECRET, 8).deal(reading_of(40, [f"g{row % 7}" for row in range(40)]))
    assert (raised.value.code, raised.value.field) == ("too-few-patients", "min_rows")


def test_the_same_files_give_the_same_secret(tmp_path: Path) -> None:
    for folder in ("one", "two"):
        (tmp_path / folder / "deep").mkdir(parents=True)
        (tmp_path / folder / "deep" / "a.csv").write_text("age\n7\n")
    first = secret_of_files(tmp_path / "one")
    assert secret_of_files(tmp_path / "two") == first
    (tmp_path / "two" / "deep" / "a.csv").write_text("age\n8\n")
    assert secret_of_files(tmp_path / "two") != first


@pytest.mark.parametrize("lost", [False, True])
def test_folds_by_keys_do_not_go_beside_parts_of_which_the_log_tells(tmp_path: Path, lost: bool) -> None:
    """The policy's default, or another file of it, went past the log in silence."""

    def dealing(run: str | None = None, *, keyed: bool = True) -> Dealing | None:
        return dealing_of(folder, "alpha", Policy(keyed_folds=keyed), run_spec(), run, results=[tmp_path])

    folder = tmp_path / "privacy"
    assert dealing() is None
    assert not folder.exists(), "in a kit that is mounted to be read alone none can be made"
    by_parts = dealing("run", keyed=False)
    assert by_parts is not None
    assert dealing() is None, "nothing has left yet"
    by_parts.deal(reading_of(40))
    if lost:
        (folder / FILE).unlink()
    with pytest.raises(UserError) as raised:
        dealing()
    assert raised.value.code == ("log-too-old" if lost else "log-bypassed")


def test_names_from_another_place_are_refused_though_the_schema_is_the_same(tmp_path: Path) -> None:
    """With and without an array of keys each patient was two, and both times named by their place, as it was said."""
    log, names = DisclosureLog(tmp_path / "privacy", "alpha", SECRET), [f"p{row}" for row in range(40)]
    spec = run_spec(data={"reader": "npz", "file": "data.npz", "shape": [6]})
    for number, arrays in enumerate(({}, {"key": names}, {"group": names})):
        reading = read_samples(spec, write_site(tmp_path / str(number), 40, 1, **arrays))
        if not arrays:
            Dealing(SECRET, 8, log, "first").deal(reading)
            continue
        with pytest.raises(UserError) as raised:
            Dealing(SECRET, 8, log, f"run-{number}").deal(reading)
        assert raised.value.code == "patients-named-otherwise"
