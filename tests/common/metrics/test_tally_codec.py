"""Tallies as bytes: honest ones come through whatever they measure, others are refused in a sentence."""

from __future__ import annotations

import math
from collections.abc import Callable

import pytest
import torch
from hypothesis import example, given, settings
from hypothesis import strategies as st
from torch import Tensor

from rankdad.common.metrics.auc import BINS
from rankdad.common.metrics.intervals import intervals
from rankdad.common.metrics.summary import summarise
from rankdad.common.metrics.sums import Tally, empty, parts, shape, tally
from rankdad.common.metrics.tally_codec import pack_tally, tally_bytes, unpack_tally
from rankdad.common.spec.tasks import Classification, MultiLabel, Regression, TaskSpec
from tests.common.metrics.samples import TASKS, draw, tallied
from tests.conftest import examples

CLASSES = Classification(classes=2)
NUMBER = Regression(name="regression")


@settings(max_examples=examples(60))
@given(
    task=st.sampled_from(TASKS),
    seed=st.integers(0, 9999),
    samples=st.integers(0, 30),
    scale=st.sampled_from([0.0, 1e-300, 1e-160, 1e-3, 1.0, 1e9, 1e120]),
    centre=st.sampled_from([0.0, 1e-170, 5.0, -1e9]),
    times=st.integers(1, 50),
)
@example(task=TASKS[3], seed=0, samples=9, scale=1e-300, centre=0.0, times=1)  # squares of which nothing is left
def test_honest_tallies_come_through(
    task: TaskSpec, seed: int, samples: int, scale: float, centre: float, times: int
) -> None:
    outputs, labels = draw(task, samples, seed, scale)
    total = sum((tallied(task, outputs, labels, centre=centre) for _ in range(times)), start=empty(task))
    data = pack_tally(total)
    assert len(data) == tally_bytes(task)
    found = unpack_tally(task, data)
    assert torch.equal(found.counts, total.counts)
    assert torch.equal(found.sums, total.sums)


@settings(max_examples=examples(60))
@given(
    task=st.sampled_from([*TASKS, Classification(classes=31)]),
    seed=st.integers(0, 9999),
    groups=st.lists(st.integers(0, 9), max_size=30),
    scale=st.sampled_from([0.0, 1e-160, 1e-3, 1.0, 1e9, 1e40]),
    centre=st.sampled_from([0.0, 1e-170, 5.0, -1e9]),
    times=st.integers(1, 5),
)
def test_honest_tallies_of_groups_come_through(
    task: TaskSpec, seed: int, groups: list[int], scale: float, centre: float, times: int
) -> None:
    total = empty(task, True)
    for site in range(times):
        outputs, labels = draw(task, len(groups), seed + site, scale)
        total += tallied(task, outputs, labels, centre=centre, groups=torch.tensor(groups, dtype=torch.int64))
    data = pack_tally(total)
    assert len(data) == tally_bytes(task, True)
    assert torch.equal(unpack_tally(task, data, True).sums, total.sums)
    with pytest.raises(ValueError, match="expected"):
        unpack_tally(task, data)


@settings(max_examples=examples(100))
@given(data=st.data(), task=st.sampled_from(TASKS), clustered=st.booleans())
def test_hostile_bytes_are_refused_or_harmless(data: st.DataObject, task: TaskSpec, clustered: bool) -> None:
    """Counts of a few samples and any numbers: what is let in adds up a thousand times to finite figures."""
    outputs, labels = draw(task, 8, 0)
    groups = torch.tensor([0, 0, 0, 1, 1, 2, 3, 4]) if clustered else None
    changed = bytearray(pack_tally(tallied(task, outputs, labels, groups=groups)))
    ends = st.integers(0, 60) | st.integers(len(changed) - 60, len(changed) - 1)
    for at in data.draw(st.lists(ends.filter(lambda at: at < len(changed)), min_size=1, max_size=6)):
        changed[at] = data.draw(st.integers(0, 255))
    try:
        found = unpack_tally(task, bytes(changed), clustered)
    except ValueError:
        return
    thousand = Tally(found.counts * 1000, found.sums * 1000)
    assert all(value is None or math.isfinite(value) for value in summarise(task, thousand).values.values())
    assert all(math.isfinite(one.high - one.low) for one in intervals(task, thousand).values())


