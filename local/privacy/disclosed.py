"""How much of a site's patients a run discloses at many weights, added to what earlier runs have disclosed."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from rankdad.common.data import SiteData
from rankdad.common.errors import FewSamplesError, PolicyError, counted
from rankdad.common.lowrank.routes import Route
from rankdad.common.policy import Policy
from rankdad.common.preparation import Preparing
from rankdad.common.privacy.repeated import (
    Sent,
    most_disclosed,
    numbers_of_epoch,
    shares_told,
    steps_of_all,
)
from rankdad.common.privacy.standing import NEAR, Places, most_known
from rankdad.common.protocol.plan import Plan
from rankdad.common.refusals import refusal
from rankdad.common.spec import RunSpec
from rankdad.common.spec.model import Factory
from rankdad.local.privacy.cells import StepNumbers, cells_of_row, varies

REPEATED = "sums of the same patients at many weights: with as many numbers as cells, these can be solved for"

STANDING = "who is in which batch, and so each one's gradient: many batches at the same weights reveal both"

SILENT = ("relu", "gelu")  # a unit may be inactive for a third of the patients or more

WIDER = "who is in which batch, and so each one's row: with as many columns as patients, batches reveal both"

SMALLEST = 4  # bytes of a number in a buffer


class About(NamedTuple):
    """Numbers about the patients of some samples, who have this many cells each."""

    rows: Tensor
    numbers: int
    cells: float


def disclosed_here(data: SiteData, sent: Iterable[About]) -> Tensor:
    """Return the share of cells disclosed of each sample's patient, float64 [samples]."""
    of = torch.arange(len(data.samples)) if data.groups is None else data.groups
    people = int(of.max()) + 1 if len(of) else 0
    return shares_told([Sent(of[one.rows].unique(), one.numbers, one.cells) for one in sent], people)[of]


def disclosed_before(data: SiteData) -> Tensor:
    """Return the share that earlier runs have disclosed, from the site's log; float64 [samples]."""
    if data.parts is None or data.parts.disclosed is None:
        return torch.zeros(len(data.samples), dtype=torch.float64)
    return torch.from_numpy(data.parts.disclosed)


def of_solving(spec: RunSpec, data: SiteData) -> Iterator[About]:
    """Yield the samples behind a linear model's sums: all samples, and those of each training.

    Each level counts as a column, as in the sums of products.
    """
    whole, fold = Preparing(spec).solving.numbers()
    last, columns = data.splits[-1], math.prod(spec.data.shape) + 1
    yield About(torch.cat([last.train, last.validation, last.test]), whole, columns)
    for number, split in enumerate(data.splits):
        if spec.tests(number):
            yield About(split.train, fold, columns)


def of_validation(spec: RunSpec, data: SiteData) -> Iterator[About]:
    """Yield what is sent about each training's validation samples between epochs."""
    numbers, cells = numbers_of_epoch(spec.task, spec.training.monitor), cells_of_row(spec, data)
    for split in data.splits:
        yield About(split.validation, numbers * spec.training.epochs, cells)


def epochs_of_validation(policy: Policy, spec: RunSpec, data: SiteData) -> int:
    """Return the number of epochs for which sums over all validation samples are allowed, given other disclosures."""
    own, all_ = disclosed_here(data, of_validation(spec, data)), disclosed_before(data) + beside_steps(spec, data)
    left, disclosed = most_disclosed(policy.rows_per_rank) - (all_ - own), own > 0
    return max(0, int(spec.training.epochs * (left[disclosed] / own[disclosed]).min())) if disclosed.any() else 0


def of_directions(
    policy: Policy, spec: RunSpec, plan: Plan, data: SiteData, sizes: Sequence[Sequence[int]]
) -> Iterator[About]:
    """Yield what batches disclose of a training with at least half as many columns as patients.

    The gradient of a layer that sees the inputs is a sum of its batch's rows. With as many columns as patients, each
    sum determines the rows in it, at any weights. Units that may be inactive count as active for two patients of three.
    """
    width, inputs = math.prod(spec.data.shape), data.samples.inputs
    seeing = [_rows(route) for route in plan.routes if route.matrix[1] in (width, width + 1) and len(route.shape) > 1]
    if not isinstance(inputs, Tensor) or not seeing or spec.data.tokens is not None:
        return
    directions = int(varies(inputs).sum()) + 1
    numbers = StepNumbers.of(policy, spec, plan, data)
    for split, own in zip(data.splits, sizes, strict=True):
        people = data.people(split.train)
        drawn = [size for size in own if 0 < size < len(split.train)]
        if drawn and directions > most_disclosed(policy.rows_per_rank) * people * _answered(spec):
            most = numbers.rows(max(drawn))
            rows = max(seeing) if most is None else max(1, min(most, max(seeing)))
            yield About(split.train, len(drawn) * rows * spec.training.epochs, 1.0)


