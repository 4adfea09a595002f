"""Rare tokens: those of few patients' texts, which a row of an embedding's gradient would name.

A token becomes the unknown one if fewer than `min_level` patients of a site have it. With a tokenizer, whose tokens may
be surnames, so does one that fewer than `min_rows` patients of a batch have, in the step of this batch.
"""

from __future__ import annotations

import torch
from torch import Tensor

from rankdad.common.spec.text import SPECIAL, UNKNOWN


def without_rare_tokens(tokens: Tensor, people: Tensor | None, fewest: int) -> Tensor:
    """Return texts in which tokens that few patients have are unknown.

    Args:
        tokens: int64 [n, length].
        people: patient of each text, int64 [n]; None if each is another patient.
        fewest: number of patients that are enough.

    Returns:
        The same tensor if there are none.
    """
    found = rare(tokens, people, fewest)[tokens]
    return tokens.masked_fill(found, UNKNOWN) if found.any() else tokens


def rare(tokens: Tensor, people: Tensor | None, fewest: int) -> Tensor:
    """Return which tokens fewer than `fewest` patients have, bool [largest token + 1]; see `without_rare_tokens`."""
    width = int(tokens.max()) + 1 if tokens.numel() else 0
    whose = torch.arange(len(tokens)) if people is None else people.unique(return_inverse=True)[1]
    pairs = (whose[:, None] * width + tokens).unique()
    few = torch.bincount(pairs % max(width, 1), minlength=width) < fewest
    few[:SPECIAL] = False
    return few