@pytest.mark.parametrize("size", [0, 1, 7])
def test_a_wrong_size_is_refused(size: int) -> None:
    with pytest.raises(ValueError, match=f"got {size} bytes, expected {tally_bytes(NUMBER)}"):
        unpack_tally(NUMBER, bytes(size))


def one_more(name: str, value: float = 1) -> Callable[[TaskSpec, Tally], None]:
    """Change a part's last number."""

    def change(task: TaskSpec, total: Tally) -> None:
        getattr(parts(task, total), name).view(-1)[-1] += value

    return change


def set_sum(at: int, value: float) -> Callable[[TaskSpec, Tally], None]:
    def change(task: TaskSpec, total: Tally) -> None:
        total.sums[at] = value

    return change


def set_count(at: int, value: int) -> Callable[[TaskSpec, Tally], None]:
    def change(task: TaskSpec, total: Tally) -> None:
        total.counts[at] = value

    return change


def swap_own(task: TaskSpec, total: Tally) -> None:
    """Take a sample for the other class's in a histogram."""
    scores = parts(task, total).scores
    at = int(scores[0, 1].argmax())
    scores[0, 1, at] -= 1
    scores[0, 0, at] += 1


def miss_for_hit(task: TaskSpec, total: Tally) -> None:
    calibration = parts(task, total).calibration
    at = int(calibration[0, :, 1].argmax())
    calibration[0, at] += torch.tensor([1, -1])


@pytest.mark.parametrize("task", TASKS[:3])
@pytest.mark.parametrize(
    ("change", "reason"),
    [
        (one_more("scores"), "histogram"),
        (one_more("confusion"), "confusion matrix"),
        (one_more("calibration"), "calibration"),
        (one_more("confidence", 5.0), "confidences"),
        (one_more("confidence", -9.0), "confidences"),
        (one_more("brier", 30.0), "between 0 and 1"),
        (one_more("brier", -30.0), "between 0 and 1"),
        (set_count(0, 21), "samples"),
        (swap_own, "class's samples"),
        (miss_for_hit, "hits"),
        (set_sum(0, -1.0), "loss"),
        (set_sum(0, math.nan), "NaN"),
        (set_sum(1, math.inf), "NaN"),
        (set_sum(0, 1.1e300), "larger"),
    ],
)
def test_numbers_that_contradict_one_another_are_refused(
    task: TaskSpec, change: Callable[[TaskSpec, Tally], None], reason: str
) -> None:
    outputs, labels = draw(task, 20, 4)
    total = tallied(task, outputs, labels)
    unpack_tally(task, pack_tally(total))
    change(task, total)
    with pytest.raises(ValueError, match=reason):
        unpack_tally(task, pack_tally(total))


def set_order(*order: float) -> Callable[[TaskSpec, Tally], None]:
    def change(task: TaskSpec, total: Tally) -> None:
        parts(task, total).order[0] = torch.tensor(order)

    return change


@pytest.mark.parametrize(
    ("task", "change", "reason"),
    [
        *[(NUMBER, set_sum(at, value), reason) for at, value, reason in (
            (7, 500.0, "squares"), (8, -500.0, "squares"), (9, -1.0, "negative"), (11, 1e9, "squares"),
            (12, 500.0, "squares"), (12, -1.0, "negative"), (13, 1e-3, "squares"), (13, 400.0, "not those"),
            (0, -1e-9, "loss"), (3, 21.0, "order"),
        )],
        *[(CLASSES, set_order(*order), "order") for order in ((9, 1, 5), (-1, 1, 1e3), (0, -1, 0), (3, 99, 9))],
        (NUMBER, one_more("grid"), "grid"),
    ],
)  # fmt: skip
def test_moments_orders_and_grids_that_contradict_one_another_are_refused(
    task: TaskSpec, change: Callable[[TaskSpec, Tally], None], reason: str
) -> None:
    total = tallied(task, *draw(task, 20, 5))
    unpack_tally(task, pack_tally(total))
    change(task, total)
    with pytest.raises(ValueError, match=reason):
        unpack_tally(task, pack_tally(total))


