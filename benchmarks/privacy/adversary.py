"""`python -m benchmarks adversary`: random runs against one site, and combinations of their sums.

The aggregator keeps all that it receives in sequences of up to six runs.
"""

from __future__ import annotations

import tempfile
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

import numpy as np
import torch
from rich.console import Console
from rich.table import Table

from benchmarks.privacy.adversary_runs import SECRET, Run, attend
from benchmarks.privacy.adversary_specs import OTHER, THIRD, VICTIM, Hospital, ask
from benchmarks.privacy.adversary_sums import (
    Finding,
    Patients,
    Sum,
    beyond_curve,
    cells_right,
    channels,
    is_level,
    rare_in,
    sets_of,
    subtracted,
    sums_of,
    told_by_cells,
    told_by_ratios,
    told_of_few,
    where,
)
from rankdad.common.documents import validate
from rankdad.common.errors import RankdadError
from rankdad.common.policy import EVERYTHING, MinLevel, Policy
from rankdad.common.spec import RunSpec
from rankdad.local.privacy.log import DisclosureLog

RULES = Policy()  # of the attacked site
STRICT = RULES.model_copy(update={"min_level": MinLevel(count=3, by="part")})
OFF = EVERYTHING.model_copy(update={"keyed_folds": True, "methods": RULES.methods})
BEYOND = 3  # standard errors of tests with more correct cells than a smooth curve
LONGEST = 6  # runs of a sequence
MILDER: dict[str, Callable[[RunSpec], RunSpec]] = {  # requests after a refusal
    "weights-not-listed": lambda spec: _changed(spec, "model", pretrained=None),
    "too-few-sites": lambda spec: _changed(spec, "training", batches="even"),
}


@dataclass(eq=False)
class Outcome:
    """What an adversary has found.

    Args:
        sequences: of runs.
        runs: that were carried out.
        refused: by code.
        below: findings about fewer patients than a part has, by source.
        smallest: patients of the smallest, by source.
        levels: of a part, or of a batch, that one or two patients have, by the run's model, batches and rounds.
        cells: of single patients that tests have right, by how far they are moved.
        first: seconds until one patient was found alone, by sums alone; None if none was.
        examples: a sentence about the first finding of each source.
    """

    sequences: int = 0
    runs: int = 0
    refused: Counter[str] = field(default_factory=Counter)
    below: Counter[str] = field(default_factory=Counter)
    smallest: dict[str, int] = field(default_factory=dict)
    levels: dict[str, Counter[str]] = field(default_factory=lambda: defaultdict(Counter))
    cells: Counter[int] = field(default_factory=Counter)
    first: float | None = None
    examples: dict[str, str] = field(default_factory=dict)

    def note(self, findings: Sequence[Finding], seconds: float, sequence: int) -> None:
        """Add a sequence's findings, each set of a source once."""
        for one in dict.fromkeys(findings):
            if one.level is not None:
                self.levels[one.where][one.source] += 1
                continue
            self.below[one.source] += 1
            self.smallest[one.source] = min(len(one.patients), self.smallest.get(one.source, len(one.patients)))
            self.examples.setdefault(one.source, f"sequence {sequence}, {one.where}: {len(one.patients)} patients")
            if len(one.patients) == 1 and self.first is None and not one.source.startswith("cells"):
                self.first = seconds


def bench_adversary(policy: Policy, runs: int, seconds: float, seed: int, console: Console) -> Outcome:
    """Attack for a number of runs or a time, and print the findings.

    Args:
        policy: of the attacked site.
        runs: that are carried out.
        seconds: at most.
        seed: of all that is drawn.
        console: to print on.
    """
    torch.set_num_threads(1)
    found, began = Outcome(), time.perf_counter()
    while found.runs < runs and time.perf_counter() - began < seconds:
        rng = np.random.default_rng([seed, found.sequences])
        findings = sequence(policy, rng, found, int(rng.integers(1, LONGEST + 1)))
        found.note(findings, time.perf_counter() - began, found.sequences)
        found.sequences += 1
    console.print(_table(found, time.perf_counter() - began), _levels(found))
    for source, example in found.examples.items():
        console.print(f"{source}: first in {example}")
    return found


