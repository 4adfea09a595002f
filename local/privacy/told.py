"""What a run tells of a site's patients at many weights, beside what earlier runs have told of them."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence

import torch
from torch import Tensor

from rankdad.common.errors import FewSamplesError, PolicyError, counted
from rankdad.common.policy import Policy, refusal
from rankdad.common.preparation import Preparing
from rankdad.common.privacy.repeated import (
    Sent,
    most_told,
    numbers_of_epoch,
    numbers_of_step,
    shares_told,
    steps_of_all,
)
from rankdad.common.protocol.plan import Plan
from rankdad.common.spec import RunSpec
from rankdad.local.data import SiteData

REPEATED = "sums of the same patients at many weights: with as many numbers as they have cells, these can be solved for"


def told_here(spec: RunSpec, data: SiteData, sent: Iterable[tuple[Tensor, int]]) -> Tensor:
    """Return what share of the cells of each sample's patient is told, float64 [samples].

    Args:
        spec: of the run.
        data: of the site.
        sent: samples, and how many numbers about their patients.
    """
    of = torch.arange(len(data.samples)) if data.groups is None else data.groups
    people = int(of.max()) + 1 if len(of) else 0
    return shares_told([Sent(of[rows].unique(), numbers) for rows, numbers in sent], people, _columns(spec))[of]


def told_before(data: SiteData) -> Tensor:
    """Return the same of earlier runs, as the site's log has it."""
    if data.parts is None or data.parts.told is None:
        return torch.zeros(len(data.samples), dtype=torch.float64)
    return torch.from_numpy(data.parts.told)


def of_solving(spec: RunSpec, data: SiteData) -> Iterator[tuple[Tensor, int]]:
    """Yield what a linear model's sums at some weights are about: all samples, and those of each training."""
    whole, fold = Preparing(spec).solving.numbers()
    last = data.splits[-1]
    yield torch.cat([last.train, last.validation, last.test]), whole
    for number, split in enumerate(data.splits):
        if spec.tests(number):
            yield split.train, fold


def of_validation(spec: RunSpec, data: SiteData) -> Iterator[tuple[Tensor, int]]:
    """Yield what leaves about each training's validation samples between epochs."""
    for split in data.splits:
        yield split.validation, numbers_of_epoch(spec.task, spec.training.monitor) * spec.training.epochs


def of_steps(
    policy: Policy, spec: RunSpec, plan: Plan, data: SiteData, sizes: Sequence[Sequence[int]]
) -> Iterator[tuple[Tensor, int]]:
    """Yield what steps of all of a training's samples tell of these."""
    for split, own in zip(data.splits, sizes, strict=True):
        if steps := steps_of_all(own, len(split.train)):
            each = numbers_of_step(plan, policy.rank(len(split.train)), projections=spec.training.sends_projections)
            yield split.train, steps * each * spec.training.epochs


def over(policy: Policy, told: Tensor) -> Tensor:
    """Return of which samples' patients more is told than a policy allows, bool [samples]."""
    return told > most_told(policy.rows_per_rank) * (1 + 1e-9)


def check_solving(policy: Policy, spec: RunSpec, data: SiteData, noun: str, field: str, owner: str) -> None:
    """Check that a linear model's sums do not tell too much beside what earlier runs have told.

    Args:
        policy: of the site.
        spec: of the run.
        data: of the site.
        noun: what a patient is called, in the singular.
        field: of the spec that asks for the sums.
        owner: what the owner could ask for instead.

    Raises:
        FewSamplesError: they do.
    """
    before, own = told_before(data), told_here(spec, data, of_solving(spec, data))
    if before.any() and over(policy, before + own).any():
        asks = f"sends numbers for a linear model that are {_percent(own)} of the cells of a {noun} here"
        raise FewSamplesError.of(_told_already(policy, asks, before, own, field, owner), code="linear-needs-samples")


def check_repeated(policy: Policy, spec: RunSpec, plan: Plan, data: SiteData, sizes: Sequence[Sequence[int]]) -> None:
    """Check that not too many numbers leave in batches of all of a training's samples; others are drawn afresh.

    Args:
        policy: of the site.
        spec: of the run.
        plan: of the run.
        data: of the site.
        sizes: of every training's batches in an epoch.

    Raises:
        FewSamplesError: there are too many.
    """
    steps = list(of_steps(policy, spec, plan, data, sizes))
    own, before = told_here(spec, data, steps), told_before(data) + beside_steps(spec, data)
    if not steps or not over(policy, before + own).any():
        return
    noun, columns = "sample" if data.groups is None else spec.group_noun, _columns(spec)
    most, told = most_told(policy.rows_per_rank), own > 0
    allowed = max(0, int(spec.training.epochs * ((most - before[told]) / own[told]).min()))
    people, numbers = data.people(torch.cat([rows for rows, _ in steps]).unique()), sum(number for _, number in steps)
    asks = (
        f"sends {numbers:,} numbers of {counted(people, noun)} here about {columns} columns, in steps each of "
        "all of a training"
    )
    often = counted(allowed, "epoch") + " of that" if allowed else "none of that"
    often += f" beside what else is told, {_percent(before)} of their cells" if before.any() else ""
    if not before.any():
        needed = math.ceil(numbers / (most * columns))
        often += f", or all from {counted(needed, noun)} on" if allowed else f" but from {counted(needed, noun)} on"
    often += (
        f" (rows_per_rank {policy.rows_per_rank}); smaller batches, of which there are two or more, are of others each "
        "time"
    )
    change: dict[str, object] = {"rows_per_rank": lets(before + own)}
    error = refusal("training.epochs", asks, often, change, REPEATED)
    raise FewSamplesError.of(error, code="steps-of-all-repeated")


def tell(policy: Policy, spec: RunSpec, plan: Plan, data: SiteData, sizes: Sequence[Sequence[int]] | None) -> bool:
    """Note in the site's log what the run tells of each patient; return whether it still may.

    Args:
        policy: of the site.
        spec: of the run.
        plan: of the run.
        data: of the site, as it was admitted.
        sizes: of every training's batches in an epoch; None of a run that is solved exactly.
    """
    if data.parts is None or data.parts.tell is None:
        return True
    told = told_here(spec, data, of_solving(spec, data))
    if sizes is not None:
        told = beside_steps(spec, data) + told_here(spec, data, of_steps(policy, spec, plan, data, sizes))
    return data.parts.tell(told.numpy())


def beside_steps(spec: RunSpec, data: SiteData) -> Tensor:
    """Return what a run by steps tells beside these: for the reference linear, and of validation samples."""
    solved = of_solving(spec, data) if "linear" in spec.references else ()
    return told_here(spec, data, [*solved, *of_validation(spec, data)])


def _told_already(policy: Policy, asks: str, before: Tensor, own: Tensor, field: str, owner: str) -> PolicyError:
    allows = (
        f"{most_told(policy.rows_per_rank):.0%} in all (rows_per_rank {policy.rows_per_rank}), and earlier runs have "
        f"sent {_percent(before)}"
    )
    return refusal(field, asks, allows, {"rows_per_rank": lets(before + own)}, REPEATED, owner=owner)


def lets(told: Tensor) -> int | None:
    """Return the strictest `rows_per_rank` that lets so much be told."""
    return int(2 / float(told.max()) + 1e-9) or None


def _percent(told: Tensor) -> str:
    return f"{float(told.max()):.0%}"


def _columns(spec: RunSpec) -> int:
    return math.prod(spec.data.shape) + 1
