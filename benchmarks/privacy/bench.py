"""`python -m benchmarks attacks`: single patients found by attacks, with rules and without."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from rich.console import Console
from rich.table import Table

from benchmarks.privacy.hospitals import NO_RULES, RULES, Hospitals
from benchmarks.privacy.judge import Claim, Score, judge
from benchmarks.privacy.owner import identifiers, two_runs, withdrawal
from benchmarks.privacy.refusals import refused
from benchmarks.privacy.sums import aggregator, member
from benchmarks.privacy.traps import traps
from rankdad.common.policy import Policy

Attack = Callable[[Hospitals], list[Claim]]
ATTACKS: Mapping[str, Attack] = {
    "aggregator, one study": aggregator,
    "other member of two": member,
    "owner, two runs": two_runs,
    "refused runs": refused,
    "identifiers as levels": identifiers,
    "newcomers and withdrawals": withdrawal,
    "chosen initial weights": traps,
}


@dataclass(frozen=True)
class Found:
    """What an attack finds at hospitals of some size.

    Args:
        attack: its name.
        patients: of each hospital.
        on: with the rules.
        off: without.
    """

    attack: str
    patients: int
    on: Score
    off: Score

    @property
    def holds(self) -> bool:
        """Whether the rules stop an attack that succeeds without them."""
        return self.on.right == 0 < self.off.right


def attacked(attack: Attack, count: int, policy: Policy, seed: int = 0) -> Score:
    """Return an attack's findings at two new hospitals of so many patients each."""
    with tempfile.TemporaryDirectory() as folder:
        hospitals = Hospitals(Path(folder), count, policy, seed)
        return judge(attack(hospitals), hospitals.truth)


def bench_attacks(counts: Sequence[int], console: Console) -> list[Found]:
    """Print and return how many cells each attack claims, and how many of these are right.

    Args:
        counts: patients of each hospital.
        console: where to print.
    """
    table = Table("attack", "patients", "rules on: claimed", "right", "off: claimed", "right", "cells")
    found = list[Found]()
    for name, attack in ATTACKS.items():
        for count in counts:
            one = Found(name, count, attacked(attack, count, RULES), attacked(attack, count, NO_RULES))
            numbers = (count, one.on.claimed, one.on.right, one.off.claimed, one.off.right, one.on.cells)
            table.add_row(name, *(f"{number:,}" for number in numbers))
            found.append(one)
    console.print(table)
    return found