def _answered(spec: RunSpec) -> float:
    """Return the share of patients for which a unit that sees the inputs is active."""
    model = spec.model
    silent = getattr(model, "activation", "") in SILENT or getattr(model, "dropout", 0) > 0
    return 2 / 3 if silent or isinstance(model, Factory) else 1.0


def _rows(route: Route) -> int:
    """Return how many rows of a layer's gradient a step sends, at least one."""
    return max(1, route.matrix[0] - 1 if route.up is None else route.up)


def of_steps(
    policy: Policy, spec: RunSpec, plan: Plan, data: SiteData, sizes: Sequence[Sequence[int]]
) -> Iterator[About]:
    """Yield what steps over all of a training's samples, and buffers after them, disclose."""
    cells, buffers = cells_of_row(spec, data), plan.buffer_bytes // SMALLEST
    for split, own in zip(data.splits, sizes, strict=True):
        people = data.people(split.train)  # with several visits, each batch may have all patients
        if steps := steps_of_all(own, min(people, len(split.train))):
            each = StepNumbers.of(policy, spec, plan, data).sent(len(split.train))
            yield About(split.train, (steps * each + buffers) * spec.training.epochs, cells)


def over(policy: Policy, disclosed: Tensor) -> Tensor:
    """Return whether the disclosed share exceeds the policy's limit, bool [samples]."""
    return disclosed > most_disclosed(policy.rows_per_rank) * (1 + 1e-9)


def check_solving(policy: Policy, spec: RunSpec, data: SiteData, noun: str, field: str, owner: str) -> None:
    """Check that a linear model's sums, added to earlier runs, do not disclose too much.

    Args:
        policy: of the site.
        spec: of the run.
        data: of the site.
        noun: for a patient, in the singular.
        field: of the spec that asks for the sums.
        owner: what the owner could ask for instead.

    Raises:
        FewSamplesError: they do.
    """
    before, own = disclosed_before(data), disclosed_here(data, of_solving(spec, data))
    if over(policy, before + own).any():
        asks = f"sends numbers for a linear model that are {_percent(own)} of the cells of a {noun} here"
        raise FewSamplesError.of(_told_already(policy, asks, before, own, field, owner), code="linear-needs-samples")


def check_repeated(policy: Policy, spec: RunSpec, plan: Plan, data: SiteData, sizes: Sequence[Sequence[int]]) -> None:
    """Check that not too many numbers leave in batches of all of a training's samples; smaller ones are drawn afresh.

    Args:
        policy: of the site.
        spec: of the run.
        plan: of the run.
        data: of the site.
        sizes: of every training's batches in an epoch.

    Raises:
        FewSamplesError: there are too many.
    """
    check_directions(policy, spec, plan, data, sizes)
    steps = list(of_steps(policy, spec, plan, data, sizes))
    own, before = disclosed_here(data, steps), disclosed_before(data) + beside_steps(spec, data)
    if not steps or not over(policy, before + own).any():
        return
    noun, cells = "sample" if data.groups is None else spec.group_noun, steps[0].cells
    most, disclosed = most_disclosed(policy.rows_per_rank), own > 0
    allowed = max(0, int(spec.training.epochs * ((most - before[disclosed]) / own[disclosed]).min()))
    people, numbers = data.people(torch.cat([one.rows for one in steps]).unique()), sum(one.numbers for one in steps)
    asks = (
        f"makes steps of all {counted(people, noun)} of a training here, which send {numbers:,} numbers about "
        f"{cells:.3g} cells of each"
    )
    often = f"{counted(allowed, 'epoch')} of such steps" if allowed else "no such step"
    if before.any():
        often += f" beside the {_percent(before)} of their cells in earlier answers"
    else:
        needed = math.ceil(numbers / (most * cells))
        often += f", or all from {counted(needed, noun)} on" if allowed else f" below {counted(needed, noun)}"
    often += f" (rows_per_rank {policy.rows_per_rank})"
    change: dict[str, object] = {"rows_per_rank": lets(before + own)}
    error = refusal("training.epochs", asks, often, change, REPEATED, owner="smaller batches, two or more an epoch,")
    raise FewSamplesError.of(error, code="steps-of-all-repeated")


