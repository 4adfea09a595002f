"""Values of patients in a column over runs, to find changed ones, by which two sums differ.

The first version of a column has every patient's first digest, later ones have the changed digests.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

Version = dict[bytes, bytes]


def changed(columns: Iterable[tuple[Sequence[Version], Version]]) -> dict[bytes, frozenset[tuple[int, int]]]:
    """Return for each patient the columns with changed values, and the versions that they differ from.

    Args:
        columns: versions and current values of each column.
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
    """Return the versions of a column that are new or extended by current values.

    Args:
        versions: so far.
        values: current digests, by patient.

    Returns:
        Their numbers and contents.
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
