"""All sites' samples together, as no hospital may have them: what a federation is measured against."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Literal

import torch

from rankdad.common.data import Samples, SiteData
from rankdad.common.data.folds import Split
from rankdad.common.data.lazy import concatenated
from rankdad.common.documents import validate
from rankdad.common.preparation import Fit, Preparing
from rankdad.common.spec import ALONE, LeaveOneSiteOut, RunSpec
from rankdad.local.alone import without_ranks

SITE = "together"  # name of the one site that has everything


def pooled_spec(spec: RunSpec, data: Mapping[str, SiteData]) -> RunSpec:
    """Return the run of one site with everything: about as many steps, and gradients that nobody has to send."""
    document = without_ranks(spec)
    document["federation"] |= {"sites": [SITE]} | ALONE
    folds = [[len(site.splits[fold].train) for site in data.values()] for fold in range(spec.folds)]
    steps = [math.ceil(max(sizes) / spec.training.step_size) for sizes in folds]
    batches = (math.ceil(sum(sizes) / count) for sizes, count in zip(folds, steps, strict=True) if count)
    document["training"] |= {"batch_size": max(batches), "accumulate": 1}
    document["method"] = {"name": "dsgd"}
    if isinstance(spec.evaluation, LeaveOneSiteOut):
        document["evaluation"] = {"name": "k-fold", "folds": spec.tested_folds, "refit": spec.evaluation.refit}
    return validate(RunSpec, document)


def pooled_data(data: Mapping[str, SiteData]) -> SiteData:
    """Return all sites' samples as those of one site, each in the fold in which it is at its own."""
    sites = list(data.values())
    starts = torch.tensor([0, *(len(site.samples) for site in sites[:-1])]).cumsum(0).tolist()
    splits = tuple(_joined(fold, starts) for fold in zip(*(site.splits for site in sites), strict=True))
    covariates = [site.covariates for site in sites if site.covariates is not None]
    inputs = concatenated([site.samples.inputs for site in sites])
    labels = torch.cat([site.samples.labels for site in sites])
    own = [site.groups + start for site, start in zip(sites, starts, strict=True) if site.groups is not None]
    return SiteData(
        Samples(inputs, labels),
        splits,
        torch.cat(covariates) if covariates else None,
        tuple(key for site in sites for key in site.keys),
        sum(site.dropped for site in sites),
        groups=torch.cat(own) if own else None,
        group_names=tuple(name for site in sites for name in site.group_names),
    )


def _joined(fold: Sequence[Split], starts: Iterable[int]) -> Split:
    pairs = list(zip(fold, starts, strict=True))
    names = ("train", "validation", "test")
    return Split(*(torch.cat([getattr(split, name) + start for split, start in pairs]) for name in names))


def first_fit(spec: RunSpec, data: Mapping[str, SiteData]) -> Fit:
    """Return what all sites' training rows of the first fold say, as the sites would find it together."""
    return Preparing(spec).fitted([site.rows(0) for site in data.values()])


def first_rows(
    spec: RunSpec, data: Mapping[str, SiteData], part: Literal["train", "test"] = "train"
) -> dict[str, Samples]:
    """Return what every site trains on, or tests with, in the first fold, prepared as the sites would together."""
    preparing, fit, dtype = Preparing(spec), first_fit(spec, data), getattr(torch, spec.training.dtype)
    prepared = {}
    for name, site in data.items():
        rows = getattr(site.splits[0], part)
        transform = preparing.transform(fit, preparing.own(fit, site.rows(0)))
        covariates = None if site.covariates is None else site.covariates[rows]
        inputs = transform.prepared(site.samples.inputs[rows], covariates, dtype)
        prepared[name] = Samples(inputs, transform.as_learned(site.samples.labels[rows]))
    return prepared