def check_directions(policy: Policy, spec: RunSpec, plan: Plan, data: SiteData, sizes: Sequence[Sequence[int]]) -> None:
    """Check that batches of patients with this many columns are too few to reveal who is in which.

    Args:
        policy: of the site.
        spec: of the run.
        plan: of the run.
        data: of the site.
        sizes: of every training's batches in an epoch.

    Raises:
        FewSamplesError: there are too many.
    """
    steps = list(of_directions(policy, spec, plan, data, sizes))
    before = disclosed_before(data) + beside_steps(spec, data)
    own = disclosed_here(data, steps)
    if not steps or not over(policy, before + own).any():
        return
    noun = "sample" if data.groups is None else spec.group_noun
    fewest = min(data.people(one.rows) for one in steps)
    inputs = data.samples.inputs
    columns = int(varies(inputs).sum()) if isinstance(inputs, Tensor) else 0
    asks = f"trains on {counted(columns, 'column')}, levels counted one by one, of {counted(fewest, noun)} here"
    most = most_disclosed(policy.rows_per_rank) * _answered(spec)
    allows = f"that from {counted(math.ceil((columns + 1) / most), noun)} on (rows_per_rank {policy.rows_per_rank})"
    change: dict[str, object] = {"rows_per_rank": int(2 * fewest * _answered(spec) / (columns + 1)) or None}
    owner = f"at most {counted(max(0, int(most * fewest) - 1), 'column')}"
    if any(len(split.validation) for split in data.splits):
        owner += ", or no validation (training.validation 0)"
    owner += ', or units that are active for all ("activation": "tanh")' * (_answered(spec) < 1)
    owner += ", or a model that does not see them all,"
    error = refusal("data", asks, allows, change, WIDER, owner=owner)
    raise FewSamplesError.of(error, code="columns-of-too-few")


def check_standing(
    policy: Policy,
    spec: RunSpec,
    data: SiteData,
    fold: int,
    numbers: int,
    places: Places,
    earlier: Places = (),
) -> None:
    """Check that batches at nearly the same weights are too few to reveal who is in which.

    Args:
        policy: of the site.
        spec: of the run.
        data: of the site.
        fold: in training.
        numbers: in the largest batch.
        places: with numbers of sent batches; the next batches are at the last one.
        earlier: places of other runs.

    Raises:
        FewSamplesError: there are too many.
    """
    known, people = most_known(places, numbers, earlier), data.people(data.splits[fold].train)
    most = int(most_disclosed(policy.rows_per_rank) * people) if policy.rows_per_rank else math.inf
    if known <= most:
        return
    noun = "sample" if data.groups is None else spec.group_noun
    others = ", with those of other runs" * bool(earlier)
    asks = f"sends {counted(known, 'step')}{others}, at weights or of a model that hardly differ ({NEAR:.1%})"
    allows = f"{most} such of {counted(people, noun)} here (rows_per_rank {policy.rows_per_rank})"
    change: dict[str, object] = {"rows_per_rank": 2 * people // known or None}
    owner = "a larger learning rate, fewer epochs or trainings, or another seed"
    error = refusal("training.optimizer.lr", asks, allows, change, STANDING, owner=owner)
    raise FewSamplesError.of(error, code="weights-hardly-move")


def tell(
    policy: Policy,
    spec: RunSpec,
    plan: Plan,
    data: SiteData,
    sizes: Sequence[Sequence[int]] | None,
    *,
    anew: bool = True,
) -> bool:
    """Log what the run discloses of each patient; return whether it is still allowed.

    Args:
        policy: of the site.
        spec: of the run.
        plan: of the run.
        data: of the site, as it was admitted.
        sizes: of every training's batches in an epoch; None for a run that is solved exactly.
        anew: whether it starts from the beginning, where other members may send something else than the last time.

    Raises:
        PolicyError: it has begun here before, and would disclose too much.
    """
    if data.parts is None or data.parts.tell is None:
        return True
    disclosed = disclosed_here(data, of_solving(spec, data))
    if sizes is not None:
        steps = (*of_steps(policy, spec, plan, data, sizes), *of_directions(policy, spec, plan, data, sizes))
        disclosed = beside_steps(spec, data) + disclosed_here(data, steps)
    return data.parts.tell(disclosed.numpy(), most_disclosed(policy.rows_per_rank), anew)


def beside_steps(spec: RunSpec, data: SiteData) -> Tensor:
    """Return what a run in steps discloses besides: for the linear reference, and about validation samples."""
    solved = of_solving(spec, data) if "linear" in spec.references else ()
    return disclosed_here(data, [*solved, *of_validation(spec, data)])


def _told_already(policy: Policy, asks: str, before: Tensor, own: Tensor, field: str, owner: str) -> PolicyError:
    allows = (
        f"{most_disclosed(policy.rows_per_rank):.0%} in all (rows_per_rank {policy.rows_per_rank}), and earlier runs "
        f"have sent {_percent(before)}"
    )
    return refusal(field, asks, allows, {"rows_per_rank": lets(before + own)}, REPEATED, owner=owner)


def lets(disclosed: Tensor) -> int | None:
    """Return the strictest `rows_per_rank` that allows this share."""
    return int(2 / float(disclosed.max()) + 1e-9) or None


def _percent(disclosed: Tensor) -> str:
    return f"{float(disclosed.max()):.0%}"
