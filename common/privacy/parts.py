"""The partition of a site's patients: every set that a run sums over is a union of its parts.

No sums or differences of sums over unions of parts are about a smaller set than a part.
"""

from __future__ import annotations

import hmac
from collections import Counter
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field
from hashlib import blake2b
from itertools import chain
from types import MappingProxyType
from typing import TypeVar

MOST = 10  # parts of patients who arrive together: few, so that later studies of a subset can divide them
Set = TypeVar("Set")


@dataclass(frozen=True)
class Secret:
    """A site's secret, from which all its random draws about patients are derived.

    Args:
        value: 32 bytes.
    """

    value: bytes = field(repr=False)

    def number(self, *what: int | str) -> int:
        """Return a number in [0, 2**63) derived from `what`, in order."""
        text = "\0".join(str(part) for part in what).encode()
        return int.from_bytes(hmac.digest(self.value, text, "sha256")[:8], "little") >> 1

    def name(self, *what: int | str) -> str:
        """Return 32 hexadecimal digits as a keyed hash of a name."""
        return hmac.digest(self.value, "\0".join(["name", *map(str, what)]).encode(), "sha256").hex()[:32]

    def digests(self, about: str) -> Callable[[bytes], bytes]:
        """Return a keyed 8-byte hash function, so that equality of values is known only here."""
        key = hmac.digest(self.value, f"digests\0{about}".encode(), "sha256")
        return lambda values: blake2b(values, digest_size=8, key=key).digest()


def rare(classes: Mapping[str, Collection[int]], level: int) -> frozenset[str]:
    """Return the patients of classes with fewer than `level` patients.

    Args:
        classes: of every patient: several with several labels, none for numbers.
        level: number of patients.
    """
    few, found = set[int](), set[str]()
    while True:
        counts = Counter(one for patient, own in classes.items() if patient not in found for one in own)
        few |= {one for one, count in counts.items() if count < level}
        more = {patient for patient, own in classes.items() if patient not in found and not few.isdisjoint(own)}
        if not more:
            return frozenset(found)
        found |= more


