"""What sites send between epochs: sums over all of a site's validation samples, and nothing by score.

The same samples are asked in every epoch, and each number tells more of them: so there is the loss, and what else the
monitored metric is made of. Histograms of scores would tell each sample's, epoch after epoch. A site ranks its own
samples instead, and sends how many pairs of a sample with an outcome and one without it the network has in order: their
share is the AUC within sites.
"""

from __future__ import annotations

import torch
from torch import Tensor

from rankdad.common.metrics.auc import class_log_odds, exact_pairs
from rankdad.common.metrics.summary import Metrics, mean_auc, numbers, summarise
from rankdad.common.metrics.sums import MOMENTS, Tally, deviations_of, of_one_test, shape
from rankdad.common.spec.tasks import Classification, Metric, Regression, TaskSpec


def monitoring_shape(task: TaskSpec) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Return sizes of counts (samples, hits), and of sums (loss, moments, ordered pairs and all pairs by outcome)."""
    ranked = shape(task).ranked
    return (1, int(ranked > 0)), (1, MOMENTS * (ranked == 0), ranked, ranked)


def monitored(
    task: TaskSpec,
    monitor: Metric,
    outputs: Tensor,
    labels: Tensor,
    losses: Tensor,
    *,
    centre: float = 0.0,
    people: Tensor | None = None,
    fewest: int = 1,
) -> Tally:
    """Sum up all validation samples of a site; outputs that are not finite make sums that are not.

    Args:
        task: what the outputs mean.
        monitor: the metric that is looked at.
        outputs: [n, task.outputs]: logits, or the number itself.
        labels: int64 [n] of classes, 0 or 1 [n, labels] of labels, or numbers [n].
        losses: [n], a sample's loss each.
        centre: a number near the labels' mean, the same at all sites.
        people: int64 [n], whose each sample is; None where each is of another person.
        fewest: people with an outcome, and without it, that its pairs are of.
    """
    outputs, labels, losses = outputs.detach().cpu().double(), labels.detach().cpu(), losses.detach().cpu().double()
    loss, samples = losses.sum().reshape(1), torch.tensor([len(labels)])
    if isinstance(task, Regression):
        moments = deviations_of(outputs.reshape(-1) - centre, labels.double().reshape(-1) - centre).sum(dim=1)
        return Tally(samples, torch.cat([loss, moments * (monitor != "loss")]))
    if isinstance(task, Classification):
        scores, positive = class_log_odds(outputs), labels.unsqueeze(1) == torch.arange(task.classes)
        hits = outputs.argmax(dim=1) == labels
    else:
        scores, positive = outputs, labels > 0.5
        hits = (outputs > 0) == positive
    pairs = torch.zeros(2, shape(task).ranked, dtype=torch.float64)
    for at in range(pairs.shape[1] * (monitor == "auc_within")):
        own = positive[:, at - pairs.shape[1]]
        if min(_people(own, people), _people(~own, people)) >= fewest:
            pairs[:, at] = torch.tensor(exact_pairs(scores[:, at - pairs.shape[1]], own), dtype=torch.float64)
    right = hits.sum().reshape(1) * (monitor == "accuracy")
    return Tally(torch.cat([samples, right]), torch.cat([loss, pairs.flatten()]))


def monitoring(task: TaskSpec, monitor: Metric, total: Tally) -> Metrics:
    """Turn sums into the loss and the monitored metric, each None where there is nothing to measure, as all others.

    The AUC within sites is that of one class against the rest, the mean over classes or labels of which a site has
    enough people with and without.
    """
    counts, sums = monitoring_shape(task)
    _, hits = total.counts.split(counts)
    loss, moments, ordered, pairs = total.sums.split(sums)
    values: dict[Metric, float | None] = dict.fromkeys(task.monitors)
    absent = 0
    if isinstance(task, Regression):
        found = numbers(total.samples, float(loss), moments.tolist())
    else:
        area, _, absent = mean_auc(ordered / pairs.clamp_min(1), torch.zeros_like(ordered), pairs)
        each = shape(task).groups * total.samples
        found = {"loss": float(loss) / total.samples, "accuracy": int(hits) / each} if total.samples else {}
        found["auc_within"] = area
    values |= {name: value for name, value in found.items() if name in ("loss", monitor)}
    return Metrics(total.samples, values, absent=absent if monitor == "auc_within" else 0)


def measured_on(split: str, task: TaskSpec, monitor: Metric, total: Tally) -> Metrics:
    """Turn what sites send of a split of one training into metrics."""
    return monitoring(task, monitor, total) if split == "validation" else summarise(task, of_one_test(task, total))


def check_monitoring(task: TaskSpec, total: Tally) -> None:
    """Check that some samples can have sums.

    Raises:
        ValueError: they contradict one another.
    """
    if isinstance(task, Regression):
        return
    counts, sums = monitoring_shape(task)
    _, hits = total.counts.split(counts)
    *_, ordered, pairs = total.sums.split(sums)
    if int(hits) > shape(task).groups * total.samples:
        raise ValueError(f"more hits than the {total.samples} samples have")
    if bool((pairs > total.samples**2 / 4).any()):
        raise ValueError(f"{total.samples} samples have fewer pairs")
    if bool(((ordered < 0) | (ordered > pairs)).any()):
        raise ValueError("more pairs are in order than there are")


def _people(rows: Tensor, people: Tensor | None) -> int:
    return int(rows.sum()) if people is None else len(people[rows].unique())
