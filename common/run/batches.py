"""Sizes of batches and numbers of steps in an epoch. Pure functions."""

from __future__ import annotations

import math
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from itertools import accumulate, pairwise
from typing import Literal

from rankdad.common.spec import RunSpec
from rankdad.common.spec.overrides import ends

MAX_STEPS = 1_000_000  # of an epoch, because every process lists every site's


@dataclass(frozen=True)
class Schedule:
    """An epoch's steps.

    Args:
        batches: sizes of every site's batches in each step; none after a site's last one.
        weights: for every site, the weight of a row in a step: less than 1 if rows are drawn more than once.
        counts: for every site, number of batches of each step.
        steps: number of steps: at least one site has samples in the last one.
    """

    batches: tuple[list[list[int]], ...]
    weights: tuple[float, ...]
    counts: tuple[list[int], ...]
    steps: int


def schedule(spec: RunSpec, samples: Sequence[int], epoch: int) -> Schedule:
    """Return the schedule of an epoch.

    Args:
        spec: the run.
        samples: number at every site, in the plan's order.
        epoch: counted from 0; some sites train only in the first ones.
    """
    own = [spec.at(site) for site in spec.federation.sites]
    trained = [
        count if spec.federation.trains(site, epoch) else 0
        for site, count in zip(spec.federation.sites, samples, strict=True)
    ]
    drawn = drawn_sizes(spec, trained)
    most: dict[int | Literal["epoch"] | None, int] = {}
    for site, sizes in zip(own, drawn, strict=True):
        most[site.local_steps] = max(len(sizes), most.get(site.local_steps, 0))
    counts = {local_steps: batches_per_step(number, local_steps) for local_steps, number in most.items()}
    batches, weights = [], []
    for site, sizes, count in zip(own, drawn, trained, strict=True):
        each = counts[site.local_steps]
        weights.append(count / sum(sizes) if count else 0.0)
        batches.append([sizes[end - taken : end] for taken, end in zip(each, accumulate(each), strict=True)])
    steps = max((step for site in batches for step, sizes in enumerate(site, 1) if any(sizes)), default=0)
    return Schedule(tuple(batches), tuple(weights), tuple(counts[site.local_steps] for site in own), steps)


def run_steps(spec: RunSpec, samples: Sequence[int], epochs: int | None = None) -> tuple[int, int]:
    """Return the number of steps of a training without early stopping, and of its batches.

    Args:
        spec: the run.
        samples: number at every site, in the plan's order.
        epochs: of the training; by default the spec's.
    """
    last = spec.training.epochs if epochs is None else epochs
    steps = batches = 0
    for first, end in pairwise([0, *ends(spec.federation.overrides, last), last]):  # with equal epochs in between
        epoch = schedule(spec, samples, first)
        steps += (end - first) * epoch.steps
        batches += (end - first) * max(map(sum, epoch.counts))
    return steps, batches


def steps_of_all(spec: RunSpec, roster: Sequence[Sequence[int]], equal: Collection[int] = ()) -> tuple[int, int]:
    """Return the number of steps and of batches of all trainings, without those of `equal` repeats."""
    counts = [run_steps(spec, samples) for fold, samples in enumerate(roster) if spec.repeat(fold) not in equal]
    return sum(steps for steps, _ in counts), sum(batches for _, batches in counts)


def drawn_sizes(spec: RunSpec, samples: Sequence[int]) -> list[list[int]]:
    """Return the sizes of every site's batches in an epoch, given its samples in the plan's order.

    A site that makes more batches than its samples fill draws samples repeatedly for full batches, because steps of few
    rows would disclose too much. No batch has more than half of the samples, or it would be the same each time.
    """
    largest = [spec.at(site).training.step_size for site in spec.federation.sites]
    numbers = [math.ceil(count / most) for count, most in zip(samples, largest, strict=True)]
    longest = max(numbers)
    return [
        [min(most, max(1, count // 2))] * longest
        if spec.batches == "even" and 0 < number < longest
        else parts(count, longest if spec.batches == "even" else number)
        for count, most, number in zip(samples, largest, numbers, strict=True)
    ]


def largest_sizes(spec: RunSpec, samples: Sequence[int]) -> list[list[int]]:
    """Return the sizes in the epochs with a site's largest batches: when other sites have ended, it makes fewer."""
    sites = spec.federation.sites
    there = (
        [count * spec.federation.trains(site, epoch) for site, count in zip(sites, samples, strict=True)]
        for epoch in [0, *ends(spec.federation.overrides, spec.training.epochs)]
    )
    each = [drawn_sizes(spec, counts) for counts in there if any(counts)]
    return [max(sizes, key=lambda own: max(own, default=0)) for sizes in zip(*each, strict=True)]


def idle(spec: RunSpec, roster: Sequence[Sequence[int]]) -> str | None:
    """Return what is wrong if no site has a training sample in one of a run's epochs; otherwise None.

    Args:
        spec: the run.
        roster: training samples of every fold and site.
    """
    for fold, samples in enumerate(roster, 1):
        there = [site for site, count in zip(spec.federation.sites, samples, strict=True) if count]
        if not there:
            return f"in fold {fold} no site has a sample to train on"
        if not any(spec.federation.trains(site, spec.training.epochs - 1) for site in there):
            return (
                f"in fold {fold} no site that trains in all {spec.training.epochs} epochs (federation.overrides) has a "
                "sample to train on"
            )
    return None


def batch_sizes(samples: int, largest: int) -> list[int]:
    """Return the sizes of an epoch's batches: as few as possible, equal to within one sample."""
    return parts(samples, math.ceil(samples / largest))


def parts(samples: int, count: int) -> list[int]:
    """Return the sizes of `count` parts, equal to within one sample, larger ones first."""
    return [samples // count + (batch < samples % count) for batch in range(count)]


def batches_per_step(batches: int, local_steps: int | Literal["epoch"] | None) -> list[int]:
    """Return the number of batches in each step of an epoch: one, or several with local steps.

    Args:
        batches: of the epoch, at the site with most; possibly none.
        local_steps: of the method.
    """
    most = max(1, batches) if local_steps == "epoch" else local_steps or 1
    return parts(batches, math.ceil(batches / most))
