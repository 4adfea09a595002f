"""Parts: whatever runs ask for, no set that leaves a site divides its patients into fewer than the policy says."""

from __future__ import annotations

from collections import Counter, defaultdict
from itertools import combinations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rankdad.common.privacy.parts import MOST, Secret, assign, chosen, fold_of, refine
from rankdad.common.run.repeats import alike, equal_repeats
from tests.conftest import examples

SECRET = Secret(bytes(32))


def fewest_told(sums: list[frozenset[str]], fewest: int) -> int:
    """Return of how few patients sums over these sets tell, added and subtracted with any factors; at most `fewest`.

    Rows of the sums' space that are about some patients alone are there if it loses rank without their columns.
    """
    atoms = defaultdict(set)
    for patient in frozenset().union(*sums):
        atoms[tuple(patient in one for one in sums)].add(patient)
    columns, sizes = np.array(list(atoms), float).T, [len(patients) for patients in atoms.values()]
    whole, small = np.linalg.matrix_rank(columns), [at for at, size in enumerate(sizes) if size < fewest]
    for count in range(1, len(small) + 1):
        for chosen_ones in combinations(small, count):
            told = sum(sizes[at] for at in chosen_ones)
            if told < fewest and np.linalg.matrix_rank(np.delete(columns, chosen_ones, axis=1)) < whole:
                return told
    return fewest


@settings(max_examples=examples(80))
@given(data=st.data(), fewest=st.integers(1, 6))
def test_sums_of_any_runs_tell_of_no_fewer_patients_than_the_policy_says(data: st.DataObject, fewest: int) -> None:
    """Cohorts by rules that differ by a few patients, newcomers, withdrawals, and sets of the data's own."""
    known, withdrawn, sums = dict[str, int](), set[str](), list[frozenset[str]]()
    everyone = [f"patient-{number}" for number in range(60)]
    for _ in range(data.draw(st.integers(1, 6))):
        first, last = data.draw(st.integers(0, 30)), data.draw(st.integers(30, 60))
        withdrawn |= {everyone[at] for at in data.draw(st.sets(st.integers(0, 59), max_size=2))}
        cut = data.draw(st.integers(0, 60))
        sets = {name: int(at >= cut) for at, name in enumerate(everyone[:last]) if at >= first}
        before = dict(known)
        known, used = refine(known, withdrawn, sets, {name: int(name[-1]) % 2 for name in sets}, fewest, SECRET)
        assert used <= sets.keys() - withdrawn
        assert before.keys() <= known.keys()
        of_parts = defaultdict(set)
        for name in used:
            of_parts[known[name]].add(name)
        for part, members in of_parts.items():
            assert members == {name for name, own in known.items() if own == part}
            assert len({sets[name] for name in members}) == 1
            sums.append(frozenset(members))
    assert not sums or fewest_told(sums, fewest) == fewest


def test_what_a_run_leaves_out_and_who_comes_later_wait_for_enough() -> None:
    twenty = {f"p{number}": 0 for number in range(20)}
    known, used = refine({}, (), twenty, twenty, 5, SECRET)
    assert used == twenty.keys()
    assert sorted(Counter(known.values()).values()) == [5] * 4
    without = {name: 0 for name in twenty if name != "p0"}
    again, used = refine(known, (), without, without, 5, SECRET)
    assert again == known
    assert used == {name for name in twenty if known[name] != known["p0"]}, "the rest of the part would tell of p0"
    more = twenty | {f"q{number}": 0 for number in range(4)}
    assert refine(known, (), more, more, 5, SECRET) == (known, frozenset(twenty))
    more["q4"] = 0
    grown, used = refine(known, (), more, more, 5, SECRET)
    assert used == more.keys()
    assert {grown[name] for name in more if name.startswith("q")} == {1 + max(known.values())}


