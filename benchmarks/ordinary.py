"""`python -m benchmarks ordinary`: an ordinary study and a changed one a week later, under the default policy."""

from __future__ import annotations

import tempfile
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, fields, is_dataclass
from pathlib import Path
from typing import Any

from pydantic import BaseModel
from rich.console import Console
from rich.table import Table
from torch import Tensor

from benchmarks.privacy.hospitals import RULES, Hospitals, Refused, Seen, document, secret_of
from benchmarks.privacy.tables import BINARY, LEVELS, NUMBERS, patients, write
from rankdad.common.data import SiteData, read_site
from rankdad.common.documents import validate
from rankdad.common.errors import RankdadError
from rankdad.common.models import build_network
from rankdad.common.preparation import Preparing
from rankdad.common.protocol.messages import Message
from rankdad.common.protocol.plan import make_plan
from rankdad.common.rounds.evaluation import Evaluation
from rankdad.common.rounds.step import Step
from rankdad.common.spec import RunSpec
from rankdad.local.admission import admitted
from rankdad.local.privacy.assigning import assigner_of
from rankdad.local.privacy.log import DisclosureLog
from rankdad.local.sums import linear_sets

SITES = ("alpha", "beta", "gamma")
NEWCOMERS = 3  # patients of each hospital who come between the two studies; one withdraws
REFERENCES = {"steps": ["local", "site"], "steps, linear": ["local", "site", "linear"], "exact": ["local", "site"]}
EPOCHS = 5  # of the first study's trainings
EVENTS = (2, 5)  # of so many patients one has the outcome


@dataclass(frozen=True)
class Taken:
    """What a study has of a hospital, or why it has nothing.

    Args:
        way: how it is solved, and whether beside the reference linear.
        number: of the study: the first, or the one a week later.
        site: the hospital.
        patients: in its tables.
        used: of them, by the study.
        parts: in which these lie.
        smallest: patients of the smallest part.
        whole: numbers that tell of all of them in sums, and cells.
        fold: likewise of the fewest that a fold holds out; None where none are counted.
        steps: numbers in gradients.
        tallies: numbers in tests and validations.
        refused: the site's sentence; "" where the study has run.
    """

    way: str
    number: int
    site: str
    patients: int
    used: int = 0
    parts: int = 0
    smallest: int = 0
    whole: tuple[int, int] = (0, 0)
    fold: tuple[int, int] | None = None
    steps: int = 0
    tallies: int = 0
    refused: str = ""


def study(way: str, number: int) -> dict[str, Any]:
    """Return a study as its owner writes it; the second has an input fewer, another seed and more epochs."""
    inputs = [*NUMBERS[: len(NUMBERS) - number + 1], *([*BINARY, *LEVELS] if way == "steps" else [])]
    changes: dict[str, Any] = {
        "data": {
            "features": inputs,
            "categorical": {name: list(own) for name, own in LEVELS.items() if name in inputs},
        },
        "evaluation": {"name": "k-fold", "folds": 5, "refit": True, "references": REFERENCES[way]},
        "federation": {"sites": list(SITES)},
        "seed": number,
    }
    own = document(**changes)
    if way == "exact":
        return own | {"training": {"solver": "exact", "validation": 0}}
    own["training"] |= {"epochs": EPOCHS + number - 1, "optimizer": {"name": "adam", "lr": 0.01}}
    return own | {"model": {"name": "mlp", "hidden": [8]}, "method": {"name": "rank-dad", "rank": 2}}


def both_studies(count: int, way: str, folder: Path, seed: int = 0) -> list[Taken]:
    """Return both studies' results with hospitals of a size, or only the first one's if the second is refused.

    Args:
        count: patients of each at first.
        way: see `Taken`.
        folder: of the hospitals.
        seed: of their tables and secrets.
    """
    hospitals = Hospitals(folder, count + NEWCOMERS, RULES, seed, SITES)
    later = {name for names in hospitals.names.values() for name in names[count:]}
    gone = {site: names[0] for site, names in hospitals.names.items()}
    found = _taken(hospitals, way, 1, later)
    if not any(one.refused for one in found):
        for site, name in gone.items():
            DisclosureLog(folder / site / "privacy", site).withdraw([name])
        found += _taken(hospitals, way, 2, set(gone.values()))
    return found


def _taken(hospitals: Hospitals, way: str, number: int, without: set[str]) -> list[Taken]:
    own = study(way, number)
    seen = hospitals.run(own, without)
    counts = {site: len(set(names) - without) for site, names in hospitals.names.items()}
    if isinstance(seen, Refused):
        return [Taken(way, number, site, count, refused=seen.sentence) for site, count in counts.items()]
    return [_of_site(hospitals, seen, way, number, site, count) for site, count in counts.items()]


