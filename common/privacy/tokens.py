"""Rare tokens and lengths: those of few patients' texts, whose rows of a gradient would be about these texts alone.

At a site, a token that fewer than `min_level` patients have becomes the unknown one, and a place where fewer have any
token becomes padding. In a step, so does a token that fewer than `min_rows` patients of its batch have, or a byte that
fewer have than share a step, and a place where fewer than `min_rows` have any, unless the network has no row for it.
"""

from __future__ import annotations

import torch
from torch import Tensor

from rankdad.common.spec.text import PADDING, SPECIAL, UNKNOWN

Usual = tuple[Tensor | None, Tensor | None]  # the token for each token, and whether to keep each place of texts


def without_rare_tokens(tokens: Tensor, people: Tensor | None, fewest: int) -> Tensor:
    """Return texts without tokens and lengths that few patients have.

    Args:
        tokens: int64 [n, length].
        people: patient of each text, int64 [n]; None if each is another patient.
        fewest: number of patients that are enough.

    Returns:
        The same tensor if there are none.
    """
    found = replaced(tokens, usual(tokens, people, fewest, fewest))
    return tokens if torch.equal(found, tokens) else found


def usual(tokens: Tensor, people: Tensor | None, with_token: int, with_place: int) -> Usual:
    """Return what replaces tokens of fewer patients, and which places enough of them have; None where all stay."""
    places = places_of_most(tokens, people, with_place) if with_place > 1 else None
    left = tokens if places is None else cut(tokens, places)
    return usual_tokens(left, people, with_token) if with_token > 1 else None, places


def replaced(tokens: Tensor, usual: Usual) -> Tensor:
    """Return texts with other tokens, and without some places."""
    of_each, places = usual
    tokens = tokens if places is None else cut(tokens, places)
    return tokens if of_each is None else of_each.to(tokens.device)[tokens]


def kept(tokens: Tensor, usual: Usual) -> float:
    """Return the share of tokens, unknown ones included, that are known ones after texts are `replaced`."""
    known, whole = (int((one >= SPECIAL).sum()) for one in (replaced(tokens, usual), tokens))
    return known / max(1, whole + int((tokens == UNKNOWN).sum()))


def cut(tokens: Tensor, places: Tensor) -> Tensor:
    """Return texts with padding where `places`, bool [length], is false."""
    return tokens.masked_fill(~places.to(tokens.device), PADDING)


def places_of_most(tokens: Tensor, people: Tensor | None, fewest: int) -> Tensor:
    """Return where texts of at least `fewest` patients, or of all if these are fewer, have a token, bool [length].

    Padding may stand before texts or behind them. The first place stays, so that no text that begins there is empty.
    """
    if fewest < 2 or not len(tokens):
        return torch.ones(tokens.shape[1], dtype=torch.bool)
    whose = _whose(tokens, people)
    texts = torch.zeros(int(whose.max()) + 1, tokens.shape[1], dtype=torch.int64)
    with_token = texts.index_add_(0, whose, (tokens != PADDING).long()).gt(0).sum(0)
    kept = with_token >= min(fewest, len(texts))
    kept[0] |= bool((tokens[:, 0] != PADDING).all())
    return kept


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
