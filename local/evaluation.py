"""Sums up a network's outputs for a site's samples, and those of a baseline that knows the site alone."""

from __future__ import annotations

import base64
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import torch
from safetensors.torch import load, save
from torch import Tensor, nn

from rankdad.common.errors import ModelError, NonFiniteError
from rankdad.common.metrics import Tally, empty, tally
from rankdad.common.metrics.paired import Rows
from rankdad.common.metrics.paired import rows as rows_of
from rankdad.common.preparation import Fit, Inputs
from rankdad.common.spec.tasks import TaskSpec
from rankdad.local.baseline import guess
from rankdad.local.data.prepared import Prepared, SplitName
from rankdad.local.losses import losses

BATCH = 1024  # samples per forward pass without gradients, where they are small
SMALL = 2**18  # numbers of such a sample
MAX_OUTPUT = 1e30  # beyond which sums of squares over all sites would be no numbers any more


def outputs_of(model: nn.Module, inputs: Inputs, width: int, batch_size: int = BATCH) -> Tensor:
    """Return a network's outputs on the CPU.

    Args:
        model: left in evaluation mode.
        inputs: [n, …] in the replica's dtype.
        width: of the network's output.
        batch_size: samples per forward pass, where they are large or read when they are asked for.

    Returns:
        [n, width] in the replica's dtype: logits, or a regression's standardised numbers.

    Raises:
        ModelError: the network raised.
        NonFiniteError: an output is NaN, infinite or almost.
    """
    outputs, device = [torch.empty(0, width)], next(model.parameters()).device
    small = isinstance(inputs, Tensor) and math.prod(inputs.shape[1:]) <= SMALL
    model.eval()
    with torch.no_grad():
        for batch in inputs.split(BATCH if small else batch_size):
            try:
                outputs.append(model(batch.to(device)).cpu())
            except Exception as error:
                raise ModelError(error) from error
    stacked = torch.cat(outputs[1:] or outputs)
    if not bool((stacked.abs() < MAX_OUTPUT).all()):
        raise NonFiniteError("the network's output")
    return stacked


@dataclass(frozen=True, eq=False)
class Said:
    """What a model says of samples, from which tallies are made: never sent. Several folds' may be joined.

    Args:
        outputs: [n, width] in the label's unit.
        labels: in their unit.
        losses: [n].
        groups: int64 [n], over which the tally is made as well; None where it is not.
        people: int64 [n], whose each sample is; None where each is of another person.
    """

    outputs: Tensor
    labels: Tensor
    losses: Tensor
    groups: Tensor | None = None
    people: Tensor | None = None

    @classmethod
    def joined(cls, several: Sequence[Said]) -> Said:
        """Return what is said of the samples of several sets."""
        return cls(
            torch.cat([one.outputs for one in several]),
            torch.cat([one.labels for one in several]),
            torch.cat([one.losses for one in several]),
            _joined([one.groups for one in several]),
            _joined([one.people for one in several]),
        )


def _joined(columns: Sequence[Tensor | None]) -> Tensor | None:
    known = [one for one in columns if one is not None]
    return torch.cat(known) if known else None


def written(tests: Mapping[int, Sequence[Said | None]]) -> str:
    """Return what models say of the tests of some folds as text, for a site's checkpoint."""
    tensors = {
        f"{fold}/{place}/{name}": value.contiguous()
        for fold, models in tests.items()
        for place, said in enumerate(models)
        for name, value in (vars(said) if said is not None else {"none": torch.empty(0)}).items()
        if value is not None
    }
    return base64.b64encode(save(tensors)).decode()


def said_in(text: str) -> dict[int, tuple[Said | None, ...]]:
    """Return what `written` has written."""
    found: dict[int, dict[int, dict[str, Tensor]]] = {}
    for key, value in (load(base64.b64decode(text)) if text else {}).items():
        fold, place, name = key.split("/")
        found.setdefault(int(fold), {}).setdefault(int(place), {})[name] = value
    return {
        fold: tuple(None if "none" in models[place] else Said(**models[place]) for place in sorted(models))
        for fold, models in sorted(found.items())
    }


def said_of(
    task: TaskSpec,
    prepared: Prepared,
    split: SplitName,
    outputs: Tensor,
    rows: Tensor | slice = slice(None),
    *,
    clustered: bool = False,
) -> Said:
    """Return what outputs, [n, width] as of `outputs_of`, say of a split's samples, or of some rows of them."""
    given, true = outputs[rows], getattr(prepared, split).labels[rows]
    people, groups = prepared.people.get(split), prepared.test_groups if clustered else None
    return Said(
        prepared.in_units(given),
        prepared.in_units(true),
        losses(task, given.double(), true),
        None if groups is None else groups[rows],
        None if people is None else people[rows],
    )


def tally_of(
    task: TaskSpec,
    prepared: Prepared,
    split: SplitName,
    outputs: Tensor,
    fewest: int = 1,
    *,
    clustered: bool = False,
) -> Tally:
    """Return what outputs for a split, [n, width] as of `outputs_of`, add up to.

    Args:
        task: what is predicted.
        prepared: the fold's samples.
        split: which of them.
        outputs: for these.
        fewest: people in any bin.
        clustered: whether sums over the test's groups, if it has any, are among the sums.
    """
    groups, count = prepared.test_groups if clustered else None, len(outputs)
    total, fit = empty(task, groups is not None), prepared.around(split)
    for rows in batches(count, groups) if fewest == 1 else [torch.arange(count)]:
        total += tallied(task, fit, said_of(task, prepared, split, outputs, rows, clustered=clustered), fewest)
    return total


def tallied(task: TaskSpec, fit: Fit, said: Said, fewest: int) -> Tally:
    """Return what a model says of samples, added up around a fit: see `Prepared.around`."""
    return tally(
        task,
        said.outputs,
        said.labels,
        said.losses,
        centre=fit.target_mean,
        scale=fit.target_scale,
        base=fit.log_odds,
        groups=said.groups,
        fewest=fewest,
        people=said.people,
    )


def batches(samples: int, groups: Tensor | None) -> Iterator[Tensor]:
    """Yield the rows of batches, each of about as many samples as fit, and of whole groups."""
    if groups is None:
        yield from torch.arange(samples).split(BATCH)
        return
    order, sizes = groups.argsort(stable=True), groups.unique(return_counts=True)[1]
    batch = sizes.cumsum(0).div(BATCH, rounding_mode="floor")
    yield from order.split(batch.bincount(sizes).long().tolist())


def guesses(task: TaskSpec, prepared: Prepared) -> Tensor:
    """Return what a guess from the site's training labels alone says of the test samples, as `outputs_of` does."""
    return guess(task, prepared.train.labels, prepared.fit).expand(len(prepared.test), -1)


def tested_rows(task: TaskSpec, prepared: Prepared, outputs: Tensor) -> Rows:
    """Return what a model's outputs say of the test samples, for a comparison with another model's."""
    true, given = prepared.test.labels, prepared.in_units(outputs)
    loss, known = losses(task, outputs.double(), true), prepared.in_units(true)
    return rows_of(task, given, known, loss, base=prepared.around("test").log_odds)