def held(policy: Policy, found: Outcome) -> bool:
    """Return whether findings are as expected: nothing below a part with rules, single patients without.

    Levels of a part may be told, but not where the policy counts them by part.
    """
    if policy.keyed_folds:
        return found.first is not None
    parts = sum(counts["part"] for counts in found.levels.values())
    return not found.below and beyond_curve(found.cells) < BEYOND and not (policy.min_level.by == "part" and parts)


def sequence(policy: Policy, rng: np.random.Generator, outcome: Outcome, runs: int) -> list[Finding]:
    """Run against a site that changes between runs, and return the findings.

    Args:
        policy: of the site.
        rng: of all that is drawn.
        outcome: takes note of runs and refusals.
        runs: how many are asked for.
    """
    with tempfile.TemporaryDirectory() as folder:
        home = Path(folder)
        folders = {name: home / name / "data" for name in (VICTIM, OTHER, THIRD)}
        hospitals = {name: Hospital(path, rng, gaps=name == VICTIM) for name, path in folders.items()}
        hospitals[VICTIM].admit(int(rng.integers(30, 60) if rng.random() < 0.3 else rng.integers(60, 201)))
        hospitals[OTHER].admit(int(rng.integers(24, 48)))
        hospitals[THIRD].admit(24)
        done, number = list[Run](), 0
        for _ in range(runs):
            spec = _asked(rng, home / "weights", outcome)
            while spec is not None:
                number += 1
                try:
                    done.append(attend(spec, folders, home, policy, f"run-{number}", home / "weights"))
                    break
                except RankdadError as error:
                    outcome.refused[error.code] += 1
                    asked = spec
                    spec = MILDER[error.code](asked) if error.code in MILDER else None
                    spec = None if spec == asked else spec
            _change(hospitals[VICTIM], rng, home, kept=not policy.keyed_folds)
        outcome.runs += len(done)
        outcome.cells += sum(map(cells_right, done), Counter())
        return analysed(done, rng, RULES.min_rows)


def _asked(rng: np.random.Generator, weights: Path, outcome: Outcome) -> RunSpec | None:
    """Return a random spec; None if it is invalid."""
    try:
        return ask(rng, weights)
    except RankdadError as error:
        outcome.refused[error.code] += 1
        return None


def _changed(spec: RunSpec, part: Literal["model", "training"], **values: object) -> RunSpec:
    """Return a spec with other values in one part, where it has them."""
    document = spec.model_dump(mode="json")
    document[part] |= {name: value for name, value in values.items() if name in document[part]}
    return validate(RunSpec, document)


def _change(hospital: Hospital, rng: np.random.Generator, home: Path, *, kept: bool) -> None:
    """Let a patient withdraw, others come, and values be corrected, or nothing happen."""
    what = rng.random()
    if what < 0.12:
        patient = str(rng.choice(sorted(hospital.rows)))
        if kept:
            DisclosureLog(home / "privacy", VICTIM, SECRET).withdraw([patient])
        if not kept or rng.random() < 0.5:
            del hospital.rows[patient]
            hospital.write()
    elif what < 0.3:
        hospital.admit(int(rng.integers(1, 20)))
    elif what < 0.4:
        hospital.correct(int(rng.choice([1, 3, 20])))


