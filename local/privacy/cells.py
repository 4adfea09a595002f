"""Compares the numbers that a step sends with the cells of a site's table (patients times columns)."""

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
from rankdad.common.refusals import KNOWN_TEXTS, refusal
from rankdad.common.run.batches import batch_sizes
from rankdad.common.spec import RunSpec
from rankdad.common.spec.data import TableData
from rankdad.common.spec.images import ImagesData
from rankdad.common.spec.model import Mlp
from rankdad.common.spec.tasks import Classification
from rankdad.common.spec.text import TextData

MOST_COLUMNS = 1024  # checked one by one; pictures have more
MOST_ROWS, MOST_PAIRED = 2000, 256  # rows, and columns, used to check whether columns depend on each other
MOST_FILES = 8  # samples used to estimate the numbers in a file
ROUNDED = 1 / 255 / math.sqrt(12)  # standard deviation of rounding a number from 0 to 1 to 8 bits
FOLLOWS = 5e-2  # relative residual of a column that depends on others, with rounding or other units
SHORT = 32  # places at which texts differ: of shorter ones, such as ages, codes and names, all can be listed
LARGEST = 1024  # batch size that a message suggests
WIDE = "more numbers than a step's samples have cells: in a wide network on few columns, these can be solved for"


def varies(inputs: Tensor) -> Tensor:
    """Return which columns have more than one value, with missing as a value: bool [columns]."""
    flat = inputs.flatten(1).double()
    low, high = flat.nan_to_num(math.inf).amin(0), flat.nan_to_num(-math.inf).amax(0)
    return (low < high) | (flat.isnan().any(0) & (low <= high))


