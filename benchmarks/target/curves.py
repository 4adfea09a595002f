"""Train by one method in lockstep, and test the weights that all replicas share between exchanges."""

from __future__ import annotations

import contextlib
import csv
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import accumulate
from operator import add
from pathlib import Path
from time import perf_counter, process_time

import numpy as np
import torch
from torch import Tensor

from benchmarks.paper.learning_curves import macro_auc
from rankdad.common.data import SiteData
from rankdad.common.errors import RankdadError, SpecError
from rankdad.common.files import write_json
from rankdad.common.spec import RunSpec
from rankdad.common.spec.tasks import LOWER_IS_BETTER, Classification, MultiLabel, TaskSpec
from rankdad.local.evaluation import outputs_of
from rankdad.remote.aggregator import Aggregator
from rankdad.simulate_command import command, summary_of
from rankdad.simulations.lockstep import run
from rankdad.simulations.pooling import first_fit, first_rows
from rankdad.simulations.spec import SimulationFile

LINK = 12.5e6  # bytes a second of a site's own link: 100 Mbit/s
Target = tuple[str, float]  # a test metric, and how good it has to be


@dataclass(frozen=True)
class Point:
    """Where a training stands after a step.

    Args:
        step: steps of the shared weights so far.
        exchanges: so far, one or more a step.
        epoch: passes over the data.
        bytes_up: that a site has sent, the mean over sites.
        bytes_down: that a site has received.
        seconds: of the training without its tests; in lockstep of all sites one after another, and of the processor
            where it has one thread, so that what else the machine does is not counted.
        parallel: the same, as if all sites worked at the same time, each as fast as here; the largest is waited for.
        values: test metrics by name, of all sites' test samples together.
    """

    step: int
    exchanges: int
    epoch: float
    bytes_up: float
    bytes_down: float
    seconds: float
    parallel: float
    values: Mapping[str, float]

    @property
    def bytes(self) -> float:
        """Both ways."""
        return self.bytes_up + self.bytes_down

    @property
    def seconds_on_link(self) -> float:
        """Seconds over links of 100 Mbit/s, computed: the sites' work side by side, then the bytes; no latency."""
        return self.parallel + self.bytes / LINK


Curve = Sequence[Point]


def reaches(values: Mapping[str, float], metric: str, value: float) -> bool:
    """Tell whether a test is at least as good as a target."""
    return values[metric] <= value if metric in LOWER_IS_BETTER else values[metric] >= value


def first_reaching(curve: Curve, target: Target) -> Point | None:
    """Return the first test that reaches a target; None if none does."""
    return next((point for point in curve if reaches(point.values, *target)), None)


def best(curve: Curve, metric: str) -> float:
    """Return the best test of a curve."""
    return (min if metric in LOWER_IS_BETTER else max)(point.values[metric] for point in curve)


def least_lead(curve: Curve, rival: Curve, metric: str) -> tuple[float, float]:
    """Return by how much a curve is better than another at equal bytes, where it is least, and at how many bytes.

    What counts is the best test within so many bytes, from the other's first test on; negative is behind.
    """

    def lead(budget: float) -> float:
        own, other = (best([p for p in one if p.bytes <= budget] or one[:1], metric) for one in (curve, rival))
        return other - own if metric in LOWER_IS_BETTER else own - other

    budgets = {point.bytes for point in (*curve, *rival) if point.bytes >= rival[0].bytes}
    return min((lead(budget), budget) for budget in budgets)


def train(spec: RunSpec, data: Mapping[str, SiteData], every: float, enough: Sequence[Target] = ()) -> list[Point]:
    """Train in this process.

    Args:
        spec: of the run.
        data: of the sites.
        every: part of an epoch after which the model is tested; after every exchange, where these are rarer.
        enough: targets that end the training once all are reached; without any it goes on to its end.

    Raises:
        SpecError: the task is multi-label.
    """
    if isinstance(spec.task, MultiLabel):
        raise SpecError(
            "run.task.name", "got multi-label, expected classification or regression", code="task-unexpected"
        )
    torch.set_num_threads(spec.training.threads)
    watch = _Watch(spec, data, every, enough)
    with tempfile.TemporaryDirectory() as folder:
        with contextlib.suppress(_EnoughError):
            run(spec, data, Path(folder) / "run", on_round=watch)
        aggregation = _until_step(Path(folder) / "run", "aggregation_seconds")
    sizes = [len(site.splits[0].train) for site in data.values()]
    largest, found = max(sizes) / sum(sizes), []
    for point, elapsed in zip(watch.points, watch.elapsed, strict=True):
        aggregated = aggregation[point.step] / elapsed  # part of the time
        found.append(replace(point, parallel=point.seconds * (aggregated + largest * (1 - aggregated))))
    return found


