"""An aggregator's analysis of its messages: sums over sets of patients, added and subtracted.

Everything is searched that the aggregator could search: it knows how many patients each sum is of, and which sums are
of the same function of a patient. Who is in a set is the truth: it serves to tell whether a combination is a sum over
a set, and over how many.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations
from math import comb

import numpy as np
import torch
from numpy.typing import NDArray
from scipy.stats import binom
from torch import Tensor

from benchmarks.privacy.adversary_runs import Run, gradients
from rankdad.common.metrics.paired import histograms
from rankdad.common.metrics.sums import Tally, parts
from rankdad.common.preparation import Preparing
from rankdad.common.preparation.layout import input_names
from rankdad.common.rounds.step import Step
from rankdad.common.rounds.sums import Sums
from rankdad.common.spec.data import TableData

MOST_SETS = 400  # that are subtracted from each other, the smallest ones first
SAMPLED = 20_000  # combinations of four sums that are not of sets
SAME = 1e-4  # of a number, by which a row is a patient's: sums of several come nearer by chance in 1,000 runs
FILLED = 0.05  # likewise of a gap, which has the mean of all hospitals, of which this one's is not far
RANK = 1e-9  # below which a singular value of sets is none
MOST_CHOICES = 300  # of small atoms that are put together
FAR = 3  # cells, by which a histogram is moved to see what is right by chance
ONCE = 1e-5  # probability of a run's finding by chance: once in 100 times 1,000 runs
RARE = 2  # patients that a level of a part has at most where it tells of them
Array = NDArray[np.float32]
Patients = frozenset[str]


@dataclass(frozen=True)
class Sum:
    """A sum that was received.

    Args:
        about: of which function of a patient it is.
        behind: whose: the truth.
        run: number of the run.
        batch: whether these are a batch.
    """

    about: Hashable
    behind: Patients
    run: int
    batch: bool = False


@dataclass(frozen=True)
class Finding:
    """A set of patients about whom something is known by itself.

    Args:
        source: what told it.
        patients: who they are.
        where: the run's model, batches and rounds.
        level: that they have in common; None of all of a set.
    """

    source: str
    patients: Patients
    where: str = ""
    level: str | None = None


def where(run: Run) -> str:
    """Return the key of a yield."""
    training = run.spec.training
    model = getattr(run.spec.model, "hidden", None)
    if run.spec.solver == "exact":
        return "linear, solved exactly"
    return f"{'linear' if model is None else 'mlp'}, batches of {training.batch_size}, epochs {training.epochs}"


def sums_of(run: Run, number: int) -> Iterator[Sum]:
    """Yield the sums that a run's messages hold.

    Args:
        run: the run.
        number: of the run in its sequence.
    """
    names, label = tuple(input_names(run.spec)), label_of(run)
    preparing = Preparing(run.spec)
    for split in run.data.splits:
        for rows in (split.train, split.validation, split.test):
            yield Sum("rows", run.patients(rows), number)
    last = run.data.splits[-1]
    yield Sum("rows", run.patients(torch.cat([last.train, last.validation, last.test])), number)
    steps: dict[int, int] = defaultdict(int)
    about: Hashable
    for heard in run.heard:
        if isinstance(heard.body, Sums) and heard.body.stage == "linear-1":
            for fold, split in enumerate(run.data.splits):
                if heard.body.values[fold].any():
                    about = ("products", names, label, _prepared(preparing, run, fold))
                    yield Sum(about, run.patients(split.train), number)
        if isinstance(heard.body, Step):
            batches, place = run.batches(heard.fold), steps[heard.fold]
            steps[heard.fold] += 1
            if place >= len(batches) or run.spec.preparation.standardise == "site":
                continue
            rows = batches[place]
            fit = _prepared(preparing, run, heard.fold)
            about = ("gradient", run.spec.model.name, names, label, fit, heard.weights)
            yield Sum(about, run.patients(rows), number, len(rows) < len(run.data.splits[heard.fold].train))


def label_of(run: Run) -> tuple[object, ...]:
    """Return a label's definition, where two runs may differ."""
    data = run.spec.data
    assert isinstance(data, TableData)
    return data.targets, data.values, data.positive


def _prepared(preparing: Preparing, run: Run, fold: int) -> Hashable:
    """Return the preparation of inputs, so that only comparable sums are combined."""
    totals = {name: values[fold] for name, values in run.totals.items() if not name.startswith("linear")}
    fit = preparing.fit({name: values for name, values in totals.items() if name in preparing.stages})
    kept = (fit.mean, fit.scale, fit.fill, fit.class_weights)
    numbers = [None if one is None else tuple(one.double().round(decimals=6).tolist()) for one in kept]
    return (*numbers, round(fit.target_mean, 6), round(fit.target_scale, 6), str(run.spec.preparation))


