"""Folds: what a sample's fold follows from, and that no sample is on two sides of one."""

from __future__ import annotations

from collections import Counter
from typing import Any

import numpy as np
import pytest
from hypothesis import given, reject, settings
from hypothesis import strategies as st

from rankdad.common.data.folds import Split, folds
from rankdad.common.data.reading import Array, Reading
from rankdad.common.errors import DataError
from rankdad.common.spec import RunSpec
from tests.common.faults import fault
from tests.conftest import SITES, examples, run_spec

PARTS = ("train", "validation", "test")
KEYS = st.lists(st.text(min_size=1, max_size=6), min_size=8, max_size=30, unique=True)


def spec_of(count: int = 3, **changes: Any) -> RunSpec:
    return run_spec(evaluation={"name": "k-fold", "folds": count} | changes)


def reading_of(keys: list[str], labels: Any = None, groups: list[str] | None = None, split: Any = None) -> Reading:
    labels = np.zeros(len(keys), np.int64) if labels is None else np.asarray(labels)
    return Reading(
        "data", np.zeros((len(keys), 6)), labels, split, tuple(keys), None if groups is None else tuple(groups)
    )


def parts_of(splits: tuple[Split, ...], count: int) -> Array:
    """Which part each sample has in each fold, [folds, samples]; every one has exactly one."""
    found = np.full((len(splits), count), -1)
    for fold, split in enumerate(splits):
        for part, name in enumerate(PARTS):
            rows = getattr(split, name).numpy()
            assert (np.diff(rows) > 0).all()
            assert (found[fold, rows] == -1).all(), "no row is in two parts"
            found[fold, rows] = part
    assert (found >= 0).all(), "no row is in none"
    return found


def by_key(spec: RunSpec, reading: Reading, site: int = 0) -> dict[str, tuple[int, ...]]:
    assert reading.keys is not None
    found = parts_of(folds(spec, reading, site), len(reading.keys))
    return {key: tuple(found[:, row].tolist()) for row, key in enumerate(reading.keys)}


@settings(max_examples=examples(40))
@given(keys=KEYS, more=st.sets(st.text(min_size=1, max_size=6)), data=st.data(), count=st.integers(2, 6))
def test_a_samples_fold_follows_from_its_key_alone(
    keys: list[str], more: set[str], data: st.DataObject, count: int
) -> None:
    spec = spec_of(count)
    alone = by_key(spec, reading_of(keys))
    larger = data.draw(st.permutations([*keys, *more.difference(keys)]))
    labels = data.draw(st.lists(st.integers(0, 2), min_size=len(larger), max_size=len(larger)))
    among = by_key(spec, reading_of(larger, labels), site=2)
    assert {key: among[key] for key in keys} == alone


@settings(max_examples=examples(40))
@given(
    keys=KEYS,
    data=st.data(),
    count=st.integers(2, 6),
    stratified=st.booleans(),
    refit=st.booleans(),
    grouped=st.booleans(),
)
def test_every_sample_is_tested_once_and_groups_stay_together(
    keys: list[str], data: st.DataObject, count: int, stratified: bool, refit: bool, grouped: bool
) -> None:
    size = len(keys)
    labels = data.draw(st.lists(st.integers(0, 2), min_size=size, max_size=size))
    groups = data.draw(st.lists(st.sampled_from("abcdefgh"), min_size=size, max_size=size)) if grouped else keys
    spec = spec_of(count, stratified=stratified, refit=refit)
    found = parts_of(folds(spec, reading_of(keys, labels, groups), 0), size)
    assert len(found) == count + refit
    assert ((found[:count] == 2).sum(axis=0) == 1).all()
    assert not (found[count:] == 2).any(), "the last model is made of all samples"
    together: dict[str, set[tuple[int, ...]]] = {}
    for row, group in enumerate(groups):
        together.setdefault(group, set()).add(tuple(found[:, row].tolist()))
    assert all(len(parts) == 1 for parts in together.values())


@settings(max_examples=examples(40))
@given(keys=KEYS, data=st.data(), count=st.integers(2, 6))
def test_stratified_folds_deal_every_class_out_equally_in_any_order_of_rows(
    keys: list[str], data: st.DataObject, count: int
) -> None:
    spec = spec_of(count, stratified=True)
    labels = data.draw(st.lists(st.integers(0, 2), min_size=len(keys), max_size=len(keys)))
    found = by_key(spec, reading_of(keys, labels))
    for label in (0, 1, 2):
        tested = [found[key].index(2) for key, own in zip(keys, labels, strict=True) if own == label]
        sizes = [Counter(tested)[fold] for fold in range(count)]
        assert max(sizes) - min(sizes) <= 1
    order = data.draw(st.permutations(range(len(keys))))
    assert by_key(spec, reading_of([keys[row] for row in order], [labels[row] for row in order])) == found