def analysed(runs: Sequence[Run], rng: np.random.Generator, fewest: int) -> list[Finding]:
    """Return findings of runs together about fewer patients than a part has, and about rare levels.

    Args:
        runs: of one site, in order.
        rng: draws combinations.
        fewest: patients of a part.
    """
    found = list[Finding]()
    for few in told_of_few([frozenset[Hashable](run.patients(rows)) for run in runs for rows in sets_of(run)], fewest):
        found.append(Finding("splits", frozenset(map(str, few)), "all sets of the sequence"))
    found += _moved(runs, fewest)
    families: dict[Hashable, list[Sum]] = defaultdict(list)
    for number, run in enumerate(runs):
        for one in sums_of(run, number):
            families[one.about].append(one)
        found += told_by_cells(run)
        found += told_by_ratios(run)
    for about, sums in families.items():
        source = str(about if isinstance(about, str) else about[0])  # type: ignore[index]
        drawn = {one.behind for one in sums if one.batch}
        run = runs[sums[-1].run]
        for own in subtracted(sums, rng):
            if 0 < len(own) < fewest:
                found.append(Finding(f"sums of {source}{' and batches' if drawn else ''}", own, where(run)))
            elif own:
                found += _few_of_level(run, own, "batch" if _partly(own, drawn) else "part", source)
    return found


def _partly(own: Patients, batches: set[Patients]) -> bool:
    """Tell whether a set is made of batches."""
    return bool(batches) and (own in batches or any(own & batch and not batch <= own for batch in batches))


def _few_of_level(run: Run, patients: Patients, of: str, source: str) -> list[Finding]:
    """Return levels of one or two patients of a set, by the model that revealed them."""
    told = where(run) if source != "rows" else "preparation and Table 1"
    return [Finding(of, own, told, level) for level, own in rare_in(run, patients)]


def _moved(runs: Sequence[Run], fewest: int) -> list[Finding]:
    """Return the patients who are few in a part to have another value in one run than in another.

    Sums over the same set in both runs differ by them alone. What stands for a gap tells nothing of a patient.
    """
    sets: dict[str, list[frozenset[Hashable]]] = defaultdict(list)
    for run in runs:
        for place, (name, values) in enumerate(channels(run).items()):
            numbers = values.double()
            if place < run.gaps.shape[1]:
                numbers = numbers.masked_fill(run.gaps[:, place], torch.nan)
            said = [None if number != number else number for number in numbers.tolist()]
            sets[name] += [frozenset((run.data.keys[row], said[row]) for row in rows.tolist()) for rows in sets_of(run)]
    found = list[Finding]()
    for name, own in sets.items():
        for atom in told_of_few(own, fewest):
            patients = frozenset(str(one[0]) for one in atom if isinstance(one, tuple))
            if is_level(name):
                found.append(Finding("change", patients, "levels that two runs read otherwise", name))
            else:
                found.append(Finding("values that two runs read otherwise", patients, name))
    return found


def _table(found: Outcome, seconds: float) -> Table:
    """Return the numbers of attempts and findings."""
    table = Table(
        title=f"{found.sequences} sequences: {found.runs} runs, {found.refused.total()} refused, {seconds:.0f} s"
    )
    table.add_column("sets below a part, told by")
    for name in ("sets", "smallest"):
        table.add_column(name, justify="right")
    for source, count in sorted(found.below.items()):
        table.add_row(source, str(count), str(found.smallest[source]))
    table.add_section()
    alone = "never" if found.first is None else f"after {found.first:.0f} s"
    table.add_row("one patient alone", alone, "")
    curve = f"{beyond_curve(found.cells):+.1f} standard errors from a curve's"
    table.add_row("cells of tests right", str(found.cells[0]), curve)
    refusals = ", ".join(f"{code} {count}" for code, count in found.refused.most_common(6))
    table.caption = f"refused: {refusals}" if refusals else None
    return table


def _levels(found: Outcome) -> Table:
    """Return which levels of a part, or of a batch, one or two patients have."""
    table = Table("model, batch, rounds", title="Levels that one or two patients have")
    for name in ("of a part", "of a batch", "between runs"):
        table.add_column(name, justify="right")
    for name, counts in sorted(found.levels.items()):
        table.add_row(name, *(str(counts[of]) for of in ("part", "batch", "change")))
    return table