def cells_of_row(spec: RunSpec, data: SiteData) -> float:
    """Return how many cells per sample a step's numbers are compared with, the outcome included.

    A column counts by the share of samples that differ from its most frequent value. Its levels are one column, since
    an owner may invent levels. A column that depends on others, such as the same in another unit, does not count. For
    samples with a file each, some files are examined. Series and pictures count the independent places of their axes: a
    channel that is constant for a patient has one.

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
    if isinstance(spec.data, TableData):  # of a column's levels the one that counts most
        for place in spec.data.places:
            own = weights[place.whole]
            own[own < own.max()] = 0
            own[1:][own[1:] == own.max()] = 0
    cells = float((weights * _independent(flat, weights)).sum())
    if inputs.ndim > 2:
        cells = min(cells, _held(inputs[some].double().nan_to_num(0), 0.0, first=1))
    return cells + 1


def _held(sample: Tensor, noise: float, first: int = 0) -> float:
    """Return how many numbers determine a sample, axis by axis; for upscaled pictures, the original ones.

    Source: Tucker 1966, "Some mathematical notes on three-mode factor analysis" (the ranks of a tensor's unfoldings).

    Args:
        sample: [channels, height, width], or a volume; with `first` 1, several samples.
        noise: least standard deviation of rounding in each number.
        first: first axis of a sample.
    """
    numbers = sample.double().cpu()
    noise = max(noise, 1e-6 * float(numbers.abs().max()))
    cells = 1.0
    for axis in range(first, numbers.ndim):
        rows = numbers.movedim(axis, 0).flatten(1)
        if first and rows.shape[1] < 2 * rows.shape[0]:
            cells *= rows.shape[0]
            continue
        sizes = torch.linalg.eigvalsh(rows @ rows.T).clamp_min(0).sqrt()
        rounding = 1.5 * noise * (math.sqrt(rows.shape[0]) + math.sqrt(rows.shape[1]))
        cells *= max(1, int((sizes > rounding).sum()))
    return min(cells, float(math.prod(numbers.shape[first:])))


def _changed(data: SiteData) -> float:
    """Return the share of samples that differ from the same patient's other samples."""
    if data.groups is None or not isinstance(data.samples.inputs, Tensor):
        return 1.0
    rows = data.samples.inputs.flatten(1).double().nan_to_num(math.inf)
    whole = torch.cat([data.groups[:, None].double(), rows], 1)
    return len(whole.unique(dim=0)) / len(whole)


def _others(rows: Tensor) -> Tensor:
    """Return, for each column, how many samples differ from the most frequent value (pictures: median), float64."""
    found, several = torch.zeros(rows.shape[1], dtype=torch.float64), varies(rows).nonzero().flatten()
    if len(several) > MOST_COLUMNS:  # if more than half have one value, it is the median
        return (rows != rows.median(0).values).sum(0).double()
    for at in several.tolist():
        found[at] = len(rows) - rows[:, at].unique(return_counts=True)[1].max()
    return found


def _independent(flat: Tensor, weights: Tensor) -> Tensor:
    """Return which columns do not depend on others that count as much or more, bool.

    A column depends on others if it is a linear function of them, if this holds for the logarithms (ratios), or if it
    is monotonic in another one (other units, rounding, bands). Columns beyond the number of rows depend on the others.
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
    """Return which columns are linear functions of earlier ones, bool."""
    columns = columns - columns.mean(0)
    left = torch.linalg.qr(columns / columns.norm(dim=0).clamp_min(1e-300)).R.diagonal().abs()
    found = torch.ones(columns.shape[1], dtype=torch.bool)
    found[: len(left)] = left < FOLLOWS
    return found


def _grows_with_another(columns: Tensor) -> Tensor:
    """Return which columns are monotonic in an earlier, independent one, bool."""
    found = torch.zeros(columns.shape[1], dtype=torch.bool)
    for place in range(columns.shape[1] - 1):
        if found[place]:
            continue
        steps = columns[columns[:, place].argsort(stable=True), place + 1 :]
        few = steps[: max(2, len(steps) // 8)].diff(dim=0)  # enough to rule out most columns
        open_ = ((few >= 0).all(0) | (few <= 0).all(0)).nonzero().flatten()
        rises = steps[:, open_].diff(dim=0)
        found[place + 1 + open_[(rises >= 0).all(0) | (rises <= 0).all(0)]] = True
    return found


@dataclass(frozen=True)
class StepNumbers:
    """The number of numbers that a site's steps send, and may send.

    Args:
        policy: of the site.
        routes: of the run, without redundant parts: gradients of constant columns, and of one of several classes,
            because the deltas of all classes add up to 0.
        projections: whether a pair is sent for every matrix.
        reduces: whether the method also reduces dense gradients to a limit on rows.
        cells: per sample, compared with a step's numbers; 0 for texts and constant data.
    """

    policy: Policy
    routes: tuple[Route, ...]
    projections: bool
    reduces: bool
    cells: float

    @classmethod
    def of(cls, policy: Policy, spec: RunSpec, plan: Plan, data: SiteData) -> StepNumbers:
        """Compute the numbers of a site in a run."""
        sent = spec.training.sends_projections, spec.method.reduces_dense
        routes, inputs, width = list(plan.routes), data.samples.inputs, math.prod(spec.data.shape)
        if spec.data.tokens is not None or policy.rows_per_rank is None:
            return cls(policy, plan.routes, *sent, 0)
        several = int(varies(inputs).sum()) if isinstance(inputs, Tensor) else width
        first = next((at for at, one in enumerate(routes) if one.shape[1:] == (width,)), None)
        if first is not None:
            routes[first] = replace(routes[first], shape=(routes[first].shape[0], several))
        last = max(0, len(routes) - 2 if len(routes[-1].shape) == 1 else len(routes) - 1)
        if isinstance(spec.task, Classification) and routes[last].dense:
            out, *others = routes[last].shape
            routes[last] = replace(routes[last], shape=(out - (out == spec.task.outputs > 1), *others))
        cells = cells_of_row(spec, data) * _changed(data) if several else 0
        return cls(policy, tuple(routes), *sent, cells)

    def most(self, samples: int) -> float:
        """Return how many numbers a step of this many samples may send."""
        return numbers_a_cell(self.policy.rows_per_rank) * samples * self.cells if self.cells else math.inf

    def rows(self, samples: int) -> int | None:
        """Return how many rows of a layer a step of this many samples may send; None for no limit."""
        rows = self.policy.rank(samples)
        return rows and rows_for_cells(self._of, rows, self.most(samples))

    def sent(self, samples: int) -> int:
        """Return how many numbers a step of this many samples sends."""
        return self._of(self.rows(samples))

    def least(self, spec: RunSpec) -> int:
        """Return the least number of numbers in a step of any size."""
        return self._of(fewest_rows_sent(spec))

    def _of(self, rows: int | None) -> int:
        return numbers_of_step(self.routes, rows, projections=self.projections, reduces=self.reduces)


def check_numbers(policy: Policy, spec: RunSpec, plan: Plan, data: SiteData, samples: int) -> None:
    """Check that a step can send fewer numbers than are needed to solve for its samples.

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


def check_texts(policy: Policy, spec: RunSpec, data: SiteData) -> None:
    """Check that texts are too long to try them all.

    The gradient of a last layer is a sum over patients of its inputs. If these are known, for each text that there may
    be, a linear system has everybody's texts and labels, from one step.

    Raises:
        FewSamplesError: they are not.
    """
    inputs = data.samples.inputs
    if spec.data.tokens is None or policy.rows_per_rank is None or not isinstance(inputs, Tensor) or not len(inputs):
        return
    some = inputs[torch.linspace(0, len(inputs) - 1, min(len(inputs), MOST_ROWS)).long()]
    differing = int((some != some.mode(0).values).sum(1).median())
    if differing >= SHORT:
        return
    asks = f"reads texts that differ at {counted(differing, 'place')} here"
    allows = f"only texts that differ at {SHORT} or more (rows_per_rank {policy.rows_per_rank})"
    change: dict[str, object] = {"rows_per_rank": None}
    owner = "a table with a column of numbers or categories in their place"
    field = "data.column" if isinstance(spec.data, TextData) else "data.tokens"
    error = refusal(field, asks, allows, change, KNOWN_TEXTS, owner=owner)
    raise FewSamplesError.of(error, code="texts-too-short")


def _units(policy: Policy, spec: RunSpec, data: SiteData, most: float) -> int:
    """Return the largest width of the hidden layers that a limit on numbers allows; 0 for other models."""
    model = spec.model
    if not isinstance(model, Mlp):
        return 0

    def fits(units: int) -> bool:
        narrow = model.model_copy(update={"hidden": tuple(min(units, width) for width in model.hidden)})
        asked = spec.model_copy(update={"model": narrow})
        return StepNumbers.of(policy, asked, make_plan(asked, build_network(asked)), data).least(asked) <= most

    return bisect_left(range(1, max(model.hidden, default=1)), True, key=lambda units: not fits(units))


def _batch_size(spec: RunSpec, data: SiteData, needed: float) -> int | None:
    """Return the least batch size whose steps, and their complements, have enough samples here; None for none."""
    trained = [len(split.train) for split in data.splits if len(split.train)]
    for size in range(spec.training.batch_size, min(max(trained, default=0), LARGEST) + 1):
        steps = {(fold, own) for fold, count in enumerate(trained) for own in batch_sizes(count, size)}
        if min(data.behind_step(fold, own) for fold, own in steps) >= needed:
            return size
    return None
