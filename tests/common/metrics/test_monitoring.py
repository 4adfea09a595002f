"""What sites send between epochs: metrics over all sites, and nothing by score."""

from __future__ import annotations

from functools import reduce
from operator import add

import pytest
import torch
from sklearn.metrics import accuracy_score, mean_absolute_error, r2_score, roc_auc_score
from torch import Tensor

from rankdad.common.metrics.auc import class_log_odds
from rankdad.common.metrics.monitoring import measured_on, monitored
from rankdad.common.metrics.sums import Tally
from rankdad.common.metrics.tally_codec import monitoring_bytes, pack_tally, tally_bytes, unpack_monitoring
from rankdad.common.spec.tasks import Classification, Metric, MultiLabel, Regression, TaskSpec
from tests.common.metrics.samples import TASKS, draw, losses

SITES = (0, 1, 40, 90, 31)
MONITORED = [(task, monitor) for task in TASKS for monitor in task.monitors]


def sent(task: TaskSpec, monitor: Metric, seed: int) -> tuple[list[Tally], Tensor, Tensor]:
    """Return what sites send of samples, and the samples."""
    outputs, labels = draw(task, sum(SITES), seed)
    sets = zip(outputs.split(SITES), labels.split(SITES), strict=True)
    found = [monitored(task, monitor, x, y, losses(task, x, y), centre=0.2) for x, y in sets]
    return [unpack_monitoring(task, pack_tally(one)) for one in found], outputs, labels


def auc_within(task: TaskSpec, outputs: Tensor, labels: Tensor) -> float:
    """Return by scikit-learn the mean over outcomes of sites' AUCs, weighted by their pairs."""
    scores = class_log_odds(outputs) if isinstance(task, Classification) else outputs
    found = []
    for at in range(task.outputs):
        positive = (labels == at if isinstance(task, Classification) else labels[:, at] > 0.5).double()
        sets = list(zip(scores[:, at].split(SITES), positive.split(SITES), strict=True))
        pairs = [float(own.sum() * (1 - own).sum()) for _, own in sets]
        areas = [roc_auc_score(own, x) if number else 0.0 for (x, own), number in zip(sets, pairs, strict=True)]
        found.append(sum(area * number for area, number in zip(areas, pairs, strict=True)) / sum(pairs))
    return sum(found) / len(found)


@pytest.mark.parametrize(("task", "monitor"), MONITORED)
def test_metrics_over_sites_are_scikit_learns(task: TaskSpec, monitor: Metric) -> None:
    """Beside the loss there is the one that is monitored, and no other."""
    tallies, outputs, labels = sent(task, monitor, 3)
    found = measured_on("validation", task, monitor, reduce(add, tallies))
    assert found.samples == sum(SITES)
    assert tuple(found.values) == task.monitors
    assert {name for name, value in found.values.items() if value is not None} == {"loss", monitor}
    assert found.values["loss"] == pytest.approx(float(losses(task, outputs, labels).mean()), rel=1e-12)
    if isinstance(task, Regression):
        known = {"mae": mean_absolute_error(labels, outputs[:, 0]), "r2": r2_score(labels, outputs[:, 0])}
        known["pearson_r"] = float(torch.corrcoef(torch.stack([labels.double(), outputs[:, 0].double()]))[0, 1])
    else:
        hits = outputs.argmax(1) if isinstance(task, Classification) else (outputs > 0).double()
        known = {"accuracy": accuracy_score(labels.flatten(), hits.flatten())}
        known["auc_within"] = auc_within(task, outputs, labels)
    assert monitor == "loss" or found.values[monitor] == pytest.approx(known[monitor], rel=1e-12)


@pytest.mark.parametrize("task", TASKS)
def test_no_number_is_of_a_score(task: TaskSpec) -> None:
    """The smallest sets of a site are all samples, and the pairs of an outcome that enough people have."""
    assert monitoring_bytes(task) <= 8 * (2 + 2 * max(task.outputs, 4)) < tally_bytes(task) / 50


def test_ties_count_half() -> None:
    task, labels = Classification(classes=2), torch.tensor([0, 1, 0, 1])
    one = monitored(task, "auc_within", torch.zeros(4, 2), labels, torch.ones(4))
    values = measured_on("validation", task, "auc_within", one).values
    assert values == {"loss": 1.0, "accuracy": None, "auc_within": 0.5}


@pytest.mark.parametrize("task", [Classification(classes=2), MultiLabel(name="multi-label", labels=1)])
def test_pairs_are_of_enough_people_on_either_side(task: TaskSpec) -> None:
    """Of one sample with the outcome, pairs would tell its place among the others, epoch after epoch."""
    labels = torch.tensor([0] * 20 + [1] * 7)
    true = labels if isinstance(task, Classification) else labels.unsqueeze(1).float()
    outputs = torch.randn(27, task.outputs, generator=torch.Generator().manual_seed(0))

    def area(rows: slice, fewest: int, people: Tensor | None = None) -> float | None:
        loss = losses(task, outputs.double(), true)[rows]
        one = monitored(task, "auc_within", outputs[rows], true[rows], loss, fewest=fewest, people=people)
        return measured_on("validation", task, "auc_within", one).values["auc_within"]

    whole = area(slice(None), 7)
    assert whole is not None
    assert area(slice(None), 8) is None
    assert area(slice(None), 7, torch.arange(27)) == whole
    assert area(slice(None), 7, torch.arange(27).clamp_max(25)) is None, "seven rows of six people"
    assert area(slice(14, None), 7) is None, "six without the outcome"


@pytest.mark.parametrize("task", TASKS)
def test_sums_that_no_samples_have_are_refused(task: TaskSpec) -> None:
    one = reduce(add, sent(task, "mae" if isinstance(task, Regression) else "auc_within", 5)[0])
    lies = {name: Tally(one.counts.clone(), one.sums.clone()) for name in ("loss", "samples", "last")}
    lies["loss"].sums[0] = -1
    lies["samples"].counts[0] = 0
    lies["last"].sums[-1] = 1e9 if not isinstance(task, Regression) else -1
    for lie in lies.values():
        with pytest.raises(ValueError, match=r"."):
            unpack_monitoring(task, pack_tally(lie))
    with pytest.raises(ValueError, match="bytes"):
        unpack_monitoring(task, pack_tally(one)[:-1])
    if isinstance(task, Regression):
        return
    for counts, sums in ([-1, task.outputs * 10**6], None), (None, [-1, 0.5]):
        lie = Tally(one.counts.clone(), one.sums.clone())
        if counts:
            lie.counts[counts[0]] = counts[1]
        if sums:
            lie.sums[int(sums[0])] = sums[1]  # fewer pairs than are in order
        with pytest.raises(ValueError, match=r"."):
            unpack_monitoring(task, pack_tally(lie))
