"""A fold's samples for the network: harmonised, imputed and standardised by statistics of the training rows."""

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

MOST_SAMPLES, MOST_NUMBERS = 64, 1024  # samples to measure a model's movement, and numbers of each
FEW_SAMPLES = 16  # if samples are larger, because a pass takes as long as a step's


@dataclass(frozen=True, eq=False)
class Prepared:
    """One fold at one site; numeric labels are standardised.

    Args:
        train: samples to train on.
        validation: samples to choose the best epoch.
        test: samples unused otherwise.
        transform: the preparation, by statistics of all sites' training rows and of this site's.
        first: statistics of the first fold: tests of all folds are summed, with deviations from there.
        people: patient of each validation sample; None if each is another patient.
        order_key: seed of the order of batches.
        patients_key: identifies the training patients.
        test_groups: group of each test sample; None if the run has no groups.
        tested: patient of each test sample; None if each is another patient.
        smooth: whether test scores leave as smoothed curves, because single ones must not.
        looked: samples to measure the model's movement, and their ids, int64 [n], the same in every fold; None without
            a secret to choose them.
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
    """Prepare the samples of a run's current fold.

    Args:
        spec: the run.
        data: the site's.
        state: of the run, after all preparation stages.
        replica: with the dtype.
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