def assign(strata: Mapping[str, int], fewest: int, secret: Secret, most: int = MOST) -> dict[str, int]:
    """Assign patients to parts, numbered from 0, of equal size within one patient, also in each stratum.

    Strata with fewer patients than parts are merged, because otherwise the author of the strata would know the parts.

    Args:
        strata: stratum of every patient.
        fewest: patients in a part.
        secret: of the site.
        most: parts.

    Returns:
        The part of every patient; empty if there are too few.
    """
    count, sizes = min(most, len(strata) // fewest), Counter(strata.values())

    def place_of(patient: str) -> tuple[int, int]:
        own = strata[patient]
        return secret.number("stratum", own) if sizes[own] >= count else -1, secret.number("part", patient)

    order = sorted(strata, key=place_of)
    return {patient: place % count for place, patient in enumerate(order)} if count else {}


def refine(
    known: Mapping[str, int],
    withdrawn: Collection[str],
    sets: Mapping[str, Set],
    strata: Mapping[str, int],
    fewest: int,
    secret: Secret,
    classes: Mapping[str, Collection[int]] = MappingProxyType({}),
    level: int = 1,
) -> tuple[dict[str, int], frozenset[str]]:
    """Refine the partition of a site's patients so that a run's sets are unions of its parts.

    A part is divided only into parts of at least `fewest` patients, including those that the run leaves out; otherwise
    the run does not use it. New patients wait until they are enough for a part, and so do those of a rare class; a part
    with such a patient is left out.

    The other patients of a withdrawn patient's part join new patients of the same set, in a part with a number below 0,
    which is never divided: dividing it could separate the new patients from the others, and subtracting these from
    their old part would reveal the withdrawn ones.

    Args:
        known: part of every patient behind earlier disclosures.
        withdrawn: patients that are no longer used.
        sets: set of every patient that the run would use, such as training or test.
        strata: stratum of each of these; new ones are balanced by it.
        fewest: patients in a part.
        secret: of the site.
        classes: of these patients; see `rare`.
        level: patients of a class.

    Returns:
        The new partition, and the patients that the run may use.
    """
    sets = {patient: name for patient, name in sets.items() if patient not in withdrawn}
    waits = rare({patient: classes.get(patient, ()) for patient in sets}, level)
    found, used = dict(known), set[str]()
    members: dict[int, dict[Set | None, list[str]]] = {}
    for patient, part in known.items():
        members.setdefault(part, {}).setdefault(sets.get(patient), []).append(patient)
    fresh = 1 + max((part if part >= 0 else ~part for part in known.values()), default=-1)
    gone, left_behind = set(withdrawn), dict[Set, list[list[str]]]()
    for part, divided in sorted(members.items()):
        rest = [patient for patient in divided.get(None, ()) if patient not in gone]
        stay = [name for name in divided if name is not None]
        if len(rest) < len(divided.get(None, ())):  # a patient has withdrawn
            if not rest and len(stay) == 1:
                left_behind.setdefault(stay[0], []).append(divided[stay[0]])
            continue
        if min(map(len, divided.values())) < fewest or (part < 0 and len(divided) > 1):
            continue
        for place, patients in enumerate(own for name, own in divided.items() if name is not None):
            used.update(patients)
            if place or None in divided:
                found |= dict.fromkeys(patients, fresh)
                fresh += 1
    newcomers: dict[Set, dict[str, int]] = {}
    for patient, name in sets.items():
        if patient not in known and patient not in waits:
            newcomers.setdefault(name, {})[patient] = strata[patient]
    for name, fresh_ones in newcomers.items():
        of_class = Counter(chain.from_iterable(classes.get(patient, ()) for patient in fresh_ones))
        most = MOST
        if level > 1 and of_class.total() == len(fresh_ones):  # each of one class
            most = max(1, min(MOST, min(of_class.values()) // level))
        assigned = assign(fresh_ones, fewest, secret, most)
        numbers = {part: fresh + part for part in assigned.values()}
        for place, patients in enumerate(left_behind.get(name, ()) if numbers else ()):
            part = place % len(numbers)
            assigned |= dict.fromkeys(patients, part)
            numbers[part] = ~(fresh + part)
        used.update(assigned)
        found |= {patient: numbers[part] for patient, part in assigned.items()}
        fresh += len(numbers)
    while few := rare({patient: classes.get(patient, ()) for patient in used}, level):
        left_out = {found[patient] for patient in few}
        used = {patient for patient in used if found[patient] not in left_out}
    return found, frozenset(used)


def most_rows(counts: Collection[int], share: float) -> int:
    """Return the largest number of rows per patient of a part for which no patient has more than a share of the rest.

    Args:
        counts: rows of each patient.
        share: of a part's rows; it has no effect if there are too few patients.
    """
    most = max(counts, default=0)
    if share * len(counts) < 1:
        return most
    return next((one for one in range(most, 1, -1) if one <= share * sum(min(own, one) for own in counts)), 1)


def fold_of(parts: Collection[int], folds: int, secret: Secret, *what: int | str) -> dict[int, int]:
    """Return the fold that tests each part; with fewer parts than folds, some folds test none.

    Args:
        parts: of a site.
        folds: number of folds.
        secret: of the site.
        what: further seeds, such as the repeat.
    """
    if len(parts) < 2:
        return {}
    turns = sorted(range(folds), key=lambda fold: secret.number("turn", *what, fold))
    order = sorted(parts, key=lambda part: secret.number("fold", *what, part))
    return {part: turns[place % folds] for place, part in enumerate(order)}


def chosen(parts: Collection[int], share: float, secret: Secret, *what: int | str) -> frozenset[int]:
    """Return about this share of the parts, never all of them."""
    count = min(int(share * len(parts) + 0.5), max(len(parts) - 1, 0))
    return frozenset(sorted(parts, key=lambda part: secret.number("chosen", *what, part))[:count])