def timed_as_processes(file: SimulationFile, curve: Curve) -> list[Point]:
    """Train the same with a process for each site, and return the curve with the seconds that this has taken.

    The weights are those of lockstep to the last bit, and so the tests are the same.

    Raises:
        RankdadError: the run failed, or sent other bytes than in lockstep.
    """
    with tempfile.TemporaryDirectory() as folder:
        path, output = Path(folder) / "simulation.json", Path(folder) / "run"
        write_json(path, file.model_dump(mode="json"))
        summary_of(command(path, output))
        sent, seconds = _until_step(output, "bytes_up"), _until_step(output, "seconds")
    for point in curve:
        if round(sent[point.step] / len(file.run.federation.sites)) != round(point.bytes_up):
            raise RankdadError(
                f"by step {point.step} processes have sent other bytes than sites in lockstep", code="bytes-differ"
            )
    return [replace(point, seconds=seconds[point.step], parallel=seconds[point.step]) for point in curve]


@dataclass(frozen=True, eq=False)
class HeldOut:
    """All sites' test samples, prepared as the sites would together.

    Args:
        task: of the run.
        inputs: [n, …].
        labels: [n], as the network learns them.
        unit: of such a label that is a number, in the label's own.
    """

    task: TaskSpec
    inputs: Tensor
    labels: Tensor
    unit: float

    @classmethod
    def of(cls, spec: RunSpec, data: Mapping[str, SiteData]) -> HeldOut:
        """Return those of a run's sites."""
        tests = first_rows(spec, data, "test").values()
        inputs, labels = (torch.cat([getattr(own, part) for own in tests]) for part in ("inputs", "labels"))
        return cls(spec.task, inputs, labels, first_fit(spec, data).target_scale)

    def metrics(self, outputs: Tensor) -> dict[str, float]:
        """Return how good a network's outputs [n, width] are: AUC; of numbers mean absolute error and correlation."""
        if isinstance(self.task, Classification):
            return {"auc": macro_auc(self.labels, outputs)}
        found, known = outputs.double().flatten().numpy(), self.labels.double().flatten().numpy()
        correlation = float(np.corrcoef(found, known)[0, 1]) if found.std() > 0 else 0.0
        return {"mae": self.unit * float(np.abs(found - known).mean()), "pearson_r": correlation}


class _EnoughError(Exception):
    """The model is good enough; the rest of the training is left out."""


class _Watch:
    """Tests the aggregator's replica, which is every site's, and counts bytes and seconds up to each test."""

    def __init__(self, spec: RunSpec, data: Mapping[str, SiteData], every: float, enough: Sequence[Target]) -> None:
        self._every, self._enough = every, enough
        self._test, self._outputs = HeldOut.of(spec, data), spec.task.outputs
        self._clocks = perf_counter, process_time if spec.training.threads == 1 else perf_counter
        self._step, self._due, self._resumed = 0, every, self._now()
        self._times: tuple[float, ...] = (0.0, 0.0)  # elapsed, and of the processor
        self.points: list[Point] = []
        self.elapsed: list[float] = []

    def __call__(self, aggregator: Aggregator) -> None:
        """Test if it is time to."""
        progress, plan = aggregator.recorder.progress, aggregator.plan
        passed = (now - then for now, then in zip(self._now(), self._resumed, strict=True))
        self._times = tuple(map(add, self._times, passed))
        if progress.step > self._step:
            self._step = progress.step
            epoch = self._step / progress.steps_per_epoch[0]
            if epoch >= self._due - 1e-9 or self._step == progress.steps:
                self._due = (int(epoch / self._every + 1e-9) + 1) * self._every
                up, down = (total / len(plan.sites) for total in (progress.up, progress.down))
                outputs = outputs_of(aggregator.state.replica.model, self._test.inputs, self._outputs)
                exchanges, values = self._step * len(plan.exchanges), self._test.metrics(outputs)
                self.elapsed.append(self._times[0])
                self.points.append(Point(self._step, exchanges, epoch, up, down, self._times[1], 0.0, values))
                if self._enough and all(first_reaching(self.points, target) for target in self._enough):
                    raise _EnoughError
        self._resumed = self._now()

    def _now(self) -> tuple[float, ...]:
        return tuple(clock() for clock in self._clocks)


def _until_step(directory: Path, column: str) -> list[float]:
    """Return what a column of `steps.csv` adds up to by each step, from 0."""
    with (directory / "steps.csv").open(newline="", encoding="utf-8") as file:
        return list(accumulate((float(row[column]) for row in csv.DictReader(file)), initial=0.0))
