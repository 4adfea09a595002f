"""Repeats of a cross-validation that are equal: where few parts are dealt out, they soon are. Pure functions."""

from __future__ import annotations

from collections.abc import Collection, Hashable, Iterable, Sequence


def alike(sets: Iterable[Hashable]) -> tuple[int, ...]:
    """Return for each of some sets the place of the first that is equal: all that a site tells of its folds' rows."""
    first = dict[Hashable, int]()
    return tuple(first.setdefault(one, place) for place, one in enumerate(sets))


def equal_repeats(told: Collection[Sequence[int]], folds: int) -> tuple[int, ...]:
    """Return the repeats, from 0, whose folds are those of an earlier one in whatever order: at every site at once.

    Args:
        told: of each site, as `alike` returns it of the folds of all repeats.
        folds: of a repeat.
    """
    everywhere = list(zip(*told, strict=True))
    repeats = [tuple(sorted(everywhere[at : at + folds])) for at in range(0, len(everywhere), folds)]
    return tuple(place for place, first in enumerate(alike(repeats)) if first < place)
