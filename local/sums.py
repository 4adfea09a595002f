"""The sums of a site's patients that may leave for a linear model, and how few patients each covers."""

from __future__ import annotations

import math
from typing import Literal, NamedTuple

import torch
from torch import Tensor
from torch.nn import functional as F

from rankdad.common.data import SiteData
from rankdad.common.errors import FewSamplesError, counted
from rankdad.common.policy import Policy
from rankdad.common.policy_checks import Disclosed, check_products
from rankdad.common.preparation import Preparing, in_memory
from rankdad.common.preparation.layout import input_names
from rankdad.common.preparation.linear import DIFFER
from rankdad.common.refusals import FEWER_SAMPLES, refusal
from rankdad.common.spec import KFold, RunSpec
from rankdad.common.spec.tasks import Regression
from rankdad.local.privacy.disclosed import check_solving


def fewest_of(data: SiteData, tested: int) -> Tensor:
    """Return the least number of samples, or groups, that a fold trains on or holds out; infinity for none."""
    return data.fewest_behind(torch.ones(len(data.samples), 1, dtype=torch.bool), tested).min()


def noun_of(spec: RunSpec, data: SiteData) -> str:
    """Return the noun for a patient, in the singular."""
    return "sample" if data.groups is None else spec.group_noun


def check_linear(policy: Policy, spec: RunSpec, data: SiteData, tested: int, field: str, owner: str) -> None:
    """Check that the sums of a linear model may leave the site.

    Args:
        policy: of the site.
        spec: of the run.
        data: of the site.
        tested: number of trainings that hold out test samples.
        field: of the spec that asks for them.
        owner: what the owner could ask for instead.

    Raises:
        FewSamplesError: they may not.
    """
    noun, known = noun_of(spec, data), linear_sets(spec, data)
    if not known.disclosed:
        return
    larger = larger_sets(spec, data)
    check_sums(policy, field, "holds out {} in a fold", fewest_of(data, tested), noun, f"{larger}, or {owner},")
    columns = math.prod(spec.data.shape) + 1
    check_products(policy, columns, known.disclosed, noun, field=field, owner=owner)
    check_solving(policy, spec, data, noun, field, owner)
    asks = "sends slopes at several weights, and the difference between two often comes from {} here"
    check_sums(policy, field, asks, torch.tensor(known.differ), noun, owner)
    asks = f"adds up products of columns for a linear model, where {quoted(known.by)} singles out {{}} here, or in a "
    asks += "fold or part"
    check_sums(policy, field, asks, torch.tensor(known.apart), noun, f"{larger}, or {owner},", "min_level")


class LinearSets(NamedTuple):
    """The sets of a site's patients that a linear model's sums are about.

    Args:
        disclosed: disclosure about each set, by its description; empty if nothing is disclosed.
        differ: how few patients often account for the difference of sums at two weights; infinite for numbers.
        apart: how few patients a column or the label singles out: its products and its slope are their sums.
        by: the column that does so.
    """

    disclosed: dict[str, Disclosed]
    differ: float
    apart: float
    by: str = ""


