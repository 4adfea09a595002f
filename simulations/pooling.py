"""All sites' samples at one site, as a reference for federated runs."""

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

SITE = "together"  # name of the pooled site


def pooled_spec(spec: RunSpec, data: Mapping[str, SiteData]) -> RunSpec:
    """Return the run of one site with all data: about as many steps, with dense gradients."""
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
    """Join all sites' samples as one site's, each in the same fold as at its own site."""
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
    """Return the federated preparation's fit on all sites' training rows of the first fold."""
    return Preparing(spec).fitted([site.rows(0) for site in data.values()])


def first_rows(
    spec: RunSpec, data: Mapping[str, SiteData], part: Literal["train", "test"] = "train"
) -> dict[str, Samples]:
    """Return every site's prepared training or test rows of the first fold."""
    preparing, fit, dtype = Preparing(spec), first_fit(spec, data), getattr(torch, spec.training.dtype)
    prepared = {}
    for name, site in data.items():
        rows = getattr(site.splits[0], part)
        transform = preparing.transform(fit, preparing.own(fit, site.rows(0)))
        covariates = None if site.covariates is None else site.covariates[rows]
        inputs = transform.prepared(site.samples.inputs[rows], covariates, dtype)
        prepared[name] = Samples(inputs, transform.as_learned(site.samples.labels[rows]))
    return prepared
