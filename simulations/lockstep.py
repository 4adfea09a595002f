"""All sites and aggregators in one process, in turn.

Trainers, aggregator and messages are the same as between processes, and so are the weights, bit for bit.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager, nullcontext
from dataclasses import replace
from functools import partial
from itertools import cycle
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from rankdad.common.data import SiteData
from rankdad.common.data.files import Fact
from rankdad.common.devices import CPU
from rankdad.common.documents import load_json
from rankdad.common.errors import RankdadError, RunFailedError
from rankdad.common.models import build_network
from rankdad.common.policy import EVERYTHING, Policy
from rankdad.common.protocol.plan import Plan, make_plan
from rankdad.common.run.artifacts import save_model
from rankdad.common.run.replica import Replica
from rankdad.common.run.state import RunState
from rankdad.common.spec import RunSpec
from rankdad.common.spec.tree import TOP
from rankdad.common.terminal import console_here
from rankdad.local.alone import own_splits
from rankdad.local.observer import Observer
from rankdad.local.prediction import write_predictions
from rankdad.local.site import Site, site_of
from rankdad.local.trained_rows import write_trained_rows
from rankdad.local.training import Result, TrainingState
from rankdad.remote.aggregator import Aggregator
from rankdad.remote.run_directory import own_directory
from rankdad.remote.view import View, Waiting, view_of
from rankdad.simulations.checking import admitted_together, check_policy
from rankdad.simulations.pooling import SITE, pooled_data, pooled_spec
from rankdad.simulations.site_folders import identifier_warnings, partitioned_data
from rankdad.simulations.spec import SimulationFile
from rankdad.simulations.tree import Tree

SiteMessage = bytes | int | str  # a contribution, the round that a site asks for, or the reason of a failure
Exchange = Callable[[Mapping[str, bytes | None]], Iterator[tuple[str, SiteMessage]]]


class Trainers:
    """The trainers of a run's sites, or some of them, in one process.

    Args:
        spec: the run.
        plan: the run's.
        data: data by site, for sites that train here.
        allowed_factories: permitted model factories.
        devices: devices, assigned to sites in turn.
        weights: folder of the pretrained weights that the spec names.
        policies: of the sites, by name; without them everything is allowed.
        tested: given every site's outputs for the test samples of every fold.
        noted: given what each site has to say of the data that it admits.

    Attributes:
        results: results of sites that completed the run.
        failures: errors of the others.

    Raises:
        PolicyError: a site's policy does not allow the run.
    """

    def __init__(
        self,
        spec: RunSpec,
        plan: Plan,
        data: Mapping[str, SiteData],
        *,
        allowed_factories: Collection[str] = (),
        devices: Sequence[str] = (CPU,),
        weights: Path | None = None,
        policies: Mapping[str, Policy] | None = None,
        tested: Callable[[str, int, Tensor], None] = lambda site, fold, outputs: None,
        noted: Callable[[str, Sequence[str]], None] = lambda site, notes: None,
    ) -> None:
        self.results: dict[str, Result] = {}
        self.failures: list[RunFailedError] = []
        self._sites = dict[str, Site[Result]]()
        here = dict(zip(data, cycle(devices), strict=False))
        everyone = dict.fromkeys(data, EVERYTHING) if policies is None else policies
        everyone = {site: everyone[site] for site in data}
        for site, admitted_data in admitted_together(everyone, spec, plan, data).items():
            noted(site, admitted_data.notes)
            run_state = RunState(spec, plan, Replica(spec, allowed_factories, here[site], weights))
            state, observer = TrainingState(site, run_state), Observer(tested=partial(tested, site))
            self._sites[site] = site_of(spec, plan, admitted_data, state, everyone[site], observer)

    def advance(self, answers: Mapping[str, bytes | None]) -> Iterator[tuple[str, SiteMessage]]:
        """Pass answers to sites and yield each site's next message; None means that there is no answer."""
        for name in [name for name in self._sites if name in answers]:
            site = self._sites[name]
            message: SiteMessage | None = None
            try:
                message = site.advance(answers[name])
            except RunFailedError as error:  # caused by another site
                self.failures.append(error)
            except RankdadError as error:  # caused by this site
                self.failures.append(RunFailedError(name, str(error), code=error.code, field=error.field))
                message = str(error)
            else:
                if message is None:
                    self.results[name] = site.result
            if not isinstance(message, bytes | int):
                del self._sites[name]
            if message is not None:
                yield name, message


def carry(tree: Tree, exchange: Exchange, on_round: Callable[[Aggregator], None] = lambda aggregator: None) -> None:
    """Pass messages between sites and aggregators until no site gets an answer.

    Args:
        tree: the aggregators.
        exchange: answers sites and yields their messages; see `Trainers.advance`.
        on_round: called after every round.
    """
    answers: Mapping[str, bytes | None] = dict.fromkeys(tree.top.plan.sites)
    while answers:
        heard: dict[str, bytes] = {}
        for site, first in exchange(answers):
            message: SiteMessage | None = first
            while isinstance(message, int):
                message = dict(exchange({site: tree.above(site).recorded(site, message)})).get(site)
            if message is not None:
                heard |= tree.take(site, message) if isinstance(message, bytes) else tree.depart(site, message)
        answers = heard
        on_round(tree.top)


