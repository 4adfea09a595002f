"""What a column has said of patients, over runs: whose values have changed, since two sums differ by them alone.

The first version of a column has every patient's digest as it was first, later ones have those that were others then.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

Version = dict[str, bytes]


def changed(columns: Iterable[Sequence[Version]], patient: str, values: Sequence[bytes]) -> frozenset[tuple[int, int]]:
    """Return in which columns, and against which of their versions, what is said of a patient has changed.

    Args:
        columns: the versions of each.
        patient: by name.
        values: what each column says of them now.
    """
    return frozenset(
        (place, number)
        for place, (versions, value) in enumerate(zip(columns, values, strict=True))
        if versions and patient in versions[0]
        for number, version in enumerate(versions)
        if version.get(patient, versions[0][patient]) != value
    )


def with_version(versions: Sequence[Version], values: Mapping[str, bytes]) -> list[tuple[int, Version]]:
    """Return which versions of a column are new, or have more patients, once it has said this.

    Args:
        versions: so far.
        values: what it says now, by patient.

    Returns:
        Their numbers, and all that is in them.
    """
    first = versions[0] if versions else {}
    more = {patient: value for patient, value in values.items() if patient not in first}
    found = [(0, first | more)] if more else []
    others = {patient: value for patient, value in values.items() if first.get(patient, value) != value}
    known = any(
        all(version.get(patient, first.get(patient, value)) == value for patient, value in values.items())
        for version in versions
    )
    return found if known or not others else [*found, (len(versions), others)]
