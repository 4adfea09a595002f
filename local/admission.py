"""Applies a site's policy to its data: whether the run may train on them, and which sets are left out."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import Literal

import torch
from torch import Tensor

from rankdad.common.data import SiteData
from rankdad.common.data.folds import Split, levels_of
from rankdad.common.errors import FewSamplesError, PolicyError, counted
from rankdad.common.policy import Policy
from rankdad.common.policy_checks import Disclosed, check_products, check_step, rows_sent
from rankdad.common.preparation import Inputs, Preparing, in_memory
from rankdad.common.privacy.levels import apart
from rankdad.common.protocol.messages import DataWarning
from rankdad.common.protocol.plan import Plan
from rankdad.common.refusals import FEWER_SAMPLES, refusal
from rankdad.common.run.batches import batch_sizes
from rankdad.common.spec import RunSpec
from rankdad.common.spec.data import TableData
from rankdad.common.spec.solver import NOT_EXACT
from rankdad.common.spec.tasks import LanguageModel
from rankdad.common.spec.text import SPECIAL, UNKNOWN, TextData
from rankdad.local.agent.words import BINARY_ROWS
from rankdad.local.privacy.cells import StepNumbers, check_numbers, check_texts
from rankdad.local.privacy.disclosed import (
    REPEATED,
    beside_steps,
    check_repeated,
    disclosed_before,
    epochs_of_validation,
    lets,
    over,
)
from rankdad.local.privacy.usual import usual_inputs
from rankdad.local.sums import (
    check_linear,
    check_sums,
    column_names,
    equations_of,
    fewest_of,
    larger_sets,
    noun_of,
    quoted,
    tested_trainings,
)
from rankdad.local.trained_rows import digests

TOO_SMALL: DataWarning = "sets-too-small-to-evaluate"
RARE: DataWarning = "rare-values"
STEPS = "training by steps (training.solver)"
NO_SUMS = "the model is trained by steps, at all sites"
EVALUATED = "figures of fewer samples: of one they are its label and its score"
MAX_MOVED = 10  # columns that a note names


class Exposed(str):
    """A warning that others can compute values of single samples."""

    __slots__ = ()


def admitted(policy: Policy, spec: RunSpec, plan: Plan, data: SiteData) -> SiteData:
    """Drop validation and test sets that are too small to evaluate.

    Args:
        policy: of the site.
        spec: of the run.
        plan: of the run.
        data: of the site.

    Raises:
        FewSamplesError: a step, or the sums over a fold's training samples, would cover too few samples.
    """
    data = _evaluated(policy, spec, usual(policy, spec, data))
    tested = tested_trainings(spec)
    solver, steps = spec.solver, spec.solver == "steps"
    if not steps:
        data = _solving(policy, spec, data, tested)
        steps = NOT_EXACT in data.warnings
    if steps:
        largest = spec.training.step_size
        sizes = [batch_sizes(len(split.train), largest) if len(split.train) else [] for split in data.splits]
        check_steps(policy, spec, plan, data, sizes)
        if spec.batches == "full":  # a site alone does not know the sizes of even batches
            check_repeated(policy, spec, plan, data, sizes)
        smallest = min((size for fold in sizes for size in fold), default=0)
        data = replace(data, notes=(*data.notes, *_small_steps(policy, spec, plan, data, smallest)))
    noun = noun_of(spec, data)
    preparing = Preparing(spec)
    if any(preparing.is_due(stage, exact=not steps) for stage in preparing.stages):
        larger = larger_sets(spec, data)
        check_sums(policy, "evaluation", "holds out {} in a fold", fewest_of(data, tested), noun, larger)
        if solver == "steps" and "linear" in spec.references:
            check_linear(policy, spec, data, tested, "evaluation.references", "a run without the reference linear")
    if (equations := equations_of(spec, data)) > 1:
        each = torch.tensor(data.people(torch.arange(len(data.samples))) // equations)
        field, what, owner = "evaluation.repeats", "repeats folds", "fewer repeats"
        if spec.candidates:
            field, what, owner = "tuning", "tunes", "fewer candidates"
        check_sums(policy, field, f"{what} so often that each sum covers {{}} here", each, noun, owner)
    if data.covariates is not None:
        _check_kept(policy, spec, data, data.covariates)
        for column, members in levels_of(spec, data.covariates):
            where = "in a fold here, or in its held-out rows" if data.parts is None else "in a part here"
            owner = f"a run that does not keep {column}"
            if data.parts is not None and column not in (policy.strata or ()):
                owner += f', or parts balanced by it ("strata": ["{column}"] in the policy),'
            fewest = data.fewest_behind(members, tested).min()
            asks = f"keeps {quoted(column)}, with a level that has {{}} {where}"
            check_sums(policy, "preparation.harmonise.keep", asks, fewest, noun, owner)
        _check_gaps(policy, spec, data, tested)
        _check_harmonised(policy, spec, data, tested)
    return data


def checks(spec: RunSpec, plan: Plan, data: SiteData) -> list[Callable[[Policy], object]]:
    """Return what a run requires of a site's policy, given its data, including what the run can omit.

    Args:
        spec: of the run.
        plan: of the run.
        data: of the site, as read.
    """
    tested = tested_trainings(spec)

    def evaluates(policy: Policy) -> None:
        sets = [rows for split in data.splits for rows in (split.validation, split.test) if len(rows)]
        fewest = min((data.people(rows) for rows in sets), default=policy.min_rows)
        if fewest < policy.min_rows:
            asks = f"evaluates sets of {counted(fewest, noun_of(spec, data))} here"
            allows, owner = f"none of fewer than {policy.min_rows} (min_rows)", larger_sets(spec, data)
            error = refusal("evaluation", asks, allows, {"min_rows": fewest}, EVALUATED, owner=owner)
            raise FewSamplesError.of(error, code=TOO_SMALL)
        if any(one.any() for one in _too_often(policy, spec, data)):
            disclosed = disclosed_before(data) + beside_steps(spec, data)
            asks = f"sends sums over the same validation samples after each of {spec.training.epochs} epochs"
            allows = f"fewer numbers (rows_per_rank {policy.rows_per_rank})"
            change: dict[str, object] = {"rows_per_rank": lets(disclosed)}
            error = refusal("training.validation", asks, allows, change, REPEATED, owner="fewer epochs")
            raise FewSamplesError.of(error, code=TOO_SMALL)

    def solves(policy: Policy) -> None:
        try:
            check_linear(policy, spec, usual(policy, spec, data), tested, "training.solver", STEPS)
        except FewSamplesError as error:
            raise FewSamplesError.of(error, code=NOT_EXACT) from None

    exact: list[Callable[[Policy], object]] = [solves] if spec.solver == "auto" else []
    return [evaluates, lambda policy: admitted(policy, spec, plan, data), *exact]


def _check_kept(policy: Policy, spec: RunSpec, data: SiteData, covariates: Tensor) -> None:
    """Check that no two levels of kept columns differ by few samples or groups, because their sums would too."""
    sets, least = [members for _, members in levels_of(spec, covariates)], policy.min_level.count
    if sets and apart(torch.cat(sets, 1), data.groups, least).any():
        asks = f"keeps columns with two levels that differ by fewer than {least} {noun_of(spec, data)}s here"
        field, allows = "preparation.harmonise.keep", f"none of fewer than {least} (min_level)"
        error = refusal(field, asks, allows, {"min_level": 1}, FEWER_SAMPLES, owner="a run that keeps one of them")
        raise FewSamplesError.of(error, code="sums-of-too-few")


def _check_gaps(policy: Policy, spec: RunSpec, data: SiteData, tested: int) -> None:
    """Check columns that few rows lack: covariates of the other rows would reveal those few."""
    inputs = in_memory(data.samples.inputs)
    if inputs.ndim != 2 or not inputs.isnan().any():
        return
    fewest, at = data.fewest_behind(inputs.isnan(), tested).min(0)
    name = quoted(column_names(spec, inputs.shape[1])[int(at)])
    asks = f"keeps columns, and {{}} of a fold or part lack {name} here"
    owner = 'a run that keeps none, or leaves out rows with missing values ("missing": "drop"),'
    line: Literal["min_rows", "min_level"] = "min_rows" if data.parts is None else "min_level"
    check_sums(policy, "preparation.harmonise.keep", asks, fewest, noun_of(spec, data), owner, line)


def _check_harmonised(policy: Policy, spec: RunSpec, data: SiteData, tested: int) -> None:
    """Check that products of kept columns with features may leave, over all rows and over the smallest held-out set."""
    features, kept, numbers = Preparing(spec).products
    if not kept:
        return
    people, fewest = data.people(torch.arange(len(data.samples))), fewest_of(data, tested)
    sums = len({split.train.numpy().tobytes() for split in data.splits if len(split.train)})
    disclosed = {"here": Disclosed(people, sums * numbers, kept)} if sums else {}
    if sums and fewest.isfinite() and fewest < people:
        where = "in a part" if data.parts is not None else "that a fold trains on or holds out"
        disclosed[where] = Disclosed(int(fewest), numbers, kept)
    if disclosed:
        field, owner = "preparation.harmonise.keep", "a run that keeps fewer columns"
        check_products(policy, features + kept, disclosed, noun_of(spec, data), field=field, owner=owner, kept=kept)


def _solving(policy: Policy, spec: RunSpec, data: SiteData, tested: int) -> SiteData:
    """Return the data with the policy's answer about an exact solution.

    Raises:
        FewSamplesError: the policy allows none, and the run has no alternative.
    """
    try:
        check_linear(policy, spec, data, tested, "training.solver", STEPS)
    except FewSamplesError as error:
        if spec.solver == "exact":
            raise
        note = f"{NO_SUMS}: {error}"
        return replace(data, warnings=(*data.warnings, NOT_EXACT), notes=(*data.notes, note))
    return replace(data, tells_coefficients=policy.site_coefficients)


def usual(policy: Policy, spec: RunSpec, data: SiteData) -> SiteData:
    """Return the data with rare values replaced by usual ones."""
    inputs, least = data.samples.inputs, policy.min_level.count
    if not isinstance(inputs, Tensor):
        return data
    parts = None if data.parts is None else torch.from_numpy(data.parts.parts)
    found = usual_inputs(spec, inputs, policy.min_level, data.groups, parts)
    moved = (found != inputs) & ~(found.isnan() & inputs.isnan())
    if not moved.any():
        return data
    columns = moved.any(0)
    names = [f"input {place}" for place in columns.nonzero().flatten().tolist()]
    if isinstance(spec.data, TextData):
        names = [f"tokens of {spec.data.column}"]
    elif isinstance(spec.data, TableData):
        names = [place.column for place in spec.data.places if columns[place.whole].any()]
    more = f" and {len(names) - MAX_MOVED} more" * (len(names) > MAX_MOVED)
    note = (
        f"{counted(int(moved.any(1).sum()), 'row')}: values that fewer than {least} {noun_of(spec, data)}s have "
        f"are replaced by usual ones (min_level): {', '.join(names[:MAX_MOVED])}{more}"
    )
    samples, warnings = replace(data.samples, inputs=found), (*data.warnings, RARE)
    if isinstance(spec.task, LanguageModel):  # whose labels are bytes of tokens with a loss: of each that of a mean one
        left, whole = (found >= SPECIAL).sum(1), ((inputs == UNKNOWN) | (inputs >= SPECIAL)).sum(1)
        samples = replace(samples, labels=(samples.labels * left / whole.clamp_min(1)).floor())
    return replace(data, samples=samples, warnings=warnings, notes=(*data.notes, note), as_read=digests(inputs))


def _evaluated(policy: Policy, spec: RunSpec, data: SiteData) -> SiteData:
    """Drop the validation and test sets that are too small, with a note for each."""
    splits, noun = data.splits, spec.group_noun
    for name in ("validation", "test"):
        sets = [getattr(split, name) for split in splits]
        people = [data.people(rows) for rows in sets]
        small = [place for place, count in enumerate(people) if 0 < count < policy.min_rows]
        if not small:
            continue
        fewest = min(people[place] for place in small)
        note = (
            f"{name}: {sum(len(sets[place]) for place in small)} samples are left out, in {len(small)} of {len(sets)} "
            f"folds: the set has {fewest if data.groups is None else counted(fewest, noun)} there, and the policy "
            f"evaluates none of fewer than {policy.min_rows} (min_rows)"
        )
        data = replace(data, warnings=(*data.warnings, TOO_SMALL), notes=(*data.notes, note))
    left = (
        Split(
            one.train,
            *(rows if data.people(rows) >= policy.min_rows else rows[:0] for rows in (one.validation, one.test)),
        )
        for one in splits
    )
    level = policy.min_level.count
    data = replace(data, splits=tuple(left), fewest=policy.min_rows, level=level)
    if any(often := [bool(one.any()) for one in _too_often(policy, spec, data)]):
        kept = (
            Split(torch.cat([split.train, split.validation]).sort().values, split.validation[:0], split.test)
            if too_often
            else split
            for split, too_often in zip(data.splits, often, strict=True)
        )
        epochs = epochs_of_validation(policy, spec, data)
        note = (
            f"validation: {sum(often)} of {len(often)} trainings have no validation set and train on its samples: "
            f"sums after each of {spec.training.epochs} epochs, added to other figures of this and earlier runs, would "
            f"be too many numbers about the same {noun_of(spec, data)}s (rows_per_rank {policy.rows_per_rank}); "
            + (f"at most {counted(epochs, 'epoch')} would be allowed" if epochs else "no number of epochs is allowed")
        )
        data = replace(data, splits=tuple(kept), warnings=(*data.warnings, TOO_SMALL), notes=(*data.notes, note))
    return replace(data, warnings=tuple(dict.fromkeys(data.warnings)))


def _too_often(policy: Policy, spec: RunSpec, data: SiteData) -> list[Tensor]:
    """Return, for each training, the validation samples that sums after each epoch would disclose too much about."""
    much = over(policy, disclosed_before(data) + beside_steps(spec, data))
    return [much[split.validation] for split in data.splits]


def _small_steps(policy: Policy, spec: RunSpec, plan: Plan, data: SiteData, smallest: int) -> Iterator[str]:
    """Yield warnings about steps of few samples that the policy allows."""
    asked, most = rows_sent(spec), StepNumbers.of(policy, spec, plan, data).rows(smallest)
    if smallest and asked is not None and most is not None and most < asked:
        yield (
            f"method: steps of {smallest} samples send {most} rows of a layer here, not {asked} "
            f"(rows_per_rank {policy.rows_per_rank})"
            + ", the pair for second_moment among them"
            * spec.training.sends_projections
        )
    binary = _binary_columns(data.samples.inputs)
    if 0 < smallest < BINARY_ROWS and binary:
        yield Exposed(
            f"training.batch_size: {binary} columns have two values, and a step has {smallest} samples: its recipients "
            "can compute these columns of single samples; "
            f'"min_rows": {BINARY_ROWS} in the policy file refuses such steps'
        )


def _binary_columns(inputs: Inputs) -> int:
    """Return how many columns of a table have exactly two values, such as one-hot levels; missing values aside."""
    if not isinstance(inputs, Tensor) or inputs.ndim != 2 or not inputs.is_floating_point():
        return 0
    low, high = inputs.nan_to_num(math.inf).amin(0), inputs.nan_to_num(-math.inf).amax(0)
    return int((((inputs == low) | (inputs == high) | inputs.isnan()).all(0) & (low < high)).sum())


def check_steps(policy: Policy, spec: RunSpec, plan: Plan, data: SiteData, sizes: Sequence[Sequence[int]]) -> None:
    """Check that steps of these sizes, in every fold, may send what the run sends; empty steps send nothing.

    Raises:
        FewSamplesError: the smallest step may not.
    """
    least = [min((data.behind_step(fold, size) for size in own if size), default=0) for fold, own in enumerate(sizes)]
    if not any(least):
        return
    people = min(min(data.fewest_people(fold, sizes[fold]), size) for fold, size in enumerate(least) if size)
    smallest = min(size for size in least if size)
    left_out = smallest not in sizes[least.index(smallest)]
    try:
        check_step(policy, spec, plan, smallest, people, left_out=left_out)
    except PolicyError as error:
        besides = _why_no_sums(policy, spec, data)
        raise FewSamplesError.of(error, code="steps-of-too-few", besides=besides) from None
    check_texts(policy, spec, data)
    check_numbers(policy, spec, plan, data, smallest)


def _why_no_sums(policy: Policy, spec: RunSpec, data: SiteData) -> str:
    """Return why a run that could be solved exactly takes steps; "" for other runs."""
    if spec.solver != "auto":
        return ""
    try:
        check_linear(policy, spec, data, tested_trainings(spec), "training.solver", STEPS)
    except FewSamplesError as error:
        return f"nor is it solved exactly, without steps: {error}"
    return "another site's policy does not allow the sums of an exact solution, which needs no steps"