def run(
    spec: RunSpec,
    data: Mapping[str, SiteData],
    directory: Path,
    *,
    allowed_factories: Collection[str] = (),
    devices: Sequence[str] = (CPU,),
    weights: Path | None = None,
    policies: Mapping[str, Policy] | None = None,
    on_round: Callable[[Aggregator], None] = lambda aggregator: None,
    tested: Callable[[str, int, Tensor], None] = lambda site, fold, outputs: None,
    noted: Callable[[str, Sequence[str]], None] = lambda site, notes: None,
) -> dict[str, Result]:
    """Train all sites of a run in this process: see `Trainers` for the arguments, and `carry` for `on_round`.

    Returns:
        Results by site.

    Raises:
        PolicyError: a site's policy does not allow the run.
        RunFailedError: a required site failed.
    """
    replica = partial(Replica, spec, allowed_factories, weights=weights)
    plan = make_plan(spec, replica().model)
    trainers = Trainers(  # first, so that a refused run leaves no files
        spec,
        plan,
        {site: data[site] for site in plan.sites},
        allowed_factories=allowed_factories,
        devices=devices,
        weights=weights,
        policies=policies,
        tested=tested,
        noted=noted,
    )
    with closing(Tree(spec, replica, directory)) as tree:
        carry(tree, trainers.advance, on_round)
    if tree.top.barrier.failed:
        raise trainers.failures[0]
    return trainers.results


def simulate(
    file: SimulationFile,
    directory: Path,
    allow_factories: tuple[str, ...] = (),
    *,
    json_output: bool = False,
    pooled: bool = False,
    quiet: bool = False,
    on_round: Callable[[Aggregator], None] | None = None,
) -> dict[str, Any]:
    """Run a simulation in this process, optionally pooled at one site, and return its summary.

    Args:
        file: run and simulation.
        directory: the run's.
        allow_factories: permitted model factories.
        json_output: whether standard output is reserved for the summary.
        pooled: whether one site has all data.
        quiet: whether to omit lines about epochs.
        on_round: called after every round instead of printing.
    """
    torch.set_num_threads(file.run.training.threads)
    with own_directory(directory, TOP, new=True):
        spec = file.run
        if not pooled:
            check_policy(file.simulation.policy, spec, make_plan(spec, build_network(spec, allow_factories)), ())
        data = partitioned_data(file, directory / "sites", allow_factories)
        for warning in identifier_warnings(spec, data):
            print(f"warning: {warning}", file=sys.stderr)

        def noted(site: str, notes: Sequence[str]) -> None:
            """Say what sites that are processes have in their logs."""
            for note in (note for note in notes if on_round is None and not isinstance(note, Fact)):
                print(f"{site}: {note}", file=sys.stderr)

        policies: dict[str, Policy] | None = dict.fromkeys(data, file.simulation.policy)
        if pooled:
            for site, own in data.items():
                noted(site, own.notes)
            together, everything = pooled_spec(spec, data), pooled_data(data)
            everything = replace(everything, splits=own_splits(spec, together, everything.splits))
            spec, data, policies = together, {SITE: everything}, None
        with looking_on(json_output=json_output, quiet=quiet) if on_round is None else nullcontext(on_round) as look:
            results = run(
                spec,
                data,
                directory,
                allowed_factories=allow_factories,
                devices=file.simulation.here(),
                weights=file.simulation.weights_folder,
                policies=policies,
                on_round=look,
                tested=predicting(directory, spec, data),
                noted=noted,
            )
        write_results(directory, spec, data, results)
        summary: dict[str, Any] = load_json(directory / "summary.json")
        return summary


@contextmanager
def looking_on(*, json_output: bool, quiet: bool) -> Iterator[Callable[[Aggregator], None]]:
    """Yield a function to call after every round, which shows the progress."""
    view: View | None = None

    def tick(aggregator: Aggregator) -> None:
        nonlocal view
        if view is None:
            for warning in aggregator.plan.warnings:
                print(f"warning: {warning}", file=sys.stderr)
            recorder = aggregator.recorder
            console = console_here(stderr=json_output, quiet=quiet)
            view = view_of(recorder.progress, Waiting, console, recorder.history)
            view.start()
        view.tick()

    try:
        yield tick
    finally:
        if view is not None:
            view.stop()


def predicting(directory: Path, spec: RunSpec, data: Mapping[str, SiteData]) -> Callable[[str, int, Tensor], None]:
    """Return a function that writes each site's outputs for the test samples of a fold to its folder."""

    def tested(site: str, fold: int, outputs: Tensor) -> None:
        write_predictions(directory / "sites" / site / "predictions", spec, data[site], fold, outputs)

    return tested


def write_results(directory: Path, spec: RunSpec, data: Mapping[str, SiteData], results: Mapping[str, Result]) -> None:
    """Write each site's model to its folder.

    Raises:
        UserError: the disk is full or broken.
    """
    for site, result in results.items():
        save_model(directory / "sites" / site / "model", spec, result.best, result.final, result.fit, result.own)
        write_trained_rows(directory / "sites" / site, data[site])