def linear_sets(spec: RunSpec, data: SiteData) -> LinearSets:
    """Return the sets that a linear model's sums are about, and how much they disclose.

    Slopes of a fold at several weights disclose its products of columns in as many directions: for numbers, a change of
    the slope is these products times the change of the weights.
    """
    preparing, split, tested = Preparing(spec), data.splits[-1], tested_trainings(spec)
    people = data.people(torch.cat([split.train, split.validation, split.test]))
    trained = sum(spec.tests(fold) and len(one.train) > 0 for fold, one in enumerate(data.splits))
    fewest = fewest_of(data, tested)
    if people < max(1, data.fewest) or not trained or not fewest.isfinite():
        return LinearSets({}, math.inf, math.inf)
    columns = math.prod(spec.data.shape) + 1
    whole, fold = preparing.numbers()
    disclosed = {"here": Disclosed(people // equations_of(spec, data), whole + trained * fold, columns)}
    if (held_out := int(fewest)) < people:
        often = spec.tested_folds // spec.folds_per_repeat
        rank = min(columns, often * len(preparing.solving.folds))
        where = "in a part" if data.parts is not None else "that a fold trains on or holds out"
        disclosed[where] = Disclosed(held_out, often * fold, rank)
    least = min(data.people(one.train) for one in data.splits if len(one.train))
    differ = math.inf if isinstance(spec.task, Regression) else max(1, least // DIFFER)
    return LinearSets(disclosed, differ, *_fewest_apart(spec, data, tested))


def _fewest_apart(spec: RunSpec, data: SiteData, tested: int) -> tuple[float, str]:
    """Return how few samples, or groups, a column or the label singles out, also in a fold or part, and its name.

    The products of such a column, and its slope, are sums over these samples: a level that one patient of a part has
    gives an equation for that patient with each slope. Of two values, as in levels and classes, both are such sets; of
    more values, all but the most frequent.
    """
    samples, sets, of = data.samples, list[Tensor](), list[str]()
    labels = samples.labels
    if labels.ndim == 1 and not labels.is_floating_point():
        labels = F.one_hot(labels)
    labels = labels.reshape(len(samples), -1).double()
    columns = torch.cat([in_memory(samples.inputs).flatten(1).double(), labels], 1)
    inputs = columns.shape[1] - labels.shape[1]
    for column, name in zip(columns.T, [*column_names(spec, inputs), *["the label"] * labels.shape[1]], strict=True):
        values, counts = column[~column.isnan()].unique(return_counts=True)
        own = [column == value for value in values] if len(values) == 2 else []
        if len(values) > 2:
            own = [(column != values[counts.argmax()]) & ~column.isnan()]
        sets, of = sets + own, of + [name] * len(own)
    if not sets:
        return math.inf, ""
    fewest, at = data.fewest_behind(torch.stack(sets, 1), tested).min(0)
    return float(fewest), of[int(at)]


def column_names(spec: RunSpec, inputs: int) -> list[str]:
    """Return the names of inputs; numbered ones if the spec has no names."""
    names = input_names(spec)
    return names if len(names) == inputs else [f"column {number + 1}" for number in range(inputs)]


def quoted(name: str) -> str:
    """Return a name for a format string; its braces are escaped."""
    return name.replace("{", "{{").replace("}", "}}")


def equations_of(spec: RunSpec, data: SiteData) -> int:
    """Return how many equations for single samples the sums of overlapping folds form together; 1 for none.

    Every repeat has other splits, and so do the validation sets of candidates, one for each model. Unions of parts
    form equations for parts, and every part is checked by itself.
    """
    if data.parts is not None:
        return 1
    repeats = spec.tested_folds // spec.folds_per_repeat
    if repeats == 1 and not spec.candidates:
        return 1
    tests = 1 + spec.tested_folds - repeats if isinstance(spec.evaluation, KFold) else 1
    return tests + (spec.models if spec.candidates else 0)


def tested_trainings(spec: RunSpec) -> int:
    """Return how many trainings hold out test samples."""
    return spec.tested_folds * (1 + len(spec.candidates))


def larger_sets(spec: RunSpec, data: SiteData) -> str:
    """Return how an owner could get larger held-out sets, also of each class."""
    if not isinstance(spec.evaluation, KFold):
        return "a larger training.test"
    stratified = data.parts is not None or spec.evaluation.stratified
    return "fewer folds" if stratified else '"stratified": true or fewer folds'


def check_sums(
    policy: Policy,
    field: str,
    asks: str,
    fewest: Tensor,
    noun: str,
    owner: str,
    line: Literal["min_rows", "min_level"] = "min_rows",
) -> None:
    """Check that sums cover enough samples, or a level that enough samples have."""
    least = policy.min_rows if line == "min_rows" else policy.min_level.count
    if fewest < least:
        count, allows = int(fewest), f"none of fewer than {least} ({line})"
        error = refusal(
            field, asks.format(counted(count, noun)), allows, {line: max(count, 1)}, FEWER_SAMPLES, owner=owner
        )
        raise FewSamplesError.of(error, code="sums-of-too-few")