def subtracted(sums: Sequence[Sum], rng: np.random.Generator) -> list[Patients]:
    """Return the sets that sums of one function come to, added and subtracted; the smallest ones first.

    Sets that lie in others are subtracted from them, and what comes of that once more: up to four sums. Of others that
    overlap four are drawn at random.
    """
    people = sorted(frozenset[str]().union(*(one.behind for one in sums)))
    at = {patient: place for place, patient in enumerate(people)}
    first = _matrix({one.behind for one in sums if one.behind}, at)
    found = first
    for _ in range(2):
        sizes = found.sum(1)
        inside = (found @ found.T == sizes[:, None]) & (sizes[:, None] < sizes)  # of each, whether it lies in another
        small, large = np.nonzero(inside)
        found = np.unique(np.concatenate([found, found[large] - found[small]]), axis=0)
        found = found[np.argsort(found.sum(1), kind="stable")][:MOST_SETS]
    if len(first) >= 4:
        drawn = rng.integers(len(first), size=(SAMPLED, 4))
        total = first.sum(1)[drawn] @ np.array([1, 1, -1, -1], np.float32)
        drawn = drawn[(total > 0) & (total <= total.clip(0).mean())]
        mixed = first[drawn[:, 0]] + first[drawn[:, 1]] - first[drawn[:, 2]] - first[drawn[:, 3]]
        mixed = mixed[((mixed == 0) | (mixed == 1)).all(1)]
        found = np.unique(np.concatenate([found, mixed]), axis=0)
    return sorted((frozenset(people[place] for place in row.nonzero()[0]) for row in found), key=len)


def _matrix(sets: set[Patients], at: Mapping[str, int]) -> Array:
    found = np.zeros((len(sets), len(at)), np.float32)
    for row, own in enumerate(sets):
        found[row, [at[patient] for patient in own]] = 1
    return found


def atoms(sets: Sequence[frozenset[Hashable]]) -> list[frozenset[Hashable]]:
    """Return the smallest sets whose unions give all of these: no integer combination reveals fewer patients."""
    members: dict[Hashable, list[int]] = defaultdict(list)
    for number, own in enumerate(sets):
        for one in own:
            members[one].append(number)
    found: dict[tuple[int, ...], set[Hashable]] = defaultdict(set)
    for one, numbers in members.items():
        found[tuple(numbers)].add(one)
    return [frozenset(own) for own in found.values()]


def told_of_few(sets: Sequence[frozenset[Hashable]], fewest: int) -> list[frozenset[Hashable]]:
    """Return the atoms of fewer patients, together, that sums over sets tell of, added and subtracted with any factors.

    An atom alone is not told: of a set of 8 and one of its other 7 with 9 newcomers nobody can tell the first patient,
    as long as nothing is known of the newcomers.

    Args:
        sets: over which there are sums.
        fewest: patients that are not few.
    """
    found = atoms(sets)
    few = [own for own in found if len(own) < fewest]
    others = [own for own in found if len(own) >= fewest]
    if not few:
        return []
    known = dict.fromkeys(frozenset(one) for one in sets)
    members = np.array([[own <= one for own in (*few, *others)] for one in known], np.float64)
    u, sizes, _ = np.linalg.svd(members[:, len(few) :]) if others else (np.eye(len(members)), np.zeros(0), None)
    alone = u[:, int((sizes > RANK).sum()) :].T @ members[:, : len(few)]  # combinations of sums over few alone
    told = np.linalg.matrix_rank(alone, RANK)
    support = np.flatnonzero(np.abs(alone).max(0, initial=0) > RANK).tolist()
    for count in range(1, min(len(support), fewest - 1) + 1):
        if comb(len(support), count) > MOST_CHOICES:
            return [few[at] for at in support]
        below = [one for one in combinations(support, count) if sum(len(few[at]) for at in one) < fewest]
        if found_here := {
            at for one in below if np.linalg.matrix_rank(np.delete(alone, one, 1), RANK) < told for at in one
        }:
            return [few[at] for at in sorted(found_here)]
    return []


def sets_of(run: Run) -> list[Tensor]:
    """Return the rows of all sets over which a run sums up anything but batches."""
    found = [rows for split in run.data.splits for rows in (split.train, split.validation, split.test)]
    last = run.data.splits[-1]
    return [*found, torch.cat([last.train, last.validation, last.test])]


def channels(run: Run) -> dict[str, Tensor]:
    """Return the columns behind a run's sums by name, as admitted, and the label."""
    inputs = run.data.samples.inputs
    assert isinstance(inputs, Tensor)
    label = f"label {label_of(run)}"
    return {name: inputs[:, place] for place, name in enumerate(input_names(run.spec))} | {
        label: run.data.samples.labels
    }


def is_level(name: str) -> bool:
    """Tell whether a channel says whether a patient has a level, a class or a gap."""
    return "=" in name or name.endswith(" is missing") or name.startswith("label")


