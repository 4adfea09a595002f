"""Replaces rare values of a site's inputs by usual ones, for the run and for the disclosure log."""

from __future__ import annotations

import torch
from torch import Tensor

from rankdad.common.data.encoding import bounds_of
from rankdad.common.policy import MinLevel
from rankdad.common.privacy.levels import without_rare
from rankdad.common.privacy.tokens import without_rare_tokens
from rankdad.common.spec import RunSpec
from rankdad.common.spec.data import TableData

FLAT = ("linear", "mlp", "factory")  # models whose first layer may see all entries of a sample


def usual_inputs(spec: RunSpec, inputs: Tensor, level: MinLevel, groups: Tensor | None, parts: Tensor | None) -> Tensor:
    """Return inputs in which no rare value identifies few patients.

    This applies if a layer sees all entries at once; pictures and series for other networks are unchanged. Rare tokens
    become the unknown one, and the ends of texts longer than most are left out.

    Args:
        spec: the run.
        inputs: [rows, …], NaN where a value is missing.
        level: how many patients are enough.
        groups: patient of each row, int64 [rows]; None if each row is another patient.
        parts: part of each row, int64 [rows]; None without parts.
    """
    if spec.data.tokens is not None:
        return _usual_tokens(inputs, level, groups, parts)
    if level.count < 2 or not inputs.is_floating_point() or (inputs.ndim != 2 and spec.model.name not in FLAT):
        return inputs
    shape, inputs = inputs.shape, inputs.flatten(1)
    levels, bounds = list[tuple[int, int]](), inputs.new_tensor([[-torch.inf, torch.inf]]).repeat(inputs.shape[1], 1)
    if isinstance(spec.data, TableData):
        levels = [(place.first, place.levels) for place in spec.data.places if place.levels]
        for place in spec.data.places:
            bounds[place.first] = inputs.new_tensor(bounds_of(spec.data, place.column))
    if parts is None or level.by == "site":
        parts = torch.zeros(len(inputs), dtype=torch.int64)
    found = inputs.clone()
    for part in parts.unique():
        rows = (parts == part).nonzero().flatten()
        own = None if groups is None else groups[rows]
        found[rows] = without_rare(inputs[rows], levels, bounds.T, own, level.count)
    return found.reshape(shape)


def _usual_tokens(tokens: Tensor, level: MinLevel, groups: Tensor | None, parts: Tensor | None) -> Tensor:
    """Return texts in which no token identifies few patients; see `usual_inputs`."""
    if parts is None or level.by == "site":
        return without_rare_tokens(tokens, groups, level.count)
    found = tokens.clone()
    for part in parts.unique():
        rows = (parts == part).nonzero().flatten()
        found[rows] = without_rare_tokens(tokens[rows], None if groups is None else groups[rows], level.count)
    return found
