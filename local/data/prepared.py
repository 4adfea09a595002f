"""A fold's samples as the network sees them: harmonised, imputed and standardised by what the training rows say."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from common.course import Course
from common.preparation import Fit, OwnFit, Preparing
from common.replica import Replica
from common.spec import RunSpec
from common.tasks import Regression
from local.data import Samples, SiteData


@dataclass(frozen=True, eq=False)
class Prepared:
    """One fold at one site; labels that are numbers are in standard deviations from the mean.

    Args:
        train: samples to train on.
        validation: samples that choose the best epoch.
        test: samples that nothing else has seen.
        fit: what all sites' training rows say.
        own: what this site's alone say.
        centre: from which evaluation takes deviations of numbers: the same in all folds, so that their sums add up.
        base: log-odds of every class or label, around which evaluation bins scores most finely; the same in all folds.
        numbers: whether labels are numbers.
    """

    train: Samples
    validation: Samples
    test: Samples
    fit: Fit
    own: OwnFit
    centre: float
    base: Tensor | None
    numbers: bool

    def in_units(self, outputs: Tensor) -> Tensor:
        """Return a network's outputs, or labels as it learns them, in the label's own unit where that is a number."""
        return outputs.double() * self.fit.target_scale + self.fit.target_mean if self.numbers else outputs


def prepare(spec: RunSpec, data: SiteData, course: Course, replica: Replica) -> Prepared:
    """Return the samples of the fold in which a run is.

    Args:
        spec: the run.
        data: the site's.
        course: of the run, all stages of preparation done.
        replica: which has the dtype and the device.
    """
    like, preparing = next(replica.model.parameters()), Preparing(spec)
    fit = preparing.fit(course.totals_of(course.fold))
    own = preparing.own(fit, data.rows(course.fold))
    samples, split = data.samples, data.splits[course.fold]
    inputs = preparing.apply(fit, own, samples.inputs, data.covariates, like.dtype)
    whole = Samples(inputs, preparing.apply_labels(fit, samples.labels))
    train, validation, test = (
        whole.take(rows).to(str(like.device)) for rows in (split.train, split.validation, split.test)
    )
    numbers = isinstance(spec.task, Regression)
    first = preparing.fit(course.totals_of(0))
    base = None
    if first.class_counts is not None and first.class_weights is None:
        base = torch.logit(first.class_counts.double() / max(first.rows, 1), eps=1e-6)
    return Prepared(train, validation, test, fit, own, first.target_mean, base, numbers)
