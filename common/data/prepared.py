"""A fold's samples as the network sees them: harmonised, imputed and standardised by what the training rows say."""

from __future__ import annotations

import math
from dataclasses import dataclass

from torch import Tensor

from rankdad.common.data import Samples, SiteData
from rankdad.common.preparation import Fit, Preparing
from rankdad.common.preparation.transform import Transform
from rankdad.common.run.replica import Replica
from rankdad.common.run.state import RunState
from rankdad.common.spec import RunSpec

MOST_SAMPLES, MOST_NUMBERS = 64, 1024  # by which it is looked how far a model has moved, and of each
FEW_SAMPLES = 16  # where they have more numbers: a pass takes as long as a step's


@dataclass(frozen=True, eq=False)
class Prepared:
    """One fold at one site; labels that are numbers are in standard deviations from the mean.

    Args:
        train: samples to train on.
        validation: samples that choose the best epoch.
        test: samples that nothing else has seen.
        transform: what prepared them, by what all sites' training rows say, and this site's.
        first: what they say in the first fold: tests of all folds add up, and take deviations from there.
        people: whose each sample of the validation is; None where each is of another person.
        order_key: what the order of batches is drawn from.
        patients_key: what names the training patients.
        test_groups: which group each sample of the test is of; None where the run knows of none.
        tested: whose each sample of the test is; None where each is of another person.
        smooth: whether scores of the test leave as curves: nobody's own may.
        looked: samples by which it is looked how far the model has moved, and their ids, int64 [n], in every fold the
            same; None where there is no secret to choose them by.
    """

    train: Samples
    validation: Samples
    test: Samples
    transform: Transform
    first: Fit
    people: Tensor | None
    order_key: str
    patients_key: str
    test_groups: Tensor | None
    tested: Tensor | None
    smooth: bool
    looked: tuple[Tensor, Samples] | None = None


def prepare(spec: RunSpec, data: SiteData, state: RunState, replica: Replica) -> Prepared:
    """Return the samples of the fold in which a run is.

    Args:
        spec: the run.
        data: the site's.
        state: of the run, all stages of preparation done.
        replica: which has the dtype.
    """
    preparing = Preparing(spec)
    fit = preparing.fit(state.totals_of(state.fold))
    transform = preparing.transform(fit, preparing.own(fit, data.rows(state.fold)))
    samples, split = data.samples, data.splits[state.fold]
    dtype = next(replica.model.parameters()).dtype
    inputs = transform.prepared(samples.inputs, data.covariates, dtype)
    whole = Samples(inputs, transform.as_learned(samples.labels))
    train, validation, test = (whole.take(rows) for rows in (split.train, split.validation, split.test))
    first, order_key = preparing.fit(state.totals_of(0)), data.order_key(state.fold)
    people, tested = (None if data.groups is None else data.groups[rows] for rows in (split.validation, split.test))
    groups, smooth = tested if spec.grouped else None, data.parts is not None
    looked = data.looked(MOST_SAMPLES if math.prod(spec.data.shape) <= MOST_NUMBERS else FEW_SAMPLES)
    return Prepared(
        train,
        validation,
        test,
        transform,
        first,
        people,
        order_key,
        data.patients_key(state.fold),
        groups,
        tested,
        smooth,
        None if looked is None else (looked[0], whole.take(looked[1])),
    )
