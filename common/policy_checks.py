"""Checks a run against a site's policy: before any data are read, and by the number of samples before it sends."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import NamedTuple

from rankdad.common.errors import FewSamplesError, PolicyError, counted
from rankdad.common.policy import Policy
from rankdad.common.policy_lists import check_lists
from rankdad.common.protocol.message_sizes import step_bytes
from rankdad.common.protocol.plan import Plan
from rankdad.common.refusals import (
    FEWER_SAMPLES,
    FEWER_SITES,
    MORE_ROWS,
    MORE_SITES,
    PRODUCTS,
    WHOLE,
    refusal,
)
from rankdad.common.spec import KFold, MethodSpec, RunSpec
from rankdad.common.spec.asked import sites_together

LARGER_STEPS = "larger batches"
SMALLER_STEPS = "smaller batches"


class Disclosed(NamedTuple):
    """What sums of a linear model disclose about a set of a site's patients."""

    people: int
    """Number of patients; without groups, of samples."""
    numbers: int
    """Number of numbers that leave."""
    rank: int
    """Number of known directions of the products of columns: one for each slope at other weights."""


def check_run(policy: Policy, spec: RunSpec, plan: Plan) -> None:
    """Check the parts of a run that do not depend on data.

    Raises:
        PolicyError: names the field of the spec.
    """
    _check_sites(policy, spec)
    check_lists(policy, spec)
    if spec.solver == "exact":  # no step is taken
        return
    _check_method(policy, spec.method)
    _check_rank(policy, spec, plan)
    check_step(policy, spec, plan, spec.training.step_size)
    size = step_bytes(plan, up=True)
    if policy.max_upload is not None and size > policy.max_upload:
        allows = f"at most {policy.max_upload:,} (max_upload)"
        raise refusal(
            "method",
            f"sends up to {size:,} bytes a step",
            allows,
            {"max_upload": size},
            "more bytes",
            owner="a lower rank",
        )


