"""Batches at weights that hardly move are counted, wherever the weights have been between."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
import torch
from torch import Tensor

from rankdad.common.privacy.standing import MOST, NEAR, NUMBER, Flows, Place, Places, arrived, most_known, stretch
from rankdad.common.run.weight_sketch import sketch

WEIGHTS = torch.randn(1000, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
AWAY = torch.randn(1000, generator=torch.Generator().manual_seed(1), dtype=torch.float64)


def at(moved: float) -> Tensor:
    """Return the sketch of weights that have moved by a part of their size."""
    return sketch({"weights": WEIGHTS + moved * AWAY * WEIGHTS.norm() / AWAY.norm()})


def looked(course: list[float], steps: int = 5) -> Places:
    """Return the places after stretches in each of which the weights were looked at so far away."""
    places: Places = ()
    for moved in course:
        places = arrived(places, Place(at(moved), steps))
    return places


@pytest.mark.parametrize(
    ("course", "known"),
    [
        ([0] * 4, 20),  # nothing moves
        ([0, NEAR / 5, NEAR / 3], 15),  # little by little, to near the first
        ([0, 1.0, 0, 1.0, 0], 15),  # an aggregator that goes back and forth
        ([n * 2 * NEAR for n in range(9)], 5),
    ],
)
def test_steps_near_the_same_weights_add_up(course: list[float], known: int) -> None:
    places = looked(course)
    assert most_known(places, 1000) == known
    assert most_known(places, 3) == 3, "no more dimensions than numbers"
    assert most_known((), 1000) == 0


def test_what_is_remembered_is_bounded_and_the_place_of_now_never_forgotten() -> None:
    places = looked([1.02**epoch for epoch in range(MOST + 10)], 2)
    assert len(places) == MOST
    assert torch.equal(places[-1].sketch, at(1.02 ** (MOST + 9)))
    assert places[-1].steps == 2


LABELS = torch.arange(40) % 2
LOGITS = torch.randn(40, generator=torch.Generator().manual_seed(2), dtype=torch.float64)


SAMPLES = torch.arange(40)


def flows(kinds: Tensor, values: Tensor) -> Flows:
    return Flows(SAMPLES, kinds[:, None], values[:, None])


def of_labels(*spreads: float) -> Flows:
    """What flows back to an output for each label."""
    one = [torch.sigmoid(spread * LOGITS) - LABELS for spread in spreads]
    return Flows(SAMPLES, LABELS[:, None].expand(-1, len(spreads)), torch.stack(one, 1))


def of_softmax(outputs: int, spread: float, other: float, first: int = 0) -> Flows:
    """What flows back to a softmax with classes that nobody has; samples of one class, and of the other, spread so."""
    logits = torch.full((40, outputs), -60.0, dtype=torch.float64)
    logits[:, first] = torch.where(LABELS == 0, spread, other) * LOGITS
    logits[:, 1 - first] = 0
    kinds = (LABELS - first).abs()
    values = torch.softmax(logits, 1) - torch.nn.functional.one_hot(kinds, outputs)
    return Flows(SAMPLES, kinds[:, None].expand(-1, outputs), values)


def of_classes(chance: float, spread: float) -> Flows:
    """What flows back to one output from samples whose chances are nearly, or not at all, the same."""
    logit = math.log(chance / (1 - chance))
    return flows(LABELS, torch.sigmoid(logit + spread * LOGITS) - LABELS)


@pytest.mark.parametrize(
    ("before", "after", "stays"),
    [
        (of_classes(0.5, 0.5), of_classes(0.5, 0.5), True),  # a number added to both outputs of a softmax
        (of_classes(0.5, 1e-7), of_classes(0.8, 1e-7), True),  # the bias alone moves: divided out class by class
        (of_classes(0.5, 0.5), of_classes(0.5, 0.6), False),
        (of_classes(0.5, 0.5), of_classes(0.8, 0.5), False),
        (flows(torch.full((40,), NUMBER), LOGITS), flows(torch.full((40,), NUMBER), 3 * LOGITS + 1), True),
        (flows(torch.full((40,), NUMBER), LOGITS), flows(torch.full((40,), NUMBER), LOGITS.exp()), False),
        (of_classes(0.5, 0.5), replace(of_classes(0.5, 0.5), ids=torch.arange(40) + 33), False),  # 7 samples are left
        (of_labels(0.5, 0.5), of_labels(0.5, 0.6), True),  # one label's output moves alone
        (of_labels(0.5, 0.5), of_labels(0.6, 0.6), False),
        (of_softmax(2, 0.5, 0.5), of_softmax(2, 0.5, 0.6), True),  # samples of one class alone
        (of_softmax(2, 0.5, 0.5), of_softmax(2, 0.6, 0.6), False),
        (of_softmax(2, 0.5, 0.5), of_softmax(4, 0.5, 0.5), True),  # a run with classes that nobody has
        (of_softmax(2, 0.5, 0.5), of_softmax(2, 0.5, 0.5, first=1), True),  # or with classes in another order
        (of_softmax(2, 0.5, 0.5), of_softmax(4, 0.6, 0.6), False),
    ],
)
def test_a_model_that_stays_has_not_moved_whatever_its_weights_have(before: Flows, after: Flows, stays: bool) -> None:
    """Programs from outside had all rows of a hospital while the weights moved, and the model did not."""
    assert before.near([after]) == [stays]
    places = looked([0.0])
    for moved, there in ((1.0, before), (2.0, after)):
        places = arrived(places, Place(at(moved), 5, there))
    assert most_known(places, 1000) == (10 if stays else 5)


def test_flows_come_back_from_a_log() -> None:
    found = Flows.unpack(of_classes(0.5, 0.5).pack())
    assert found is not None
    sent = of_classes(0.5, 0.5)
    assert all(torch.equal(getattr(found, name), getattr(sent, name)) for name in ("ids", "kinds", "values"))
    assert Flows.unpack(b"") is None


@pytest.mark.parametrize(
    ("told", "people", "steps"),
    [(0.5, 160, 5), (0.5, 2, 1), (0.5, 0, 1), (math.inf, 30, 1 << 30), (math.inf, 0, 1 << 30)],
)
def test_a_site_that_trains_on_nobody_is_looked_at_like_any_other(told: float, people: int, steps: int) -> None:
    assert stretch(told, people) == steps
