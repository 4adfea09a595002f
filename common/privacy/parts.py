"""Parts of a site's patients: dealt out once, so that every set that a run sums over is a union of them.

However sums over unions of parts are added and subtracted, no smaller set than a part comes out.
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

MOST = 10  # parts of patients who come at once: few, so that later studies of a subset can divide them
Set = TypeVar("Set")


@dataclass(frozen=True)
class Secret:
    """What only one site knows. All that it draws of patients follows from it, and can be drawn again.

    Args:
        value: 32 bytes.
    """

    value: bytes = field(repr=False)

    def number(self, *what: int | str) -> int:
        """Return a number in [0, 2**63) that depends on all of `what` and on their order."""
        text = "\0".join(str(part) for part in what).encode()
        return int.from_bytes(hmac.digest(self.value, text, "sha256")[:8], "little") >> 1

    def name(self, *what: int | str) -> str:
        """Return 32 hexadecimal digits in place of a name that nobody else may learn."""
        return hmac.digest(self.value, "\0".join(["name", *map(str, what)]).encode(), "sha256").hex()[:32]

    def digests(self, about: str) -> Callable[[bytes], bytes]:
        """Return what puts 8 bytes in place of values that nobody else may learn, nor tell whether two are equal."""
        key = hmac.digest(self.value, f"digests\0{about}".encode(), "sha256")
        return lambda values: blake2b(values, digest_size=8, key=key).digest()


def rare(classes: Mapping[str, Collection[int]], level: int) -> frozenset[str]:
    """Return the patients without whom no class has patients, but fewer than `level`.

    Args:
        classes: of every patient, those that they are of: of several labels several, of a number none.
        level: patients.
    """
    few, found = set[int](), set[str]()
    while True:
        counts = Counter(one for patient, own in classes.items() if patient not in found for one in own)
        few |= {one for one, count in counts.items() if count < level}
        more = {patient for patient, own in classes.items() if patient not in found and not few.isdisjoint(own)}
        if not more:
            return frozenset(found)
        found |= more


def deal(strata: Mapping[str, int], fewest: int, secret: Secret, most: int = MOST) -> dict[str, int]:
    """Deal patients out to parts, numbered from 0, which differ by one patient at most; of each stratum, too.

    Strata with fewer patients than there are parts are one: else whoever makes the strata would know the parts.

    Args:
        strata: of every patient, the number of the stratum.
        fewest: patients of a part.
        secret: of the site.
        most: parts.

    Returns:
        The part of every patient; nothing if they are too few.
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
    """Refine a partition of a site's patients so that a run's sets are unions of its parts.

    A part is divided only into parts of at least `fewest` patients, those whom the run leaves out being one of them;
    one that cannot be is not used by the run. Patients that have come since wait until they are enough for a part, and
    so do those of a class of which a site has too few; where such a one is in a part, all of it is left out.

    Whom withdrawn patients leave behind join newcomers of the same set, in a part of their own. It has a number below 0
    and is never divided: what divides it could tell newcomers from the others, and these, subtracted from the part that
    they were in, tell of who has withdrawn.

    Args:
        known: the part of every patient of whom something has left the site.
        withdrawn: patients that are used no more.
        sets: of every patient whom the run would use, which set they are in, such as training or test.
        strata: of these patients, each with the number of a stratum; new ones are dealt out evenly.
        fewest: patients of a part.
        secret: of the site.
        classes: of these patients, those that they are of; see `rare`.
        level: patients of a class.

    Returns:
        The new partition, and the patients whom the run may use.
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
        if len(rest) < len(divided.get(None, ())):  # somebody has withdrawn
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
        dealt = deal(fresh_ones, fewest, secret, most)
        numbers = {part: fresh + part for part in dealt.values()}
        for place, patients in enumerate(left_behind.get(name, ()) if numbers else ()):
            part = place % len(numbers)
            dealt |= dict.fromkeys(patients, part)
            numbers[part] = ~(fresh + part)
        used.update(dealt)
        found |= {patient: numbers[part] for patient, part in dealt.items()}
        fresh += len(numbers)
    while few := rare({patient: classes.get(patient, ()) for patient in used}, level):
        left_out = {found[patient] for patient in few}
        used = {patient for patient in used if found[patient] not in left_out}
    return found, frozenset(used)


def most_rows(counts: Collection[int], share: float) -> int:
    """Return how many rows a patient of a part may have so that nobody has more than a share of those that are left.

    Args:
        counts: rows of each patient.
        share: of a part's rows; of so few patients that somebody has to have more, it holds nothing back.
    """
    most = max(counts, default=0)
    if share * len(counts) < 1:
        return most
    return next((one for one in range(most, 1, -1) if one <= share * sum(min(own, one) for own in counts)), 1)


def fold_of(parts: Collection[int], folds: int, secret: Secret, *what: int | str) -> dict[int, int]:
    """Return the fold that tests each part, if there are several: of fewer parts than folds, some test none.

    Args:
        parts: of a site.
        folds: how many.
        secret: of the site.
        what: else the folds depend on, such as the repeat.
    """
    if len(parts) < 2:
        return {}
    turns = sorted(range(folds), key=lambda fold: secret.number("turn", *what, fold))
    order = sorted(parts, key=lambda part: secret.number("fold", *what, part))
    return {part: turns[place % folds] for place, part in enumerate(order)}


def chosen(parts: Collection[int], share: float, secret: Secret, *what: int | str) -> frozenset[int]:
    """Return about such a share of some parts, never all of them."""
    count = min(int(share * len(parts) + 0.5), max(len(parts) - 1, 0))
    return frozenset(sorted(parts, key=lambda part: secret.number("chosen", *what, part))[:count])
