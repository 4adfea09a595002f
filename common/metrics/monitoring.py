"""Sums over a site's validation samples, sent between epochs.

The same samples are summed in every epoch, so each number discloses more about them. Only the loss and the sums of the
monitored metric are sent. Histograms of scores would disclose each sample's score, epoch after epoch. Instead, a site
ranks its own samples, and sends how many pairs of a sample with an outcome and one without it are in order; their share
is the AUC within sites.
"""

from __future__ import annotations

import torch
from torch import Tensor

from rankdad.common.metrics.auc import exact_pairs, log_odds
from rankdad.common.metrics.summary import Metrics, mean_auc, numbers, of_texts, summarise
from rankdad.common.metrics.sums import Tally, deviations_of, of_one_test, shape, text_moments
from rankdad.common.spec.tasks import Classification, LanguageModel, Metric, Regression, TaskSpec


def monitoring_shape(task: TaskSpec) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Return sizes of counts (samples, hits), and of sums (loss, moments, ordered pairs and all pairs by outcome)."""
    sizes = shape(task)
    return (1, int(sizes.ranked > 0)), (1, sizes.moments, sizes.ranked, sizes.ranked)


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
    """Sum over all validation samples of a site; outputs that are not finite give sums that are not.

    Args:
        task: what the outputs mean.
        monitor: the metric to monitor.
        outputs: [n, task.outputs], logits or numbers.
        labels: int64 [n] of classes, 0 or 1 [n, labels] of labels, or numbers [n].
        losses: of the samples, [n].
        centre: a number near the labels' mean, the same at all sites.
        people: int64 [n], patient of each sample; None if each is another patient.
        fewest: least number of people with and without an outcome, for sums over pairs.
    """
    outputs, labels, losses = outputs.detach().cpu().double(), labels.detach().cpu(), losses.detach().cpu().double()
    loss, samples = losses.sum().reshape(1), torch.tensor([len(labels)])
    if isinstance(task, LanguageModel):
        return Tally(samples, torch.cat([loss, text_moments(outputs, labels)]))
    if isinstance(task, Regression):
        moments = deviations_of(outputs.reshape(-1) - centre, labels.double().reshape(-1) - centre).sum(dim=1)
        return Tally(samples, torch.cat([loss, moments * (monitor != "loss")]))
    scores, positive = log_odds(task, outputs, labels)
    hits = outputs.argmax(dim=1) == labels if isinstance(task, Classification) else (outputs > 0) == positive
    pairs = torch.zeros(2, shape(task).ranked, dtype=torch.float64)
    for at in range(pairs.shape[1] * (monitor == "auc_within")):
        own = positive[:, at - pairs.shape[1]]
        if min(_people(own, people), _people(~own, people)) >= fewest:
            pairs[:, at] = torch.tensor(exact_pairs(scores[:, at - pairs.shape[1]], own), dtype=torch.float64)
    right = hits.sum().reshape(1) * (monitor == "accuracy")
    return Tally(torch.cat([samples, right]), torch.cat([loss, pairs.flatten()]))


def monitoring(task: TaskSpec, monitor: Metric, total: Tally) -> Metrics:
    """Compute the loss and the monitored metric from sums; None for all others, and without samples.

    The AUC within sites is one class against the rest, the mean over classes or labels with enough people in both
    groups at a site.
    """
    counts, sums = monitoring_shape(task)
    _, hits = total.counts.split(counts)
    loss, moments, ordered, pairs = total.sums.split(sums)
    values: dict[Metric, float | None] = dict.fromkeys(task.monitors)
    absent = 0
    if isinstance(task, LanguageModel):
        found = of_texts(float(loss), moments.tolist())
    elif isinstance(task, Regression):
        found = numbers(total.samples, float(loss), moments.tolist())
    else:
        area, _, absent = mean_auc(ordered / pairs.clamp_min(1), torch.zeros_like(ordered), pairs)
        each = shape(task).groups * total.samples
        found = {"loss": float(loss) / total.samples, "accuracy": int(hits) / each} if total.samples else {}
        found["auc_within"] = area
    values |= {name: value for name, value in found.items() if name in ("loss", monitor)}
    return Metrics(total.samples, values, absent=absent if monitor == "auc_within" else 0)


def measured_on(split: str, task: TaskSpec, monitor: Metric, total: Tally) -> Metrics:
    """Compute metrics from the sums that sites send for a split of one training."""
    if split == "validation":
        return monitoring(task, monitor, total)
    return summarise(task, of_one_test(task, total)).reliable


def check_monitoring(task: TaskSpec, total: Tally) -> None:
    """Check that some samples can have these sums.

    Raises:
        ValueError: they are contradictory.
    """
    if isinstance(task, Regression | LanguageModel):
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
