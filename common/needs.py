"""What a run needs of a site's policy, line by line: found by asking a policy that lets nothing out, and mending it."""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from dataclasses import dataclass

from rankdad.common.errors import PolicyError
from rankdad.common.policy import Policy
from rankdad.common.preparation import Preparing
from rankdad.common.privacy.parts import MOST
from rankdad.common.protocol.messages import DataWarning
from rankdad.common.refusals import refusals
from rankdad.common.spec import KFold, LeaveOneSiteOut, RunSpec

HIGH = 10**9  # more samples, or sites, than there are
DONE_WITHOUT: tuple[DataWarning, ...] = ("sets-too-small-to-evaluate", "exact-solver-not-allowed")


@dataclass(frozen=True)
class Need:
    """A line of a policy that a run needs.

    Args:
        line: of the policy.
        field: of the specification that asks for it.
        needed: the strictest value that lets the run in.
        here: the site's own.
        lets_out: what the value that is needed lets out.
        refused: whether the site's own value refuses the run.
        code: of the refusal, or of what the run does without; "" where there is none.
    """

    line: str
    field: str
    needed: object
    here: object
    lets_out: str
    refused: bool
    code: str = ""


def needs(policy: Policy, *checks: Callable[[Policy], object]) -> list[Need]:
    """Return every line of a policy that a run needs, in the policy's order.

    Args:
        policy: of the site.
        checks: raise a policy's first refusal of the run.

    Raises:
        UserError: a check raises what is no refusal.
    """
    strict, asked, refused = _strict(policy), dict[str, tuple[PolicyError, object]](), dict[str, PolicyError]()
    for check in checks:
        for error in refusals(check, strict):
            asked |= {line: (error, value) for line, value in error.change.items()}  # the last one is enough for all
            strict = strict.mended(error.change)
        for error in refusals(check, policy):
            if error.code not in DONE_WITHOUT or refused.keys().isdisjoint(error.change):
                refused |= dict.fromkeys(error.change, error)
            asked |= {line: (error, value) for line, value in error.change.items() if line not in asked}
    return [
        Need(
            line=line,
            field=(refused.get(line) or asked[line][0]).field,
            needed=asked[line][1],
            here=policy.model_dump(mode="json")[line],
            lets_out=asked[line][0].lets_out,
            refused=line in refused and refused[line].code not in DONE_WITHOUT,
            code=refused[line].code if line in refused else "",
        )
        for line in Policy.model_fields
        if line in asked
    ]


def shown(value: object, most: int) -> str:
    """Return a line's value as a person reads it; of many names so many."""
    if not isinstance(value, list | tuple):
        return json.dumps(value)
    more = f" and {len(value) - most:,} more" * (len(value) > most)
    return ", ".join(map(str, value[:most])) + more or "none"


def patients_for_sums(spec: RunSpec, policy: Policy) -> int:
    """Return from how many patients at a site on its policy lets out the sums of a linear model; 0 if from any on.

    Counted are whole sites and the smallest part, or by keys what a fold tests, of folds and parts of the same size;
    levels and classes may ask for more.

    Args:
        spec: of the run.
        policy: of the site.
    """
    if policy.rows_per_rank is None:
        return 0
    preparing, columns = Preparing(spec), math.prod(spec.data.shape) + 1
    whole, fold = preparing.numbers()
    often, evaluation = spec.tested_folds // spec.folds_per_repeat, spec.evaluation
    sets = [(whole + spec.tested_folds * fold, columns, 1.0)]  # numbers and directions, and its share of the patients
    if not isinstance(evaluation, LeaveOneSiteOut):
        share = 1 / evaluation.folds if isinstance(evaluation, KFold) else spec.training.test
        directions = min(columns, often * len(preparing.solving.folds))
        sets += [(often * fold, directions, share if policy.keyed_folds else 1 / MOST)] if share else []
    each = policy.rows_per_rank / (2 * columns)
    needed = (math.ceil(max(policy.rows_per_rank * rank, numbers * each)) / share for numbers, rank, share in sets)
    return max(math.ceil(round(count, 6)) for count in needed)


def _strict(policy: Policy) -> Policy:
    """Return a policy that lets nothing out, but deals patients to folds as the site's own."""
    nothing: dict[str, object] = {
        "min_rows": HIGH,
        "rows_per_rank": HIGH,
        "max_rank": 0,
        "methods": (),
        "unreduced_factors": False,
        "max_upload": 0,
        "pretrained": (),
        "min_sites": HIGH,
        "files": (),
        "columns": (),
    }
    return policy.model_copy(update=nothing)