def change_products(name: str, change: Callable[[Tensor], object]) -> Callable[[TaskSpec, Tally], None]:
    """Change the triangle of a tally's first products."""

    def changed(task: TaskSpec, total: Tally) -> None:
        *_, values, scores = total.sums.split(shape(task, True).sums)
        change({"values": values, "scores": scores}[name])

    return changed


@pytest.mark.parametrize(
    ("task", "change", "reason"),
    [
        (CLASSES, set_count(-1, 21), "21 groups of 20 samples"),
        (CLASSES, set_count(-1, 0), "0 groups"),
        (CLASSES, set_count(-1, 20), "squared sizes"),
        (CLASSES, change_products("values", lambda own: own[0].neg_()), "larger than its group's"),
        (CLASSES, change_products("values", lambda own: own.mul_(30)), "larger than its group's"),
        (CLASSES, change_products("values", lambda own: own.mul_(0.5)), "smaller than the contribution of single"),
        (CLASSES, change_products("scores", lambda own: own.mul_(0.2)), "smaller than the contribution of single"),
        (CLASSES, change_products("values", lambda own: own[1].add_(1)), "differ in the groups' sizes"),
        (CLASSES, change_products("scores", lambda own: own.add_(50)), "larger than its group's"),
        (NUMBER, change_products("values", lambda own: own.mul_(0.2)), "contradict"),
        (NUMBER, change_products("values", lambda own: own[1].mul_(90)), "contradict"),
        (NUMBER, change_products("values", lambda own: own[-1].mul_(90)), "larger than its group's"),
        (NUMBER, change_products("values", lambda own: own[0].mul_(4)), "squared sizes"),
        (NUMBER, change_products("values", lambda own: own[0].fill_(math.nan)), "NaN"),
    ],
)
def test_products_that_no_groups_have_are_refused(
    task: TaskSpec, change: Callable[[TaskSpec, Tally], None], reason: str
) -> None:
    outputs, labels = draw(task, 20, 4)
    total = tallied(task, outputs, labels, groups=torch.arange(20) // 3)
    unpack_tally(task, pack_tally(total), True)
    change(task, total)
    with pytest.raises(ValueError, match=reason):
        unpack_tally(task, pack_tally(total), True)


@pytest.mark.parametrize("task", TASKS)
def test_no_samples_have_no_sums(task: TaskSpec) -> None:
    total = empty(task)
    total.sums[0] = 1.0
    with pytest.raises(ValueError, match="no samples"):
        unpack_tally(task, pack_tally(total))


def test_a_count_beyond_31_bits_is_neither_sent_nor_believed() -> None:
    total = empty(CLASSES)
    total.counts[0] = 2**31
    with pytest.raises(ValueError, match="larger"):
        pack_tally(total)
    data = bytearray(pack_tally(empty(CLASSES)))
    data[:4] = (2**31).to_bytes(4, "little")
    with pytest.raises(ValueError, match="larger"):
        unpack_tally(CLASSES, bytes(data))


def test_the_bytes_are_little_endian_counts_then_sums() -> None:
    labels = torch.tensor([0])
    data = pack_tally(tally(CLASSES, torch.zeros(1, 2), labels, torch.tensor([0.5])))
    assert data[:4] == b"\1\0\0\0"
    assert data[4 * (1 + 4 * BINS + 4 + 30) :][:8] == b"\0\0\0\0\0\0\xe0\x3f"
    several = MultiLabel(name="multi-label", labels=3)
    assert tally_bytes(several) == 4 * (1 + 3 * (2 * BINS + 4 + 30)) + 8 * (1 + 45 + 3 + 18)