def rare_in(run: Run, patients: Patients) -> Iterator[tuple[str, Patients]]:
    """Yield the levels and gaps that one or two patients of a set have, and these."""
    rows = [row for row, key in enumerate(run.data.keys) if key in patients]
    for name, values in channels(run).items():
        members = values[rows]
        if is_level(name) and not name.startswith("label"):
            members = members == 1
        elif members.is_floating_point() and not name.startswith("label"):
            members = members.isnan()
        else:
            continue
        if 0 < int(members.sum()) <= RARE:
            own = members.nonzero().flatten().tolist()
            yield name, frozenset(run.data.keys[rows[place]] for place in own)


def cells_right(run: Run) -> Counter[int]:
    """Return how many cells of single patients a run's tests have right, by how many cells they are moved."""
    right = Counter[int]()
    for sent, exact in run.tests:
        claimed, true = (_cells(run, one) for one in (sent, exact))
        alone = (claimed > 0) & (claimed < run.fewest)
        right += Counter({by: int((alone.roll(by, -1) & (true == 1)).sum()) for by in range(-FAR, FAR + 1)})
    return right


def by_chance(right: Counter[int]) -> float:
    """Return how probable it is that so many are right, or more, as of those moved by 2 and 3 cells.

    Source: the exact test of two Poisson rates.
    """
    moved = [right[by] for by in (-3, -2, 2, 3)]
    return float(binom.sf(right[0] - 1, right[0] + sum(moved), 1 / 5))


def beyond_curve(right: Counter[int]) -> float:
    """Return by how many standard errors more are right than a smooth curve has, which says where scores are dense.

    What it has is the value of a polynomial through those moved by 1, 2 and 3 cells in both directions.
    """
    one, two, three = (right[by] + right[-by] for by in (1, 2, 3))
    curve, variance = (15 * one - 6 * two + three) / 20, (225 * one + 36 * two + three) / 400
    return float((right[0] - curve) / max(1.0, right[0] + variance) ** 0.5)


def told_by_cells(run: Run) -> Iterator[Finding]:
    """Yield a finding if a run's tests have more single patients' cells right than once in 100 times 1,000 runs."""
    if by_chance(cells_right(run)) < ONCE:
        yield Finding("cells, test", frozenset(["0"]), where(run))


def _cells(run: Run, tally: Tally) -> Tensor:
    """Return a test's histograms, those of a number by its error: [histograms, bins]."""
    found = parts(run.spec.task, tally)
    return histograms(run.spec.task, tally).flatten(0, 1) if len(found.scores) else found.grid


def _near(values: Tensor, guess: Tensor, part: float = SAME) -> Tensor:
    return (values - guess).abs() <= part * values.abs().clamp(min=1)


def told_by_ratios(run: Run) -> Iterator[Finding]:
    """Yield the patients whose row, unlike all others', a gradient's row is, divided by its bias's.

    Likewise of the differences of two units' rows, each divided by the unit's weight in the last layer.
    """
    if run.spec.preparation.standardise != "none":
        return
    inputs = run.data.samples.inputs
    assert isinstance(inputs, Tensor)
    steps: dict[int, int] = defaultdict(int)
    for heard in run.heard:
        if not isinstance(heard.body, Step):
            continue
        batches, place = run.batches(heard.fold), steps[heard.fold]
        steps[heard.fold] += 1
        matrix = gradients(heard.body)[0]
        if place >= len(batches) or matrix.shape[1] != inputs.shape[1] + 1:
            continue
        last = [value for name, value in heard.model.items() if name.endswith("weight")][-1].double()
        if last.shape[0] < 3 and last.shape[1] == len(matrix) and bool(last[-1].any()):
            of_each = matrix / (last[-1] - (last[0] if len(last) == 2 else 0))[:, None]  # of two classes, one is enough
            first, second = torch.triu_indices(len(matrix), len(matrix), 1)
            matrix = torch.cat([matrix, of_each[first] - of_each[second]])
        rows, bias = torch.cat(batches[: place + 1]).unique(), matrix[:, -1:]  # feedback sends of earlier ones, too
        usual = inputs.double().nanmean(0).nan_to_num()
        own, present = inputs[rows].double(), torch.where(inputs.isnan(), usual, inputs.double())[batches[place]]
        means = (present[:, None] + present).flatten(0, 1) / 2  # of two patients: one number may be a third's by chance
        means = means[~torch.eye(len(present), dtype=torch.bool).flatten()]
        for guess in (matrix[:, :-1] / bias)[bias.flatten().abs() > 1e-12]:
            same = _near(own, guess) | (own.isnan() & _near(usual, guess, FILLED))
            hit = same.all(1).nonzero().flatten()
            if len(hit) == 1 and not _near(means, guess).all(1).any():
                yield Finding("rows of gradients", run.patients(rows[hit]), where(run))
