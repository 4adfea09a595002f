"""Rare tokens and lengths: those of few patients' texts, whose rows of a gradient would be about these texts alone.

At a site, a token that fewer than `min_level` patients have becomes the unknown one, and a text ends where fewer have
any token. In a step, so does a token of a tokenizer that fewer than `min_rows` patients of its batch have, and texts
end where fewer of these have one, unless the network has no row for a place.
"""

from __future__ import annotations

import torch
from torch import Tensor

from rankdad.common.spec.text import PADDING, SPECIAL, UNKNOWN

Usual = tuple[Tensor | None, int | None]  # the token for each token, and the number of tokens of the longest texts


def without_rare_tokens(tokens: Tensor, people: Tensor | None, fewest: int) -> Tensor:
    """Return texts without tokens and lengths that few patients have.

    Args:
        tokens: int64 [n, length].
        people: patient of each text, int64 [n]; None if each is another patient.
        fewest: number of patients that are enough.

    Returns:
        The same tensor if there are none.
    """
    found = replaced(tokens, usual(tokens, people, fewest))
    return tokens if torch.equal(found, tokens) else found


def usual(tokens: Tensor, people: Tensor | None, fewest: int, *, of_tokens: bool = True, places: bool = True) -> Usual:
    """Return what replaces rare tokens, and how long texts may be, without one of them if it should stay."""
    longest = length_of_most(tokens, people, fewest) if places else None
    left = tokens if longest is None else shortened(tokens, longest)
    return usual_tokens(left, people, fewest) if of_tokens else None, longest


def replaced(tokens: Tensor, usual: Usual) -> Tensor:
    """Return texts with other tokens, and of at most a length."""
    of_each, longest = usual
    tokens = tokens if longest is None else shortened(tokens, longest)
    return tokens if of_each is None else of_each.to(tokens.device)[tokens]


def kept(tokens: Tensor, usual: Usual) -> float:
    """Return the share of tokens, unknown ones included, that are known ones after texts are `replaced`."""
    known, whole = (int((one >= SPECIAL).sum()) for one in (replaced(tokens, usual), tokens))
    return known / max(1, whole + int((tokens == UNKNOWN).sum()))


def shortened(tokens: Tensor, longest: int) -> Tensor:
    """Return texts of at most a number of tokens, padded."""
    beyond = torch.arange(tokens.shape[1], device=tokens.device) >= longest
    return tokens.masked_fill(beyond, PADDING)


def length_of_most(tokens: Tensor, people: Tensor | None, fewest: int) -> int:
    """Return the length that texts of at least `fewest` patients have, at least 1; see `without_rare_tokens`."""
    if fewest < 2 or not len(tokens):
        return tokens.shape[1]
    places = torch.arange(1, tokens.shape[1] + 1)
    lengths, whose = ((tokens != PADDING) * places).amax(1), _whose(tokens, people)
    of_people = torch.zeros(int(whose.max()) + 1, dtype=torch.int64).scatter_reduce_(0, whose, lengths, "amax")
    return max(1, int(of_people.sort(descending=True).values[min(fewest, len(of_people)) - 1]))


def usual_tokens(tokens: Tensor, people: Tensor | None, fewest: int) -> Tensor:
    """Return the unknown token for each that fewer than `fewest` patients have, int64 [largest token + 1].

    If fewer have an unknown one then, it would be about their texts alone, so these become the most frequent token.
    """
    width = max(SPECIAL, int(tokens.max()) + 1 if tokens.numel() else 0)
    found, whose = torch.arange(width), _whose(tokens, people)
    few = _people_with(tokens, whose, width) < fewest
    few[PADDING] = False
    found[few] = UNKNOWN
    known = tokens.flatten().bincount(minlength=width)
    known[:SPECIAL] = 0
    known[few] = 0
    if known.any() and _people_with(found[tokens], whose, width)[UNKNOWN] < fewest:
        found[found == UNKNOWN] = known.argmax()
    return found


def _whose(tokens: Tensor, people: Tensor | None) -> Tensor:
    return torch.arange(len(tokens)) if people is None else people.unique(return_inverse=True)[1]


def _people_with(tokens: Tensor, whose: Tensor, width: int) -> Tensor:
    return torch.bincount((whose[:, None] * width + tokens).unique() % width, minlength=width)
