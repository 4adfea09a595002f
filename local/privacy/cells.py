"""Cells of a site's table, patients times columns, and the numbers of one step that are held against them."""

from __future__ import annotations

import math
from bisect import bisect_left
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from rankdad.common.data import SiteData
from rankdad.common.errors import FewSamplesError, counted
from rankdad.common.lowrank.routes import Route
from rankdad.common.models import build_network
from rankdad.common.policy import Policy
from rankdad.common.policy_checks import fewest_rows_sent
from rankdad.common.privacy.repeated import NUMBERS, numbers_a_cell, numbers_of_step, rows_for_cells
from rankdad.common.protocol.plan import Plan, make_plan
from rankdad.common.refusals import refusal
from rankdad.common.run.batches import batch_sizes
from rankdad.common.spec import RunSpec
from rankdad.common.spec.data import TableData
from rankdad.common.spec.images import ImagesData
from rankdad.common.spec.model import Mlp
from rankdad.common.spec.tasks import Classification

MOST_COLUMNS = 1024  # that differ, and are looked at one by one: pictures have more
MOST_ROWS, MOST_PAIRED = 2000, 256  # rows by which, and columns of which two, it is looked whether one follows
MOST_FILES = 8  # samples of a file each by which it is looked of how many numbers they are made
ROUNDED = 1 / 255 / math.sqrt(12)  # the deviation of what 8 bits leave of a number from 0 to 1
FOLLOWS = 5e-2  # of a column's size: less is left of one that follows from others, rounded or in other units
LARGEST = 1024  # batch size that a sentence names
WIDE = "more numbers than a step's samples have cells: of a wide network on few columns these can be solved for"


def varies(inputs: Tensor) -> Tensor:
    """Return which columns have more than one value, a gap being one, bool [columns]."""
    flat = inputs.flatten(1).double()
    low, high = flat.nan_to_num(math.inf).amin(0), flat.nan_to_num(-math.inf).amax(0)
    return (low < high) | (flat.isnan().any(0) & (low <= high))


def cells_of_row(spec: RunSpec, data: SiteData) -> float:
    """Return how many cells of a sample numbers are held against, the outcome among them.

    A column counts by the share of samples that have another value than most: what most have needs no solving for. Its
    levels are one column, whatever levels a run lists: an owner may invent some. One that follows from others, such as
    the same in another unit, does not count. Of samples of a file each, it is what some files hold. Series and pictures
    have no more cells than their axes have independent places: a channel that stays for a patient's life has one.

    Raises:
        DataError: a file cannot be read.
    """
    inputs = data.samples.inputs
    if not isinstance(inputs, Tensor):
        noise = ROUNDED if isinstance(spec.data, ImagesData) else 0.0
        some = torch.linspace(0, len(data.samples) - 1, min(len(data.samples), MOST_FILES)).long()
        held = [_held(one, noise) for batch in data.samples.batches([some]) for one in batch.inputs]
        return sum(held) / max(1, len(held)) + 1
    some = torch.linspace(0, max(0, len(inputs) - 1), min(len(inputs), MOST_ROWS)).long()
    flat = inputs[some].flatten(1).double()
    rows = flat.nan_to_num(math.inf)
    weights = _others(rows) / max(1, len(rows) - 1)
    if isinstance(spec.data, TableData):  # of a column's levels most count
        for place in spec.data.places:
            own = weights[place.whole]
            own[own < own.max()] = 0
            own[1:][own[1:] == own.max()] = 0
    cells = float((weights * _independent(flat, weights)).sum())
    if inputs.ndim > 2:
        cells = min(cells, _held(inputs[some].double().nan_to_num(0), 0.0, first=1))
    return cells + 1


def _held(sample: Tensor, noise: float, first: int = 0) -> float:
    """Return of how many numbers a sample can be made, axis by axis: of pictures that were scaled up, those before.

    Source: Tucker 1966, "Some mathematical notes on three-mode factor analysis" (the ranks of a tensor's unfoldings).

    Args:
        sample: [channels, height, width], or a volume; with `first` 1 several samples.
        noise: standard deviation of what is rounding in each of its numbers, at least.
        first: axis of a sample.
    """
    numbers = sample.double().cpu()
    noise = max(noise, 1e-6 * float(numbers.abs().max()))
    cells = 1.0
    for axis in range(first, numbers.ndim):
        rows = numbers.movedim(axis, 0).flatten(1)
        if first and rows.shape[1] < 2 * rows.shape[0]:  # few samples follow from few places
            cells *= rows.shape[0]
            continue
        sizes = torch.linalg.eigvalsh(rows @ rows.T).clamp_min(0).sqrt()
        rounding = 1.5 * noise * (math.sqrt(rows.shape[0]) + math.sqrt(rows.shape[1]))
        cells *= max(1, int((sizes > rounding).sum()))
    return min(cells, float(math.prod(numbers.shape[first:])))


