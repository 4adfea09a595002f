"""All sites and the aggregator in one process, one after the other: for tests, and where processes are not wanted.

The same trainers, the same aggregator and the same bytes as between processes, and so the same weights to the last bit.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Collection, Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import torch
from rich.console import Console
from torch import Tensor

from rankdad.common.documents import load_json
from rankdad.common.errors import RankdadError, RunFailedError
from rankdad.common.policy import EVERYTHING, Policy
from rankdad.common.protocol.codec import pack, unpack
from rankdad.common.protocol.messages import Ask
from rankdad.common.run.artifacts import save_model
from rankdad.common.run.replica import Replica
from rankdad.common.run.state import RunState
from rankdad.common.spec import RunSpec
from rankdad.local.admission import admitted
from rankdad.local.alone import own_splits
from rankdad.local.data import SiteData
from rankdad.local.prediction import write_predictions
from rankdad.local.trained_rows import write_trained_rows
from rankdad.local.training import Result, TrainingState, train
from rankdad.remote.aggregator import Aggregator
from rankdad.remote.run_directory import new_directory
from rankdad.remote.view import PlainView, Waiting
from rankdad.simulations.dealing import dealt_data
from rankdad.simulations.pooling import SITE, pooled_data, pooled_spec
from rankdad.simulations.spec import SimulationFile


def run(
    spec: RunSpec,
    data: Mapping[str, SiteData],
    directory: Path,
    *,
    allowed_factories: Collection[str] = (),
    device: str = "cpu",
    weights: Path | None = None,
    policies: Mapping[str, Policy] | None = None,
    on_round: Callable[[Aggregator], None] = lambda aggregator: None,
    tested: Callable[[str, int, Tensor], None] = lambda site, fold, outputs: None,
) -> dict[str, Result]:
    """Train all sites of a run in this process.

    Args:
        spec: the run.
        data: samples of every site, by name.
        directory: of the run.
        allowed_factories: model factories that the caller permits.
        device: where the sites train.
        weights: folder of the pretrained weights that the spec names.
        policies: of the sites, by name; without them everything is allowed.
        on_round: called after every round.
        tested: given every site's outputs for the test samples of every fold.

    Returns:
        Every site's result, by name.

    Raises:
        PolicyError: a site's policy does not allow the run.
        RunFailedError: a site could not go on, and the run not without it.
    """
    aggregator = Aggregator(spec, Replica(spec, allowed_factories, weights=weights), directory, time.perf_counter)
    plan = aggregator.plan
    trainings = {}
    for site in plan.sites:
        policy = EVERYTHING if policies is None else policies[site]
        policy.check(spec, plan)
        admitted_data = admitted(policy, spec, plan, data[site])
        run_state = RunState(spec, plan, Replica(spec, allowed_factories, device, weights))
        trainings[site] = train(
            spec, plan, admitted_data, TrainingState(site, run_state), policy, tested=partial(tested, site)
        )
    results: dict[str, Result] = {}
    answers: dict[str, bytes] = {}
    failures: list[RunFailedError] = []
    try:
        while trainings:
            heard: dict[str, bytes] = {}
            for site, training in list(trainings.items()):
                try:
                    update = unpack(answers[site], plan, up=False, device=device) if answers else None
                    message = next(training) if update is None else training.send(update)
                    while isinstance(message, Ask):
                        known = aggregator.recorded(site, message.round)
                        message = training.send(None if known is None else unpack(known, plan, up=False, device=device))
                    body = pack(message, plan, up=True)
                except StopIteration as stop:
                    results[site] = stop.value
                    del trainings[site]
                    continue
                except RunFailedError as error:  # another site's
                    failures.append(error)
                    del trainings[site]
                    continue
                except RankdadError as error:  # its own
                    failures.append(RunFailedError(site, str(error)))
                    heard |= aggregator.depart(site, str(error))
                    del trainings[site]
                    continue
                heard |= aggregator.take(site, body)
            answers = heard
            on_round(aggregator)
    finally:
        aggregator.close()
    if aggregator.barrier.failed:
        raise failures[0]
    return results


def simulate(
    file: SimulationFile,
    directory: Path,
    allow_factories: tuple[str, ...] = (),
    *,
    json_output: bool = False,
    pooled: bool = False,
    quiet: bool = False,
) -> dict[str, Any]:
    """Run a simulation in this process, and return its summary; or train one site that has all sites' data.

    Args:
        file: run and simulation.
        directory: of the run.
        allow_factories: model factories that the caller permits.
        json_output: whether standard output is kept free for the summary.
        pooled: whether one site has everything.
        quiet: whether nothing is said of epochs.
    """
    torch.set_num_threads(file.run.training.threads)
    new_directory(directory)
    spec, data = file.run, dealt_data(file, directory / "sites", allow_factories)
    policies: dict[str, Policy] | None = dict.fromkeys(data, file.simulation.policy)
    if pooled:
        together, everything = pooled_spec(spec, data), pooled_data(data)
        everything = replace(everything, splits=own_splits(spec, together, everything.splits))
        spec, data, policies = together, {SITE: everything}, None
    view: PlainView | None = None

    def tick(aggregator: Aggregator) -> None:
        nonlocal view
        if view is None:
            for warning in aggregator.plan.warnings:
                print(f"warning: {warning}", file=sys.stderr)
            view = PlainView(aggregator.recorder.progress, Waiting, Console(stderr=json_output, quiet=quiet))
            view.start()
        view.tick()

    def tested(site: str, fold: int, outputs: Tensor) -> None:
        write_predictions(directory / "sites" / site / "predictions", spec, data[site], fold, outputs)

    weights = None if file.simulation.weights is None else Path(file.simulation.weights)
    results = run(
        spec,
        data,
        directory,
        allowed_factories=allow_factories,
        device=file.simulation.device,
        weights=weights,
        policies=policies,
        on_round=tick,
        tested=tested,
    )
    for site, result in results.items():
        save_model(directory / "sites" / site / "model", spec, result.best, result.final, result.fit, result.own)
        write_trained_rows(directory / "sites" / site, data[site])
    summary: dict[str, Any] = load_json(directory / "summary.json")
    return summary
