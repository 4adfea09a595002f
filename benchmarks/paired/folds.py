"""Two exact solutions on exchangeable sets of inputs, cross-validated: how often a verdict calls one of them better.

The run's own are the folds, the rounds of preparation and of Newton's method with the checks of what sites send, the
tests' tallies, the round in which models are compared, and the verdict. Left out are messages, roster and files.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from benchmarks.paired.null import Rate, Tested, calls, compared, rates
from rankdad.common.data import Samples, SiteData, split_samples
from rankdad.common.data.prepared import Prepared
from rankdad.common.data.reading import Reading
from rankdad.common.documents import validate
from rankdad.common.preparation import Preparing, in_memory
from rankdad.common.spec import RunSpec
from rankdad.common.spec.tasks import Regression
from rankdad.local.evaluation import guesses, tally_of, tested_rows
from rankdad.remote.results.run_results import RunResults

FOLDS = 5
SITES = ("north", "south", "east", "west")
FEWEST, MOST = 50, 150  # rows of a site
SPREAD = 1.08  # variance of the part of the score that follows from each model's inputs


def spec_of(task: dict[str, Any], inputs: int) -> RunSpec:
    """Return a run of an exactly solved model of so many inputs, cross-validated."""
    return validate(
        RunSpec,
        {
            "name": "exchangeable",
            "task": task,
            "data": {"shape": [inputs]},
            "preparation": {"standardise": "federated"},
            "evaluation": {"name": "k-fold", "folds": FOLDS, "refit": False, "references": ["local"]},
            "training": {"solver": "exact", "dtype": "float64"},
            "federation": {"sites": list(SITES)},
        },
    )


def fold_rates(spec: RunSpec, count: int, file: Path) -> list[Rate]:
    """Return how often verdicts of runs find a difference where there is none.

    Args:
        spec: of the runs.
        count: how many.
        file: a line for each run that is done; those that it has already are not done again.
    """
    done = file.read_text(encoding="utf-8").split("\n")[:-1][:count] if file.exists() else []
    file.write_text("".join(f"{line}\n" for line in done), encoding="utf-8")
    for run in fold_runs(spec, range(len(done), count)):
        done.append(json.dumps(calls(run)))
        with file.open("a", encoding="utf-8") as lines:
            lines.write(f"{done[-1]}\n")
    return rates(map(json.loads, done))


def fold_runs(spec: RunSpec, seeds: range) -> Iterator[RunResults]:
    """Yield a run for each seed: of new rows, on which both models are trained and tested."""
    for seed in seeds:
        pair = drawn_pair(spec, np.random.default_rng(seed))
        totals = [_totals(spec, own) for own in pair]
        yield compared(spec, SITES, (_tests(spec, pair, totals, fold) for fold in range(FOLDS)))


def drawn_pair(spec: RunSpec, rng: np.random.Generator) -> list[dict[str, SiteData]]:
    """Return the data of every site as each of the two models sees them."""
    found: list[dict[str, SiteData]] = [{}, {}]
    for place, site in enumerate(SITES):
        count = int(rng.integers(FEWEST, MOST + 1))
        inputs = rng.normal(size=(count, 2 * spec.data.shape[0]))
        score = (SPREAD / spec.data.shape[0]) ** 0.5 * inputs.sum(axis=1)
        if isinstance(spec.task, Regression):
            labels = score + rng.normal(size=count)
        else:
            labels = (rng.random(count) < 1 / (1 + np.exp(0.5 - score))).astype(np.int64)
        for own, seen in zip(found, np.split(inputs, 2, axis=1), strict=True):
            own[site] = split_samples(spec, Reading("drawn", seen, labels), place)
    return found


def _totals(spec: RunSpec, data: dict[str, SiteData]) -> list[dict[str, Tensor]]:
    """Return the sums of all sites' contributions before the test of every fold."""
    preparing, totals = Preparing(spec), dict[str, Tensor]()

    def of_fold(fold: int) -> dict[str, Tensor]:
        return {name: total[fold] for name, total in totals.items()}

    for stage in preparing.stages:
        if stage not in totals:
            sent = [preparing.contributions(stage, of_fold, own.summed, own.whole()) for own in data.values()]
            totals[stage] = preparing.joined(stage, sent)
            for name in preparing.solving.converged(of_fold(FOLDS - 1)):
                totals[name] = torch.zeros(FOLDS, preparing.size(name), dtype=torch.float64)
    return [of_fold(fold) for fold in range(FOLDS)]


def _tests(
    spec: RunSpec, pair: list[dict[str, SiteData]], totals: list[list[dict[str, Tensor]]], fold: int
) -> dict[str, Tested]:
    """Return every site's tallies of a fold's test by the first model, a guess, and the second model."""
    found = dict[str, Tested]()
    for site in SITES:
        made = [_model(spec, own[site], known, fold) for own, known in zip(pair, totals, strict=True)]
        (prepared, ours), (_, theirs) = made
        outputs = ours, guesses(spec.task, prepared), theirs
        rows = [(tested_rows(spec.task, prepared, one), tally_of(spec.task, prepared, one)) for one in outputs]
        found[site] = prepared.test.labels, rows
    return found


def _model(spec: RunSpec, data: SiteData, totals: list[dict[str, Tensor]], fold: int) -> tuple[Prepared, Tensor]:
    """Return a fold's samples at a site, and the solution's outputs for its test samples."""
    preparing = Preparing(spec)
    fit, split = preparing.fit(totals[fold]), data.splits[fold]
    transform = preparing.transform(fit, preparing.own(fit, data.rows(fold)))
    inputs = in_memory(transform.prepared(data.samples.inputs, None, torch.float64))
    whole = Samples(inputs, transform.as_learned(data.samples.labels))
    train, validation, test = (whole.take(rows) for rows in (split.train, split.validation, split.test))
    weights, bias = preparing.solving.solution(totals[fold])
    prepared = Prepared(train, validation, test, transform, preparing.fit(totals[0]), None, "", "", None, None, False)
    return prepared, inputs[split.test] @ weights.T + bias