def _of_site(hospitals: Hospitals, seen: Seen, way: str, number: int, site: str, count: int) -> Taken:
    data = _read(hospitals, seen, site)
    assert data.parts is not None
    told = list(linear_sets(seen.spec, data).disclosed.values())
    columns = seen.spec.data.shape[0] + 1
    sizes = Counter[str]()
    for message in seen.up[site]:
        sizes[_kind(message)] += _numbers(message.body)
    (people, numbers, _), *fold = told
    if way == "steps":  # the refit's sums, too: those of folds add up to them only without validation
        whole, each = Preparing(seen.spec).numbers()
        numbers = whole + seen.plan.folds * each
    return Taken(
        way,
        number,
        site,
        count,
        sum(data.parts.sizes.values()),
        len(data.parts.sizes),
        min(data.parts.sizes.values()),
        (numbers, people * columns),
        (fold[0][1], fold[0][0] * columns) if fold else None,
        sizes["steps"],
        sizes["tallies"],
    )


def _read(hospitals: Hospitals, seen: Seen, site: str) -> SiteData:
    """Return a hospital's data after the run, with the same patients."""
    folder, spec = hospitals.folder / site, seen.spec
    assigner = assigner_of(folder / "privacy", site, RULES, spec, f"run-{hospitals.runs}")
    return admitted(RULES, spec, seen.plan, read_site(spec, folder / "data", SITES.index(site), assigner=assigner))


def _kind(message: Message) -> str:
    if isinstance(message.body, Step):
        return "steps"
    return "tallies" if isinstance(message.body, Evaluation) else "others"


def _numbers(value: object) -> int:
    """Return how many numbers a message's tensors hold."""
    return sum(tensor.numel() for tensor in _tensors(value))


def _tensors(value: object) -> Iterator[Tensor]:
    if isinstance(value, Tensor):
        yield value
        return
    within: Iterator[object] = iter(())
    if isinstance(value, BaseModel):
        within = (getattr(value, name) for name in type(value).model_fields)
    elif is_dataclass(value):
        within = (getattr(value, field.name) for field in fields(value))
    elif isinstance(value, Mapping):
        within = iter(value.values())
    elif isinstance(value, tuple | list):
        within = iter(value)
    for one in within:
        yield from _tensors(one)


def least_count(way: str, one_in: int, high: int = 3000) -> int:
    """Return from how many patients on a hospital's policy allows the first study, by its data alone.

    Args:
        way: see `Taken`.
        one_in: so many patients has one the outcome.
        high: patients with whom it does.
    """
    low = RULES.min_rows
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (low, middle) if _admits(way, middle, one_in) else (middle, high)
    return high


def _admits(way: str, count: int, one_in: int) -> bool:
    spec = validate(RunSpec, study(way, 1))
    plan = make_plan(spec, build_network(spec))
    with tempfile.TemporaryDirectory() as folder:
        for place, site in enumerate(SITES):
            write(patients(site, count, 0, one_in), Path(folder) / site / "data")
            assigner = assigner_of(Path(folder) / site / "privacy", site, RULES, spec, None, secret_of(site, 0))
            try:
                admitted(RULES, spec, plan, read_site(spec, Path(folder) / site / "data", place, assigner=assigner))
            except RankdadError:
                return False
    return True


def bench_ordinary(counts: Sequence[int], console: Console, ways: Sequence[str] = tuple(REFERENCES)) -> list[Taken]:
    """Print and return the results of two studies with three hospitals of each size.

    Args:
        counts: patients of each hospital.
        console: where to print.
        ways: see `Taken`.
    """
    head = ("way", "study", "hospital", "patients", "used", "parts", "smallest", "of all / cells", "of a fold / cells")
    table = Table(*head, "in steps", "in tallies")
    found, sentences = list[Taken](), dict[tuple[int, str, int], str]()
    for count in counts:
        for way in ways:
            with tempfile.TemporaryDirectory() as folder:
                own = both_studies(count, way, Path(folder))
            found += own
            for one in own:
                start = (one.way, str(one.number), one.site, str(one.patients))
                if one.refused:
                    sentences[count, one.way, one.number] = one.refused
                    table.add_row(*start, "refused")
                    continue
                sums = (f"{own[0]:,} / {own[1]:,}" if own else "" for own in (one.whole, one.fold))
                sizes = (f"{size:,}" for size in (one.steps, one.tallies))
                table.add_row(*start, str(one.used), str(one.parts), str(one.smallest), *sums, *sizes)
            table.add_section()
    console.print(table)
    for way in ways:
        if way != "steps":
            least = ", ".join(f"{least_count(way, one_in)} where one in {one_in} has it" for one_in in EVENTS)
            inputs = len(study(way, 1)["data"]["features"])
            console.print(f"{way}, {inputs} inputs: from so many patients on, by how many have the outcome: {least}")
    for (count, way, number), sentence in sentences.items():
        console.print(f"{count} patients, {way}, study {number}: {sentence}")
    return found