def _changed(data: SiteData) -> float:
    """Return the share of samples that are not their patient's again: at a second visit nothing may have changed."""
    if data.groups is None or not isinstance(data.samples.inputs, Tensor):
        return 1.0
    rows = data.samples.inputs.flatten(1).double().nan_to_num(math.inf)
    whole = torch.cat([data.groups[:, None].double(), rows], 1)
    return len(whole.unique(dim=0)) / len(whole)


def _others(rows: Tensor) -> Tensor:
    """Return how many samples have another value than most, in each column, float64; of pictures, than the median."""
    found, several = torch.zeros(rows.shape[1], dtype=torch.float64), varies(rows).nonzero().flatten()
    if len(several) > MOST_COLUMNS:  # where more than half have one value, that is the median
        return (rows != rows.median(0).values).sum(0).double()
    for at in several.tolist():
        found[at] = len(rows) - rows[:, at].unique(return_counts=True)[1].max()
    return found


def _independent(flat: Tensor, weights: Tensor) -> Tensor:
    """Return which columns do not follow from others that count as much or more, bool.

    One follows that is a linear function of others, or its logarithm one of their logarithms, as an index that divides
    one by another is; or that only grows, or only falls, with another, as in other units, rounded, or in bands. Of more
    columns than there are rows the last follow from the others.
    """
    chosen = torch.ones(flat.shape[1], dtype=torch.bool)
    order = weights.argsort(descending=True, stable=True)[: int((weights > 0).sum())]
    if not 1 < len(order) <= MOST_COLUMNS:
        return chosen
    columns = flat[:, order]
    columns = torch.where(columns.isnan(), columns.nanmean(0), columns)
    follows = _linear(columns)
    if len(order) <= MOST_PAIRED:
        follows |= _grows_with_another(columns)
    if len(positive := (columns > 0).all(0).nonzero().flatten()) > 1:
        follows[positive] |= _linear(columns[:, positive].log())
    chosen[order[follows]] = False
    return chosen


def _linear(columns: Tensor) -> Tensor:
    """Return which columns are linear functions of those before them, bool."""
    columns = columns - columns.mean(0)
    left = torch.linalg.qr(columns / columns.norm(dim=0).clamp_min(1e-300)).R.diagonal().abs()
    found = torch.ones(columns.shape[1], dtype=torch.bool)
    found[: len(left)] = left < FOLLOWS
    return found


