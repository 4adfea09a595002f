"""How often a verdict calls one of two models better that are equally good: data sets drawn under the null."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import reduce
from operator import add
from typing import Any

import pandas as pd
import torch
from torch import Tensor
from torch.nn import functional as F

from rankdad.common.documents import validate
from rankdad.common.metrics.paired import Rows, rows
from rankdad.common.metrics.summary import summarise
from rankdad.common.metrics.sums import Tally, tally
from rankdad.common.rounds import paired, scores
from rankdad.common.spec import RunSpec
from rankdad.common.spec.tasks import Regression
from rankdad.remote.report.references import worth
from rankdad.remote.results.comparison import excludes_zero
from rankdad.remote.results.fold_metrics import FoldMetrics
from rankdad.remote.results.run_results import PlanSummary, RunResults
from rankdad.remote.results.run_summary import RunSummary

SITES, REFERENCE = ("north", "south"), "linear"
SHARED, OWN = 0.8, 0.6  # shared and separate parts of the scores' noise
Z = 1.959964
Tested = tuple[Tensor, list[tuple[Rows, Tally]]]  # labels; rows and tallies of the model, a guess and the reference


@dataclass(frozen=True)
class Rate:
    """How often the verdict found a difference.

    Args:
        metric: by which.
        found: in how many data sets.
        tried: of how many.
    """

    metric: str
    found: int
    tried: int

    @property
    def share(self) -> float:
        """The type I error."""
        return self.found / self.tried

    @property
    def error(self) -> float:
        """Half the interval of 95 % of the share."""
        return Z * math.sqrt(self.share * (1 - self.share) / self.tried)


def spec_of(task: dict[str, Any]) -> RunSpec:
    """Return a run that compares models: not with `linear`, which its own would be."""
    return validate(
        RunSpec,
        {
            "name": "null",
            "task": task,
            "data": {"shape": [4]},
            "method": {"name": "dsgd"},
            "evaluation": {"name": "holdout", "references": ["local"]},
            "federation": {"sites": list(SITES)},
        },
    )


def drawn_runs(spec: RunSpec, count: int, size: int, seed: int) -> Iterator[RunResults]:
    """Yield runs of equally good models, each with other data; nothing is trained.

    Args:
        spec: of the runs.
        count: how many runs.
        size: test samples of each, at all sites together.
        seed: of the scores.
    """
    generator = torch.Generator().manual_seed(seed)
    for _ in range(count):
        found = dict[str, Tested]()
        for site in SITES:
            labels, outputs = _scores(spec, size // len(SITES), generator)
            found[site] = labels, [_tested(spec, one, labels) for one in outputs]
        yield compared(spec, SITES, [found])


def compared(spec: RunSpec, sites: tuple[str, ...], folds: Iterable[Mapping[str, Tested]]) -> RunResults:
    """Return a run whose tests are tallied and compared like those of a real run.

    Args:
        spec: of the run.
        sites: their names.
        folds: what each fold's test comes to, by site.
    """
    study = FoldMetrics(spec.task, sites, (REFERENCE,), per_repeat=spec.folds_per_repeat, least=scores.least(spec))
    others = list[Tally]()
    for fold, known in enumerate(folds):
        tests = [tuple(one for _, one in tested) for _, tested in known.values()]
        pooled = scores.pooled_scores(spec, fold, tests)
        sent = {
            site: paired.contribution(spec, [one for one, _ in tested], labels, pooled, None)
            for site, (labels, tested) in known.items()
        }
        model, guess, other = (dict(zip(known, tallies, strict=True)) for tallies in zip(*tests, strict=True))
        study.add(model, guess, {REFERENCE: other})
        study.compare(sent, pooled)
        others += other.values()
    test, reference = study.pooled, summarise(spec.task, reduce(add, others))
    assert test is not None
    metrics: dict[str, Any] = {
        "test": {"samples": test.samples} | {str(name): value for name, value in test.values.items()},
        "references": {REFERENCE: {"samples": reference.samples, "values": reference.values}},
        "differences": study.differences(),
    }
    empty = pd.DataFrame({"site": [], "samples": []})
    return RunResults(spec, PlanSummary(), validate(RunSummary, {"metrics": metrics}), empty, empty, empty)


def _scores(spec: RunSpec, size: int, generator: torch.Generator) -> tuple[Tensor, list[Tensor]]:
    """Return labels, and scores of the model, a guess and a reference; the first and last are exchangeable."""

    def noise() -> Tensor:
        return torch.randn(size, generator=generator, dtype=torch.float64)

    shared = noise()
    if isinstance(spec.task, Regression):
        labels = noise()
        return labels, [(labels + SHARED * shared + OWN * noise()).unsqueeze(1) for _ in range(3)]
    labels = (torch.rand(size, generator=generator) < 0.35).long()
    scores = [labels * 1.4 - 0.7 + SHARED * shared + OWN * noise() for _ in range(3)]
    return labels, [torch.stack([torch.zeros(size, dtype=torch.float64), one], dim=1) for one in scores]


def _tested(spec: RunSpec, outputs: Tensor, labels: Tensor) -> tuple[Rows, Tally]:
    if isinstance(spec.task, Regression):
        losses = (outputs[:, 0] - labels).square()
    else:
        losses = F.cross_entropy(outputs, labels, reduction="none")
    return rows(spec.task, outputs, labels, losses), tally(spec.task, outputs, labels, losses)


def calls(run: RunResults) -> dict[str, bool]:
    """Return whether a run's verdict says that one model is better, and whether each interval leaves out 0.

    Where folds share training rows, also whether it did so if it were as wide as by Nadeau and Bengio.
    """
    said = next(sentence.text for sentence in worth(run) if sentence.code == "reference")
    found = run.differences_from(REFERENCE)
    made = {"verdict": ", which is better" in said or ", which is worse" in said}
    made |= {name: excludes_zero(one) for name, one in found.items()}
    if (folds := run.spec.folds_per_repeat) > 1:
        wider = math.sqrt(1 + folds / (folds - 1))
        made |= {f"{name}, corrected": abs(one.value) > wider * (one.high - one.value) for name, one in found.items()}
    return made


def rates(made: Iterable[Mapping[str, bool]]) -> list[Rate]:
    """Return how often each of the calls of many runs was made."""
    found, tried = Counter[str](), Counter[str]()
    for one in made:
        tried.update(one.keys())
        found.update(name for name, call in one.items() if call)
    return [Rate(name, found[name], count) for name, count in tried.items()]
