"""Sums up a network's outputs for a site's samples, and those of a baseline that knows the site alone."""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor, nn

from rankdad.common.errors import ModelError, NonFiniteError
from rankdad.common.metrics import Tally, empty, tally
from rankdad.common.spec.tasks import TaskSpec
from rankdad.local.baseline import guess
from rankdad.local.data import Samples
from rankdad.local.data.prepared import Prepared, SplitName
from rankdad.local.losses import losses

BATCH = 1024  # samples per forward pass without gradients
MAX_OUTPUT = 1e30  # beyond which sums of squares over all sites would be no numbers any more


def outputs_of(model: nn.Module, inputs: Tensor, width: int) -> Tensor:
    """Return a network's outputs on the CPU.

    Args:
        model: left in evaluation mode.
        inputs: [n, …] in the replica's dtype, on its device.
        width: of the network's output.

    Returns:
        [n, width] in the replica's dtype: logits, or a regression's standardised numbers.

    Raises:
        ModelError: the network raised.
        NonFiniteError: an output is NaN, infinite or almost.
    """
    outputs = [torch.empty(0, width)]
    model.eval()
    with torch.no_grad():
        for batch in inputs.split(BATCH):
            try:
                outputs.append(model(batch).cpu())
            except Exception as error:
                raise ModelError(error) from error
    stacked = torch.cat(outputs[1:] or outputs)
    if not bool((stacked.abs() < MAX_OUTPUT).all()):
        raise NonFiniteError("the network's output")
    return stacked


def tally_of(
    task: TaskSpec, prepared: Prepared, split: SplitName, outputs: Tensor, groups: Tensor | None = None
) -> Tally:
    """Return what outputs for a split, [n, width] as of `outputs_of`, add up to; over groups too, if given."""
    samples: Samples = getattr(prepared, split)
    labels, total = samples.labels.cpu(), empty(task, groups is not None)
    fit = prepared.around(split)
    centre, scale, base = fit.target_mean, fit.target_scale, fit.log_odds
    for rows in batches(len(labels), groups):
        given, true, own = outputs[rows], labels[rows], None if groups is None else groups[rows]
        numbers, known, loss = prepared.in_units(given), prepared.in_units(true), losses(task, given.double(), true)
        total += tally(task, numbers, known, loss, centre=centre, scale=scale, base=base, groups=own)
    return total


def batches(samples: int, groups: Tensor | None) -> Iterator[Tensor]:
    """Yield the rows of batches, each of about as many samples as fit, and of whole groups."""
    if groups is None:
        yield from torch.arange(samples).split(BATCH)
        return
    order, sizes = groups.argsort(stable=True), groups.unique(return_counts=True)[1]
    batch = sizes.cumsum(0).div(BATCH, rounding_mode="floor")
    yield from order.split(batch.bincount(sizes).long().tolist())


def baseline_of(task: TaskSpec, prepared: Prepared) -> Tally:
    """Return what guesses from the site's training labels alone add up to over the test samples."""
    one = guess(task, prepared.train.labels.cpu(), prepared.fit)
    return tally_of(task, prepared, "test", one.expand(len(prepared.test), -1))