def check_step(
    policy: Policy, spec: RunSpec, plan: Plan, samples: int, people: int | None = None, *, left_out: bool = False
) -> None:
    """Check that a step of this many samples may send what the run sends.

    Args:
        policy: of the site.
        spec: of the run.
        plan: of the run.
        samples: in the step.
        people: least number of their groups; None without groups.
        left_out: whether these are the samples that a step lacks, compared with a step of all samples.

    Raises:
        PolicyError: it may not.
    """
    count = samples if people is None else people
    if count < policy.min_rows:
        grouped = f", maybe of {counted(count, spec.group_noun)}" if count < samples else ""
        makes = "makes steps that leave out just" if left_out else "makes steps of"
        asks = f"{makes} {counted(samples, 'sample')} here{grouped}"
        allows = f"none of fewer than {policy.min_rows} (min_rows)"
        change: dict[str, object] = {"min_rows": count}
        owner = _steps(spec, SMALLER_STEPS if left_out else LARGER_STEPS)
        raise refusal("training.batch_size", asks, allows, change, FEWER_SAMPLES, owner=owner)
    most, rows = policy.rank(samples), rows_sent(spec)
    if most is None:
        return
    least = fewest_rows_sent(spec)
    allows = f"at most {most} (rows_per_rank {policy.rows_per_rank})"
    if least is not None and least > most:
        needs = f"needs at least {counted(least, 'row')}{_projected(spec)}"
        asks = f"{needs} of a step of {counted(samples, 'sample')} here"
        change = _fewer_per_row(samples, least)
        owner = _steps(spec, LARGER_STEPS)
        raise refusal(spec.method.rank_field, asks, allows, change, MORE_ROWS, owner=owner)
    (name, units), half = most_units(plan, spec.method), 2 * (policy.rank(count) or 0)
    if units > half:
        noun = spec.group_noun if spec.grouped else "sample"
        asks = f"sends the gradient of {name} whole, of {units} units, for steps of {counted(count, noun)} here"
        allows = f"at most {half} (rows_per_rank {policy.rows_per_rank})"
        change = _fewer_per_row(count, -(-units // 2))
        owner, rows = "rank-dad", policy.rows_per_rank or 0
        owner += f", at most {half} units, or steps of at least {counted(-(-units // 2) * rows, noun)},"
        raise refusal(spec.method.rank_field, asks, allows, change, WHOLE, owner=owner)


def check_products(
    policy: Policy,
    columns: int,
    disclosed: Mapping[str, Disclosed],
    noun: str = "sample",
    *,
    field: str = "evaluation.references",
    owner: str = "a run without the reference linear",
    kept: int = 0,
) -> None:
    """Check that the sums of a linear model, or of harmonisation, may leave the site.

    Products of columns disclose as much as this many rows, and numbers as many cells as could be solved from them.

    Args:
        policy: of the site.
        columns: inputs and intercept.
        disclosed: disclosure about each set, by its description.
        noun: for the members of a set, in the singular.
        field: of the spec that asks for the sums.
        owner: what the owner could ask for instead.
        kept: number of columns that harmonisation keeps; 0 for a linear model.

    Raises:
        FewSamplesError: they may not.
    """
    change, allows = dict[str, object](), list[str]()
    if kept:
        width, of_what = f"{counted(kept, 'kept column')} with {counted(columns - kept, 'feature')}", "to harmonise"
    else:
        width = f"{columns} columns ({counted(columns - 1, 'input')} and one for the intercept)"
        of_what = "for a linear model"
    limits = list[tuple[int, str, float]]()  # largest rows_per_rank that allows a set's products and numbers
    for name, (people, numbers, rank) in disclosed.items():
        of = f"of {counted(people, noun)} {name}"
        sums = f"products of {width}, {of}"
        if rank not in (columns, kept):
            sums = f"slopes at {rank} weights, {of}, in {width}"
        limits += [
            (people // rank, f"adds up {sums}", rank),
            (
                2 * people * columns // numbers,
                f"sends {numbers:,} numbers {of} about {width}",
                numbers / (2 * columns),
            ),
        ]
    allowed, asks, each = min(limits, key=lambda limit: limit[0])
    widest = kept or columns
    if policy.max_rank is not None and widest > policy.max_rank:
        change["max_rank"] = widest
        allows.append(f"max_rank {policy.max_rank}")
    if policy.rows_per_rank is not None and allowed < policy.rows_per_rank:
        change["rows_per_rank"] = allowed or None
        needed = math.ceil(policy.rows_per_rank * each)
        allows.append(f"that from {counted(needed, noun)} on (rows_per_rank {policy.rows_per_rank})")
    if change:
        error = refusal(field, f"{asks}, {of_what}", " and ".join(allows), change, PRODUCTS, owner=owner)
        raise FewSamplesError.of(error, code="sums-of-too-few" if kept else "linear-needs-samples")


def check_replica(policy: Policy, spec: RunSpec, site: str, name: str, apart: float) -> None:
    """Check that the aggregator's weights after a comparison are close enough to the site's own.

    Args:
        policy: of the site.
        spec: of the run.
        site: its name.
        name: of the weights that differ most.
        apart: their distance, relative to their size.

    Raises:
        PolicyError: they are not.
    """
    if policy.accept_replica is None or apart <= policy.accept_replica:
        return
    error = PolicyError(
        "federation.drift",
        f"in the run {spec.name} the aggregator gives {site} other weights; those of {name} differ by {apart:.3g} of "
        f"their size from the site's, but its policy accepts no more than {policy.accept_replica:g} (accept_replica). "
        'The site keeps its own; "accept_replica": null in its policy accepts any weights, even weights from which '
        "single samples can be read",
        code="weights-apart",
    )
    error.is_public = False  # the distance is private
    raise error


def check_snapshot(policy: Policy, *, has_checkpoint: bool) -> None:
    """Check that a site may continue from the aggregator's checkpoint.

    Args:
        policy: of the site.
        has_checkpoint: whether the site has one, which the aggregator says is too old.

    Raises:
        PolicyError: it may not.
    """
    lets_in = "accepts any weights from the aggregator, including weights from which single samples can be read"
    if has_checkpoint and policy.accept_replica is not None:
        raise PolicyError(
            "snapshot",
            "the aggregator says that its ledger no longer covers this site's checkpoint, and gives it other weights, "
            "but its policy accepts only weights within "
            f'{policy.accept_replica:g} of its own (accept_replica); "accept_replica": null in its policy {lets_in}',
            code="weights-apart",
        )
    if policy.accept_replica == 0:
        raise PolicyError(
            "snapshot",
            "the site has lost its checkpoints and could only continue from the aggregator's, but its policy accepts "
            f'no weights (accept_replica 0); "accept_replica": 0.001 in its policy {lets_in}',
            code="weights-not-accepted",
        )


def policy_warnings(policy: Policy, spec: RunSpec) -> tuple[str, ...]:
    """Return warnings about a run under this policy."""
    drift, limit = spec.federation.drift, policy.accept_replica
    if limit is None or drift < limit:
        return ()
    return (
        f"a comparison of weights may end the run: weights that differ by more than {drift:g} are made equal "
        f"(federation.drift), but this site's policy accepts no difference beyond {limit:g} (accept_replica)",
    )


def _check_sites(policy: Policy, spec: RunSpec) -> None:
    together = sites_together(spec)
    field = next((field for field, count in together.items() if count < policy.min_sites), None)
    if field is not None:
        fewest = min(together.values())
        asks = f"has rounds with as few as {counted(fewest, 'site')}"
        allows = f"none of fewer than {policy.min_sites} (min_sites)"
        raise refusal(field, asks, allows, {"min_sites": fewest}, FEWER_SITES, code="too-few-sites", owner=MORE_SITES)


def _check_method(policy: Policy, method: MethodSpec) -> None:
    unreduced = bool(method.sends_rows_as_they_are)
    if method.name in policy.methods and (policy.unreduced_factors or not unreduced):
        return
    change: dict[str, object] = {}
    asks = f"asks for {method.name}"
    lets_out = method.lets_out or f"what {method.name} sends"
    allows = f"{', '.join(policy.methods) or 'none'} (methods)"
    if method.name not in policy.methods:
        change["methods"] = [*policy.methods, method.name]
    change |= dict.fromkeys(_limits(policy, method))  # they would refuse it next
    if unreduced:
        asks, lets_out = f"{asks}, which sends unreduced factors", _lost(method)
        if not policy.unreduced_factors:
            change["unreduced_factors"] = True
            allows = "none (unreduced_factors)" if method.name in policy.methods else allows
    raise refusal("method.name", asks, allows, change, lets_out)


def _check_rank(policy: Policy, spec: RunSpec, plan: Plan) -> None:
    method, rows = spec.method, rows_sent(spec)
    if method.whole and policy.max_rank is not None:
        name, rank = largest_whole(plan)
        if rank > 2 * policy.max_rank:
            asks, change = f"sends the gradient of {name} whole, of rank {rank}", {"max_rank": -(-rank // 2)}
            allows = f"at most {2 * policy.max_rank} (max_rank {policy.max_rank})"
            raise refusal("method.name", asks, allows, dict(change), WHOLE)
    limits = _limits(policy, method)
    if limits:
        allows = " and ".join(f"{name} {limit}" for name, limit in limits.items())
        asks = f"asks for {method.name}, whose rank has no limit"
        raise refusal("method.name", asks, allows, dict.fromkeys(limits), _lost(method))
    if rows is not None and policy.max_rank is not None and rows > policy.max_rank:
        asks, allows = f"asks for {rows} rows{_projected(spec)}", f"at most {policy.max_rank} (max_rank)"
        raise refusal(method.rank_field, asks, allows, {"max_rank": rows}, MORE_ROWS, owner="a lower one")


def _limits(policy: Policy, method: MethodSpec) -> dict[str, int]:
    """Return the limits that refuse a method without a rank; whole gradients have their layer's rank."""
    if method.whole:
        return {}
    limits = {"max_rank": policy.max_rank, "rows_per_rank": policy.rows_per_rank}
    return {name: limit for name, limit in limits.items() if limit is not None and method.most_rows is None}


def _lost(method: MethodSpec) -> str:
    """Return what a method without a rank limit, or without reduction, discloses."""
    if not method.sends_rows_as_they_are:
        return method.lets_out or WHOLE
    return f"each sample's input to a layer (for the first layer the raw data), to {method.sends_rows_as_they_are}"


def largest_whole(plan: Plan) -> tuple[str, int]:
    """Return the name and rank of the layer with the largest rank among dense gradients; ("", 0) without any."""
    whole = [(min(route.matrix), route.name) for route in plan.routes if route.dense]
    rank, name = max(whole, key=lambda one: one[0], default=(0, ""))
    return name, rank


def most_units(plan: Plan, method: MethodSpec) -> tuple[str, int]:
    """Return the layer with most distinguishable units among gradients sent whole, and their number; ("", 0) for none.

    Those that the method reduces to a limit on rows do not count.
    """
    each = [(r.units, r.name) for r in plan.routes if r.dense and not (method.reduces_dense and r.shorter)]
    units, name = max(each, key=lambda one: one[0], default=(0, ""))
    return name, units


def rows_sent(spec: RunSpec) -> int | None:
    """Return the largest number of rows of a layer that a run sends, with projections; None without a limit."""
    return _with_projections(spec, spec.method.most_rows)


def fewest_rows_sent(spec: RunSpec) -> int | None:
    """Return the least number of rows of a layer that a run needs, with projections; None if unknown."""
    return _with_projections(spec, spec.method.fewest_rows)


def _with_projections(spec: RunSpec, rows: int | None) -> int | None:
    return None if rows is None else rows + spec.training.sends_projections


def _fewer_per_row(samples: int, rows: int) -> dict[str, object]:
    """Return the policy line that allows this many rows for a step of this many samples."""
    return {"rows_per_rank": samples // rows or None}


def _projected(spec: RunSpec) -> str:
    return ' (one for "second_moment": "factored")' if spec.training.sends_projections else ""


def _steps(spec: RunSpec, batches: str) -> str:
    """Return how an owner could change the number of samples in steps."""
    ways = [batches]
    if isinstance(spec.evaluation, KFold):
        ways.append("fewer folds")
    if spec.training.validation:
        ways.append("no validation")
    return " or ".join((", ".join(ways[:-1]) or ways[0], ways[-1])[: len(ways)])
