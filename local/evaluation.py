"""Computes a network's outputs for a site's samples, and their tallies."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence

import torch
from torch import Tensor, nn

from rankdad.common.data.prepared import Prepared
from rankdad.common.errors import ModelError, NonFiniteError
from rankdad.common.metrics.monitoring import monitored
from rankdad.common.metrics.paired import Rows
from rankdad.common.metrics.paired import rows as rows_of
from rankdad.common.metrics.smoothing import Scored, Smooth, smooth
from rankdad.common.metrics.sums import Tally, empty, tally
from rankdad.common.preparation import Inputs, in_memory
from rankdad.common.spec.tasks import LanguageModel, Metric, TaskSpec
from rankdad.local.baseline import guess, token_guesses
from rankdad.local.losses import losses, text_losses

BATCH = 1024  # samples per forward pass without gradients, where they are small
SMALL = 2**18  # numbers of such a sample
MOST_LOGITS = 2**13  # tokens of a language model's pass
MAX_OUTPUT = 1e30  # sums of squares of larger ones would overflow


def task_outputs(task: TaskSpec, model: nn.Module, inputs: Inputs, batch_size: int) -> Tensor:
    """Return what a task's metrics need of a network's outputs: these, or for a language model `text_losses`."""
    if not isinstance(task, LanguageModel):
        return outputs_of(model, inputs, task.outputs, batch_size)
    assert isinstance(inputs, Tensor)
    few = max(1, MOST_LOGITS // inputs.shape[1])  # logits are many times larger than texts
    parts = inputs.split(min(batch_size, few))
    found = [text_losses(outputs_of(model, part, 0, len(part)).double(), part) for part in parts if len(part)]
    return torch.cat(found) if found else torch.empty(0, task.outputs)


def outputs_of(model: nn.Module, inputs: Inputs, width: int, batch_size: int = BATCH) -> Tensor:
    """Return a network's outputs on the CPU.

    Args:
        model: left in evaluation mode.
        inputs: [n, …] in the replica's dtype.
        width: of the network's output.
        batch_size: samples per forward pass, for large or lazily read samples.

    Returns:
        [n, width] in the replica's dtype: logits, or a regression's standardised numbers.

    Raises:
        ModelError: the network raised.
        NonFiniteError: an output is NaN, infinite, or larger than MAX_OUTPUT.
    """
    outputs, device = [torch.empty(0, width)], next(model.parameters()).device
    small = isinstance(inputs, Tensor) and math.prod(inputs.shape[1:]) <= SMALL
    model.eval()
    with torch.no_grad():
        for batch in inputs.split(BATCH if small else batch_size):
            if not len(batch):  # networks may not accept an empty batch
                continue
            try:
                outputs.append(model(batch.to(device)).cpu())
            except Exception as error:
                raise ModelError(error) from error
    stacked = torch.cat(outputs[1:] or outputs)
    if not bool((stacked.abs() < MAX_OUTPUT).all()):
        raise NonFiniteError("the network's output")
    return stacked


def monitored_of(task: TaskSpec, monitor: Metric, prepared: Prepared, outputs: Tensor, fewest: int) -> Tally:
    """Return the tally of outputs for the validation samples, between epochs.

    Args:
        task: what is predicted.
        monitor: the metric to monitor.
        prepared: the fold's samples.
        outputs: of `outputs_of` for the validation samples, [n, width].
        fewest: least number of people with and without the outcome, for sums over pairs.
    """
    true, centre = prepared.validation.labels, prepared.transform.fit.target_mean
    numbers, known, loss = (
        prepared.transform.in_units(outputs),
        prepared.transform.in_units(true),
        losses(task, outputs.double(), true),
    )
    return monitored(task, monitor, numbers, known, loss, centre=centre, people=prepared.people, fewest=fewest)


def curves_of(
    task: TaskSpec, prepared: Prepared, outputs: Tensor, earlier: Sequence[Scored] = (), *, clustered: bool = False
) -> Smooth | None:
    """Return smooth scores of the test samples, given earlier tests; None if scores may leave unchanged.

    Args:
        task: what is predicted.
        prepared: the fold's samples.
        outputs: of `outputs_of` for the test samples.
        earlier: tests of the same model for other samples of the site.
        clustered: whether sums over groups are sent.
    """
    if not prepared.smooth or not len(prepared.test.labels) or isinstance(task, LanguageModel):
        return None
    numbers, known = prepared.transform.in_units(outputs), prepared.transform.in_units(prepared.test.labels)
    scale, base = prepared.first.target_scale, prepared.first.log_odds
    return smooth(
        task, numbers, known, scale=scale, base=base, people=prepared.tested, clustered=clustered, earlier=earlier
    )


def tally_of(
    task: TaskSpec, prepared: Prepared, outputs: Tensor, groups: Tensor | None = None, curves: Smooth | None = None
) -> Tally:
    """Return the tally of outputs for the test samples.

    Args:
        task: what is predicted.
        prepared: the fold's samples.
        outputs: of `outputs_of` for the test samples, [n, width].
        groups: of the samples, int64 [n]; None without sums over groups.
        curves: scores for the histograms instead of the outputs.
    """
    labels, total = prepared.test.labels, empty(task, groups is not None)
    fit = prepared.first
    centre, scale, base = fit.target_mean, fit.target_scale, fit.log_odds
    all_numbers, all_known = prepared.transform.in_units(outputs), prepared.transform.in_units(labels)
    if curves is not None:
        total += curves.order
    for rows in batches(len(labels), groups):
        numbers, known, own = all_numbers[rows], all_known[rows], None if groups is None else groups[rows]
        loss = losses(task, outputs[rows].double(), labels[rows])
        counted = None if curves is None else (curves.scores[rows], curves.levels[rows])
        total += tally(task, numbers, known, loss, centre=centre, scale=scale, base=base, groups=own, smooth=counted)
    return total


def batches(samples: int, groups: Tensor | None) -> Iterator[Tensor]:
    """Yield the rows of batches of about equal size, without splitting groups."""
    if groups is None:
        yield from torch.arange(samples).split(BATCH)
        return
    order, sizes = groups.argsort(stable=True), groups.unique(return_counts=True)[1]
    batch = sizes.cumsum(0).div(BATCH, rounding_mode="floor")
    yield from order.split(batch.bincount(sizes).long().tolist())


def guesses(task: TaskSpec, prepared: Prepared) -> Tensor:
    """Return the baseline's outputs for the test samples, as `outputs_of` does."""
    if isinstance(task, LanguageModel):
        return token_guesses(in_memory(prepared.train.inputs), in_memory(prepared.test.inputs))
    return guess(task, prepared.train.labels, prepared.transform.fit).expand(len(prepared.test), -1)


def tested_rows(task: TaskSpec, prepared: Prepared, outputs: Tensor) -> Rows:
    """Return a model's rows for the test samples, for comparison with another model."""
    true, given = prepared.test.labels, prepared.transform.in_units(outputs)
    loss, known = losses(task, outputs.double(), true), prepared.transform.in_units(true)
    return rows_of(task, given, known, loss, base=prepared.first.log_odds)
