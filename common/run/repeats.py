"""Equal repeats of a cross-validation, which are frequent with few parts. Pure functions."""

from __future__ import annotations

from collections.abc import Collection, Hashable, Iterable, Sequence


def alike(sets: Iterable[Hashable]) -> tuple[int, ...]:
    """Return for each set the index of the first equal one, which is all that a site discloses of its folds."""
    first = dict[Hashable, int]()
    return tuple(first.setdefault(one, place) for place, one in enumerate(sets))


def equal_repeats(told: Collection[Sequence[int]], folds: int) -> tuple[int, ...]:
    """Return the repeats, from 0, whose folds equal those of an earlier one in any order, at every site.

    Args:
        told: for each site, `alike` over the folds of all repeats.
        folds: number per repeat.
    """
    everywhere = list(zip(*told, strict=True))
    repeats = [tuple(sorted(everywhere[at : at + folds])) for at in range(0, len(everywhere), folds)]
    return tuple(place for place, first in enumerate(alike(repeats)) if first < place)
