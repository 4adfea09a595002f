"""Train one panel by one method in one fold, and measure the test AUC of every site by epoch."""

from __future__ import annotations

import tempfile
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch
from sklearn.metrics import roc_auc_score
from sklearn.model_selection import StratifiedKFold, train_test_split
from torch import Tensor

from benchmarks.paper.compared_methods import ComparedMethod
from benchmarks.paper.panels import FOLDS, Panel, run_document
from rankdad.common.data import Samples, SiteData, split_samples
from rankdad.common.data.npz import samples_of
from rankdad.common.documents import validate
from rankdad.common.lowrank.factors import Factor
from rankdad.common.protocol.codec import unpack
from rankdad.common.rounds.step import Step
from rankdad.common.spec import RunSpec
from rankdad.common.spec.data import NpzData
from rankdad.local.evaluation import outputs_of
from rankdad.remote.aggregator import Aggregator
from rankdad.simulations.datasets import ArrayDataset
from rankdad.simulations.lockstep import run
from rankdad.simulations.partition import Iid, partition
from rankdad.simulations.pooling import SITE, pooled_data, pooled_spec

EVERY = 5  # steps between two looks at an update's singular values


@dataclass(frozen=True)
class Curve:
    """The results of one training.

    Args:
        auc: a row for every epoch tested and site.
        spectra: a row for every update looked at and layer: its singular values over the largest.
        seconds: that it took, tests and all.
    """

    auc: list[dict[str, Any]] = field(default_factory=list)
    spectra: list[dict[str, Any]] = field(default_factory=list)
    seconds: float = 0.0


def train(panel: Panel, method: ComparedMethod, fold: int, pool: ArrayDataset) -> Curve:
    """Train on all folds but one, in this process, and test on that one after every few epochs.

    All methods of a fold begin with the same weights and see the same batches.

    Args:
        panel: what is trained.
        method: how gradients travel.
        fold: from 0; also the seed.
        pool: the panel's samples.
    """
    began = time.perf_counter()
    torch.set_num_threads(1)
    spec = validate(RunSpec, run_document(panel, method, fold))
    sites = _sites(spec, in_folds(panel, pool, fold))
    tests = {name: site.samples.take(site.splits[0].test) for name, site in sites.items()}
    watch = _Watch(panel, method, tests)
    if method.document is None:
        spec, sites = pooled_spec(spec, sites), {SITE: pooled_data(sites)}
    with tempfile.TemporaryDirectory() as folder:
        run(spec, sites, Path(folder) / "run", on_round=watch)
    return Curve(watch.auc, watch.spectra, time.perf_counter() - began)


def in_folds(panel: Panel, pool: ArrayDataset, fold: int) -> ArrayDataset:
    """Return a pool whose test samples are those of one fold of a stratified cross-validation.

    Series that are longer than the panel's are cut at its number of frames.
    """
    rows, classes = np.arange(len(pool.x)), pool.y.reshape(-1)
    if panel.samples is not None and panel.samples < len(rows):
        rows, _ = train_test_split(rows, train_size=panel.samples, stratify=classes, random_state=0)
        rows = np.sort(rows)
    splits = StratifiedKFold(FOLDS, shuffle=True, random_state=0).split(rows, classes[rows])
    marks = np.zeros(len(rows), np.int64)
    marks[list(splits)[fold][1]] = 2
    others = {name: array[rows] for name, array in pool.others.items() if name != "split"} | {"split": marks}
    inputs = pool.x[rows]
    if "length" in others:
        frames = panel.data["shape"][0]
        inputs, others["length"] = inputs[:, :frames], np.minimum(others["length"], frames)
    return ArrayDataset(pool.origin, inputs, classes[rows], others)


def _sites(spec: RunSpec, pool: ArrayDataset) -> dict[str, SiteData]:
    """Deal a pool out, and read each part as a site reads its file."""
    found = {}
    arrays = {"x": pool.x, "y": pool.y, **pool.others}
    assert isinstance(spec.data, NpzData)
    for index, (site, rows) in enumerate(partition(pool, Iid(), spec).items()):
        own = {name: array[rows] for name, array in arrays.items()}
        found[site] = split_samples(spec, samples_of(pool.origin, own, spec.data, spec.task, "float32"), index)
    return found


class _Watch:
    """Looks at the aggregator's replica, which is every site's, after every round."""

    def __init__(self, panel: Panel, method: ComparedMethod, tests: Mapping[str, Samples]) -> None:
        self._panel, self._tests = panel, tests
        self._watches = method.family == "authors"
        self._sends = method.document is not None
        self._seen = 0
        self.auc: list[dict[str, Any]] = []
        self.spectra: list[dict[str, Any]] = []

    def __call__(self, aggregator: Aggregator) -> None:
        progress = aggregator.recorder.progress
        step = progress.step
        if step == self._seen:
            return
        self._seen = step
        if self._watches and step % EVERY == 0:
            self._look(aggregator, step)
        epoch, left = divmod(step, progress.steps_per_epoch[0])
        if left or (epoch % self._panel.every and epoch < self._panel.epochs):
            return
        for site, samples in self._tests.items():
            found = outputs_of(aggregator.state.replica.model, samples.inputs, self._panel.classes)
            self.auc.append(
                {
                    "epoch": epoch,
                    "step": step,
                    "site": site,
                    "auc": macro_auc(samples.labels, found),
                    "bytes_up": self._sends * progress.up / len(progress.sites),
                    "bytes_down": self._sends * progress.down / len(progress.sites),
                }
            )

    def _look(self, aggregator: Aggregator, step: int) -> None:
        assert aggregator.barrier.stored is not None
        body = unpack(aggregator.barrier.stored, aggregator.plan, up=False).body
        assert isinstance(body, Step)
        for route, value in zip(aggregator.plan.routes, body.payload, strict=True):
            if isinstance(value, Factor) and value.rows:
                self.spectra.append({"step": step, "layer": route.name, "values": _spectrum(value)})


def _spectrum(factor: Factor) -> list[float]:
    """Return the singular values of a factor's product over the largest one."""
    left, right = (torch.linalg.qr(part.double().T)[1] for part in (factor.delta, factor.activation))
    values = torch.linalg.svdvals(left @ right.T)
    return [round(value, 6) for value in (values / values[0].clamp_min(1e-300)).tolist()]


def macro_auc(labels: Tensor, outputs: Tensor) -> float:
    """Return the mean over classes of the area under one class's curve against all others, where both are there."""
    scores, truth = outputs.double().softmax(dim=1).numpy(), labels.numpy()
    found = [
        roc_auc_score(truth == place, scores[:, place])
        for place in range(scores.shape[1])
        if 0 < np.count_nonzero(truth == place) < len(truth)
    ]
    return float(np.mean(found))