@pytest.mark.parametrize("labels", [[0, 2, 1, 1, 0, 2, 0, 1], [70.5, 30.0, 41.0, 41.0, 22.0, 63.0, 55.0, 18.0]])
def test_groups_of_several_labels_are_dealt_out_in_any_order_of_rows(labels: list[float]) -> None:
    keys, groups = list("abcdefgh"), list("wwxxyyzz")
    changes: dict[str, Any] = {} if labels[0] == 0 else {"task": {"name": "regression"}}
    spec = run_spec(evaluation={"name": "k-fold", "folds": 2, "stratified": True}, **changes)
    found = by_key(spec, reading_of(keys, labels, groups))
    for shift in range(1, 8):
        order = np.roll(np.arange(8), shift)[::-1]
        moved = [[part[row] for row in order] for part in (keys, labels, groups)]
        assert by_key(spec, reading_of(moved[0], moved[1], moved[2])) == found


def test_numbers_are_dealt_out_from_small_to_large() -> None:
    values = np.random.default_rng(0).normal(size=200)
    spec = run_spec(evaluation={"name": "k-fold", "folds": 4, "stratified": True}, task={"name": "regression"})
    for split in folds(spec, reading_of(list(map(str, range(200))), values), 0)[:4]:
        ranks = np.argsort(np.argsort(values))[split.test.numpy()]
        assert np.bincount(ranks // 40).tolist() == [10] * 5


def test_folds_and_validation_are_about_as_large_as_asked_for_and_follow_from_the_seed() -> None:
    keys = [f"subject-{row}" for row in range(2000)]
    found = parts_of(folds(spec_of(5), reading_of(keys), 0), 2000)
    assert all(340 <= (own == 2).sum() <= 460 for own in found[:5])
    assert all(0.12 <= (own == 1).sum() / (own != 2).sum() <= 0.18 for own in found)
    other = parts_of(folds(spec_of(5, seed=1), reading_of(keys), 0), 2000)
    assert 0.15 < (found[:5].argmax(axis=0) == other[:5].argmax(axis=0)).mean() < 0.25


def test_every_repeat_deals_samples_out_anew_and_the_first_as_without_repeats() -> None:
    keys = [f"subject-{row}" for row in range(300)]
    groups = [f"{row // 3}" for row in range(300)]
    spec = spec_of(3, repeats=4)
    found = parts_of(folds(spec, reading_of(keys, groups=groups), 0), 300)
    assert len(found) == spec.folds == 13
    tests = found[:12].reshape(4, 3, 300) == 2
    assert (tests.sum(axis=1) == 1).all(), "every repeat tests every sample once"
    dealt = tests.argmax(axis=1)
    assert (dealt[:, ::3] == dealt[:, 1::3]).all()
    assert all(0.2 < (dealt[a] == dealt[b]).mean() < 0.5 for a in range(4) for b in range(a))
    alone = parts_of(folds(spec_of(3, refit=False), reading_of(keys, groups=groups), 0), 300)
    assert ((alone == 2) == tests[0]).all()


@pytest.mark.parametrize("refit", [True, False])
def test_a_site_is_tested_by_a_model_of_all_others(refit: bool) -> None:
    spec = run_spec(evaluation={"name": "leave-one-site-out", "refit": refit})
    for site in range(3):
        found = parts_of(folds(spec, reading_of(list("abcdefghij")), site), 10)
        assert len(found) == len(SITES) + refit
        for fold, own in enumerate(found):
            assert (own == 2).all() if fold == site else not (own == 2).any()


@settings(max_examples=examples(40))
@given(keys=KEYS, data=st.data(), marked=st.booleans(), grouped=st.booleans(), seed=st.integers(0, 99))
def test_a_holdout_follows_from_keys_in_any_order_of_rows(
    keys: list[str], data: st.DataObject, marked: bool, grouped: bool, seed: int
) -> None:
    size, spec = len(keys), run_spec(seed=seed, training={"test": 0.3, "validation": 0.2})
    groups = data.draw(st.lists(st.sampled_from("abcdefgh"), min_size=size, max_size=size)) if grouped else None
    split = np.arange(size) % 3 // 2 * 2 if marked else None  # a test set of the data's own
    try:
        found = by_key(spec, reading_of(keys, None, groups, split))
    except DataError as error:
        if error.code != "too-few-samples":
            raise
        reject()  # one group is nearly all rows
    order = data.draw(st.permutations(range(size)))
    moved = [None if part is None else [part[row] for row in order] for part in (groups, split)]
    names = [keys[row] for row in order]
    turned = reading_of(names, None, moved[0], None if split is None else np.array(moved[1]))
    assert by_key(spec, turned, site=2) == found
    if groups is not None and not marked:
        assert len({(group, found[key]) for key, group in zip(keys, groups, strict=True)}) == len(set(groups))
    if not grouped and not marked:
        assert Counter(parts[0] for parts in found.values())[2] == round(0.3 * size)


def test_a_split_of_the_datas_own_goes_with_a_holdout_alone() -> None:
    reading = reading_of(list("abcd"), split=np.array([0, 0, 1, 2]))
    (split,) = folds(run_spec(), reading, 0)
    assert [getattr(split, name).tolist() for name in PARTS] == [[0, 1], [2], [3]]
    assert fault(lambda: folds(spec_of(), reading, 0))[:2] == ("split-given", "evaluation")


def test_a_site_with_nothing_to_train_on_is_refused() -> None:
    assert fault(lambda: folds(spec_of(), reading_of([]), 0))[0] == "too-few-samples"
