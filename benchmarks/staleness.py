"""`python -m benchmarks staleness`: a site that is always a round late, waited for, left out, or joining."""

from __future__ import annotations

import json
import tempfile
from collections.abc import Generator, Iterator, Mapping
from pathlib import Path
from statistics import fmean
from typing import Any

import torch

from rankdad.common.data import SiteData
from rankdad.common.documents import validate
from rankdad.common.policy import EVERYTHING
from rankdad.common.protocol.codec import pack, unpack
from rankdad.common.protocol.messages import Ask, Kind, Message
from rankdad.common.run.replica import Replica
from rankdad.common.run.state import RunState
from rankdad.common.spec import RunSpec
from rankdad.local.training import Result, TrainingState, train
from rankdad.remote.aggregator import Aggregator
from rankdad.remote.persistence import LedgerOptions
from rankdad.remote.records import Retention
from rankdad.simulations.site_folders import partitioned_data
from rankdad.simulations.spec import SimulationFile

COLUMNS = (
    "the late site",
    "seed",
    "steps",
    "left out",
    "joined later",
    "train loss",
    "test loss",
    "test AUC",
    "accuracy",
)
Training = Generator[Message | Ask, Message | None, Result]


def bench_staleness(file: SimulationFile, seeds: list[int], staleness: list[int]) -> list[dict[str, Any]]:
    """Print a table (Markdown) with a row for each way and seed, and the means; return the summaries.

    Args:
        file: simulation; its last site is late.
        seeds: of the runs.
        staleness: of the runs that do not wait for it.
    """
    torch.set_num_threads(file.run.training.threads)
    names = ["waited for", *(f"staleness {most}" for most in staleness)]
    print("| " + " | ".join(COLUMNS) + " |\n|" + "---|" * len(COLUMNS))
    summaries: dict[str, list[dict[str, Any]]] = {name: [] for name in names}
    for seed in seeds:
        for name, most in zip(names, [None, *staleness], strict=True):
            summary = _trained(file, seed, most)
            summaries[name].append(summary)
            _print(name, seed, [summary])
    for name in names if len(seeds) > 1 else ():
        _print(name, "mean", summaries[name])
    return [summary for name in names for summary in summaries[name]]


def _print(name: str, seed: object, summaries: list[dict[str, Any]]) -> None:
    late = [(sum(one["left_out"].values()), sum(one["late"].values())) for one in summaries]
    tests = [one["metrics"]["test"] for one in summaries]
    counts = (
        f"{fmean(one['steps'] for one in summaries):g}",
        *(f"{fmean(column):g}" for column in zip(*late, strict=True)),
    )
    losses = (fmean(one["train_loss"] for one in summaries), *(fmean(t[key] for t in tests) for key in ("loss", "auc")))
    accuracy = fmean(test["accuracy"] for test in tests)
    print("| " + " | ".join(map(str, (name, seed, *counts, *(f"{x:.5f}" for x in losses), f"{accuracy:.4f}"))) + " |")


def _trained(file: SimulationFile, seed: int, staleness: int | None) -> dict[str, Any]:
    """Train in this process; return the run's summary."""
    document = file.run.model_dump(mode="json") | {"seed": seed}
    sites = len(file.run.federation.sites)
    waits = {"quorum": "all" if staleness is None else sites - 1, "grace": 1.0, "staleness": staleness or 0}
    document["federation"] |= waits
    spec = validate(RunSpec, document)
    with tempfile.TemporaryDirectory() as folder:
        data = partitioned_data(file.model_copy(update={"run": spec}), Path(folder) / "sites")
        directory = Path(folder) / "run"
        _train(spec, data, directory, holds=staleness is not None)
        summary: dict[str, Any] = json.loads((directory / "summary.json").read_text())
    return summary


def _train(spec: RunSpec, data: Mapping[str, SiteData], directory: Path, *, holds: bool) -> None:
    """Let the sites send in turn, the last first; its steps are held up until their round is over."""
    now = 0.0
    options = LedgerOptions(retention=Retention.TAIL)
    aggregator = Aggregator(spec, Replica(spec), directory, lambda: now, ledger=options)
    plan = aggregator.plan
    trainings: dict[str, Training] = {}
    for site in reversed(plan.sites):
        state = TrainingState(site, RunState(spec, plan, Replica(spec)))
        trainings[site] = train(spec, plan, data[site], state, EVERYTHING)
    messages = {site: next(training) for site, training in trainings.items()}  # the question whether hello is over
    waiting: set[str] = set()

    def hear(site: str, answer: bytes | None) -> None:
        update = None if answer is None else unpack(answer, plan, up=False)
        message = messages[site] = trainings[site].send(update)
        if isinstance(message, Ask):
            hear(site, aggregator.recorded(site, message.round))

    def hand_on(answers: Mapping[str, bytes]) -> None:
        for site in [site for site in answers if site in waiting]:
            waiting.discard(site)
            try:
                hear(site, answers[site])
            except StopIteration:
                del messages[site], trainings[site]

    try:
        for site in plan.sites:
            hear(site, None)
        while messages:
            for site in _due(messages, waiting):
                message = messages[site]
                assert isinstance(message, Message)
                is_open = message.round >= aggregator.barrier.round
                if holds and site == plan.sites[-1] and message.kind is Kind.STEP and is_open:
                    continue
                waiting.add(site)
                hand_on(aggregator.take(site, pack(message, plan, up=True)))
            now += 2.0
            hand_on(aggregator.tick())
    finally:
        aggregator.close()


def _due(messages: Mapping[str, Message | Ask], waiting: set[str]) -> Iterator[str]:
    """Yield the sites that wait for nobody."""
    return (site for site in list(messages) if site in messages and site not in waiting)
