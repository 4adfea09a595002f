"""Batches at weights that hardly move are counted, wherever the weights have been between."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor

from rankdad.common.privacy.standing import MOST, NEAR, Place, Places, arrived, most_known, stayed, stretch
from rankdad.common.run.weight_sketch import sketch

WEIGHTS = torch.randn(1000, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
AWAY = torch.randn(1000, generator=torch.Generator().manual_seed(1), dtype=torch.float64)


def at(moved: float) -> Tensor:
    """Return the sketch of weights that have moved by a part of their size."""
    return sketch({"weights": WEIGHTS + moved * AWAY * WEIGHTS.norm() / AWAY.norm()})


def trained(course: list[tuple[float, float]], steps: int = 5) -> Places:
    """Return the places after epochs that begin and end so far away."""
    places: Places = ()
    for begins, ends in course:
        places = stayed(arrived(places, Place(at(begins))), Place(at(ends)), steps)
    return places


@pytest.mark.parametrize(
    ("course", "known"),
    [
        ([(0, 0)] * 4, 20),  # nothing moves
        ([(0, NEAR / 9), (NEAR / 9, NEAR / 5), (NEAR / 5, NEAR / 3)], 15),  # little by little, to near the first
        ([(0, 1.0)] * 4, 4),  # every training begins with the same weights, and leaves them
        ([(0, 1.0), (1.0, 0), (0, 1.0), (1.0, 0), (0, 0)], 7),  # an aggregator that goes back and forth
        ([(n * 2 * NEAR, (n + 1) * 2 * NEAR) for n in range(9)], 1),
    ],
)
def test_steps_near_the_same_weights_add_up(course: list[tuple[float, float]], known: int) -> None:
    places = trained(course)
    assert most_known(places, 1000) == known
    assert most_known(places, 3) == min(known, 3), "no more dimensions than numbers"
    assert most_known((), 1000) == 0


def test_what_is_remembered_is_bounded_and_the_place_of_now_never_forgotten() -> None:
    places: Places = ()
    for epoch in range(MOST + 10):
        places = stayed(arrived(places, Place(at(epoch))), Place(at(epoch)), 2)
    assert len(places) == MOST
    assert torch.equal(places[-1].sketch, at(MOST + 9))
    assert places[-1].steps == 2


@pytest.mark.parametrize(("apart", "known"), [(0.0, 20), (2 * NEAR, 1)])
def test_weights_that_move_while_the_model_stays_have_not_moved(apart: float, known: int) -> None:
    """A member added a growing number to both outputs of a softmax: a program had all rows of 45 patients."""
    places: Places = ()
    for epoch in range(4):
        ends = [Place(at(part), flows=torch.tensor([1.0, apart * part])) for part in (2.0 * epoch, 2.0 * epoch + 1)]
        places = stayed(arrived(places, ends[0]), ends[1], 5)
    assert most_known(places, 1000) == known


@pytest.mark.parametrize(
    ("told", "people", "steps"),
    [(0.5, 160, 10), (0.5, 2, 1), (0.5, 0, 1), (math.inf, 30, 1 << 30), (math.inf, 0, 1 << 30)],
)
def test_a_site_that_trains_on_nobody_is_looked_at_like_any_other(told: float, people: int, steps: int) -> None:
    assert stretch(told, people) == steps
