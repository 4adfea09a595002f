"""What a column has said of patients, over runs: whose values have changed, since two sums differ by them alone.

The first version of a column has every patient's digest as it was first, later ones have those that were others then.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

Version = dict[bytes, bytes]


def changed(columns: Iterable[tuple[Sequence[Version], Version]]) -> dict[bytes, frozenset[tuple[int, int]]]:
    """Return for each patient of whom something else is said than before in which columns, against which versions.

    Args:
        columns: the versions of each, and what it says now.
    """
    found: dict[bytes, set[tuple[int, int]]] = {}
    for place, (versions, values) in enumerate(columns):
        first = versions[0] if versions else {}
        for number, version in enumerate(versions):
            if values.items() <= version.items():
                continue
            for patient, value in values.items():
                if version.get(patient, first.get(patient, value)) != value:
                    found.setdefault(patient, set()).add((place, number))
    return {patient: frozenset(own) for patient, own in found.items()}


def with_version(versions: Sequence[Version], values: Version) -> list[tuple[int, Version]]:
    """Return which versions of a column are new, or have more patients, once it has said this.

    Args:
        versions: so far.
        values: what it says now, by patient.

    Returns:
        Their numbers, and all that is in them.
    """
    first = versions[0] if versions else {}
    if values.items() <= first.items():
        return []
    more = {patient: value for patient, value in values.items() if patient not in first}
    found = [(0, first | more)] if more else []
    others = {patient: value for patient, value in values.items() if first.get(patient, value) != value}
    known = any(
        all(version.get(patient, first.get(patient, value)) == value for patient, value in values.items())
        for version in versions
    )
    return found if known or not others else [*found, (len(versions), others)]