def test_whom_a_withdrawn_patient_leaves_behind_wait_for_newcomers_and_stay_with_them() -> None:
    twenty = {f"p{number}": 0 for number in range(20)}
    known, _ = refine({}, (), twenty, twenty, 5, SECRET)
    part = {name for name in twenty if known[name] == known["p0"]}
    more = twenty | {f"q{number}": 0 for number in range(4)}
    assert refine(known, {"p0"}, more, more, 5, SECRET) == (known, frozenset(twenty) - part)
    more["q4"] = 0
    joined, used = refine(known, {"p0"}, more, more, 5, SECRET)
    assert used == more.keys() - {"p0"}
    together = {name for name in more if joined[name] == joined["q0"]}
    assert together == part - {"p0"} | more.keys() - twenty.keys()
    assert joined["q0"] < 0 <= joined["p0"]
    assert refine(joined, {"p0"}, more, more, 5, SECRET) == (joined, used)
    only_newcomers = {name: int(name.startswith("p")) for name in more}  # the others' sum would tell of p0
    assert refine(joined, {"p0"}, only_newcomers, more, 4, SECRET) == (joined, used - together)
    again = more | {f"r{number}": 0 for number in range(5)}
    last, used = refine(joined, {"p0", "q1"}, again, again, 5, SECRET)
    assert used == again.keys() - {"p0", "q1"}
    assert len({last[name] for name in together - {"q1"} | {"r0"}}) == 1


def test_patients_are_dealt_evenly_within_strata_and_by_the_secret_alone() -> None:
    strata = {f"p{number}": int(number % 5 == 0) for number in range(107)}
    assigned = assign(strata, 8, SECRET)
    assert max(assigned.values()) + 1 == MOST
    for stratum in (0, 1):
        sizes = Counter(assigned[name] for name, own in strata.items() if own == stratum)
        assert max(sizes.values()) - min(sizes.values()) <= 1
    assert assign(dict(reversed(strata.items())), 8, SECRET) == assigned
    other = assign(strata, 8, Secret(b"x" * 32))
    assert 0.02 < sum(other[name] == part for name, part in assigned.items()) / len(assigned) < 0.25
    assert assign(strata, 108, SECRET) == {}


@pytest.mark.parametrize(("parts", "folds", "tests"), [(10, 5, [2] * 5), (7, 5, [1, 1, 1, 2, 2]), (3, 5, [1] * 3)])
def test_each_part_is_tested_once(parts: int, folds: int, tests: list[int]) -> None:
    found = fold_of(range(parts), folds, SECRET, 0)
    assert found.keys() == set(range(parts))
    assert sorted(Counter(found.values()).values()) == tests
    assert found != fold_of(range(parts), folds, SECRET, 1)


def test_a_single_part_is_not_tested_and_never_all_are_chosen() -> None:
    assert fold_of([4], 5, SECRET) == {}
    assert chosen([4], 0.9, SECRET) == frozenset()
    assert [len(chosen(range(8), share, SECRET)) for share in (0, 0.05, 0.15, 0.5, 1)] == [0, 0, 1, 4, 7]


@pytest.mark.parametrize(("parts", "folds", "repeats", "different"), [(5, 5, 6, 1), (4, 2, 50, 3), (10, 5, 6, 6)])
def test_repeats_of_few_parts_are_equal_partitions(parts: int, folds: int, repeats: int, different: int) -> None:
    assigned = [fold_of(range(parts), folds, SECRET, repeat) for repeat in range(repeats)]
    sets = [frozenset(part for part, own in one.items() if own == fold) for one in assigned for fold in range(folds)]
    assert repeats - len(equal_repeats([alike(sets)], folds)) == different


def test_a_rarer_class_gives_fewer_parts_and_waits_where_there_are_too_few_of_it() -> None:
    names = [f"p{number}" for number in range(100)]
    for few, count in ((9, 3), (2, 10)):
        own = {name: int(place < few) for place, name in enumerate(names)}
        classes = {name: {number} for name, number in own.items()}
        known, used = refine({}, (), dict.fromkeys(names, 0), own, 8, SECRET, classes, 3)
        assert len({known[name] for name in used}) == count
        of_class = Counter(known[name] for name in used if own[name])
        assert (len(used), len(of_class)) == ((100, 3) if few == 9 else (98, 0))
        assert all(number >= 3 for number in of_class.values())


def test_whoever_gives_each_patient_a_stratum_does_not_choose_the_parts() -> None:
    strata = {f"p{number}": number for number in range(80)}
    assigned = assign(strata, 8, SECRET)
    assert assigned != assign(strata, 8, Secret(b"x" * 32))
    assert assigned != {name: number % 10 for name, number in strata.items()}
    assert sorted(Counter(assigned.values()).values()) == [8] * 10