def _grows_with_another(columns: Tensor) -> Tensor:
    """Return which columns never fall, or never rise, along one before them that is not among these, bool."""
    found = torch.zeros(columns.shape[1], dtype=torch.bool)
    for place in range(columns.shape[1] - 1):
        if found[place]:
            continue
        steps = columns[columns[:, place].argsort(stable=True), place + 1 :]
        few = steps[: max(2, len(steps) // 8)].diff(dim=0)  # most columns are told apart by these
        open_ = ((few >= 0).all(0) | (few <= 0).all(0)).nonzero().flatten()
        rises = steps[:, open_].diff(dim=0)
        found[place + 1 + open_[(rises >= 0).all(0) | (rises <= 0).all(0)]] = True
    return found


@dataclass(frozen=True)
class StepNumbers:
    """How many numbers a site's steps send, and may send.

    Args:
        policy: of the site.
        routes: of the run, without what says nothing of its own: gradients of columns that are the same in all rows
            here, and of one of several classes, since what flows back to all adds up to 0.
        projections: whether a pair is sent for every matrix.
        cells: of a sample that a step's numbers are held against; 0 of texts, and where nothing differs.
    """

    policy: Policy
    routes: tuple[Route, ...]
    projections: bool
    cells: float

    @classmethod
    def of(cls, policy: Policy, spec: RunSpec, plan: Plan, data: SiteData) -> StepNumbers:
        """Return those of a site in a run."""
        routes, inputs, width = list(plan.routes), data.samples.inputs, math.prod(spec.data.shape)
        if spec.data.tokens is not None or policy.rows_per_rank is None:
            return cls(policy, plan.routes, spec.training.sends_projections, 0)
        several = int(varies(inputs).sum()) if isinstance(inputs, Tensor) else width
        first = next((at for at, one in enumerate(routes) if one.shape[1:] == (width,)), None)
        if first is not None:
            routes[first] = replace(routes[first], shape=(routes[first].shape[0], several))
        last = max(0, len(routes) - 2 if len(routes[-1].shape) == 1 else len(routes) - 1)
        if isinstance(spec.task, Classification) and routes[last].dense:
            out, *others = routes[last].shape
            routes[last] = replace(routes[last], shape=(out - (out == spec.task.outputs > 1), *others))
        cells = cells_of_row(spec, data) * _changed(data) if several else 0
        return cls(policy, tuple(routes), spec.training.sends_projections, cells)

    def most(self, samples: int) -> float:
        """Return how many numbers a step of so many samples may send."""
        return numbers_a_cell(self.policy.rows_per_rank) * samples * self.cells if self.cells else math.inf

    def rows(self, samples: int) -> int | None:
        """Return how many rows of a layer a step of so many samples may send; None is no limit."""
        rows = self.policy.rank(samples)
        return rows and rows_for_cells(self.routes, rows, self.most(samples), projections=self.projections)

    def sent(self, samples: int) -> int:
        """Return how many numbers a step of so many samples sends."""
        return numbers_of_step(self.routes, self.rows(samples), projections=self.projections)

    def least(self, spec: RunSpec) -> int:
        """Return how many numbers a step sends at least, of whatever samples."""
        return numbers_of_step(self.routes, fewest_rows_sent(spec), projections=self.projections)


def check_numbers(policy: Policy, spec: RunSpec, plan: Plan, data: SiteData, samples: int) -> None:
    """Check that one step of a table can do with so few numbers that its samples cannot be solved for.

    Args:
        policy: of the site.
        spec: of the run.
        plan: of the run.
        data: of the site.
        samples: of the smallest step.

    Raises:
        FewSamplesError: it cannot.
    """
    step = StepNumbers.of(policy, spec, plan, data)
    numbers, most = step.least(spec), step.most(samples)
    if numbers <= most:
        return
    asks = f"sends at least {numbers:,} numbers of {counted(samples, 'sample')} here in a step"
    allows = f"{int(most):,}, as many as they have cells that differ (rows_per_rank {policy.rows_per_rank})"
    change: dict[str, object] = {"rows_per_rank": int(NUMBERS * samples * step.cells / numbers) or None}
    owner = "fewer units"
    if units := _units(policy, spec, data, most):
        owner = f"at most {counted(units, 'unit')} a hidden layer"
    if enough := _batch_size(spec, data, numbers / step.most(1)):
        owner += f", or a batch_size of {enough},"
    error = refusal("model", asks, allows, change, WIDE, owner=owner)
    raise FewSamplesError.of(error, code="step-of-too-many-numbers")


def _units(policy: Policy, spec: RunSpec, data: SiteData, most: float) -> int:
    """Return how many units the hidden layers of a step that sends so many numbers have at most; 0 of other models."""
    model = spec.model
    if not isinstance(model, Mlp):
        return 0

    def fits(units: int) -> bool:
        narrow = model.model_copy(update={"hidden": tuple(min(units, width) for width in model.hidden)})
        asked = spec.model_copy(update={"model": narrow})
        return StepNumbers.of(policy, asked, make_plan(asked, build_network(asked)), data).least(asked) <= most

    return bisect_left(range(1, max(model.hidden, default=1)), True, key=lambda units: not fits(units))


def _batch_size(spec: RunSpec, data: SiteData, needed: float) -> int | None:
    """Return the least batch size whose steps have so many samples here, and lack as many to one of all; else None."""
    trained = [len(split.train) for split in data.splits if len(split.train)]
    for size in range(spec.training.batch_size, min(max(trained, default=0), LARGEST) + 1):
        steps = {(fold, own) for fold, count in enumerate(trained) for own in batch_sizes(count, size)}
        if min(data.behind_step(fold, own) for fold, own in steps) >= needed:
            return size
    return None
