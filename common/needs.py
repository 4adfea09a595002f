"""The policy lines that a run needs, found by relaxing a policy that allows nothing."""

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

HIGH = 10**9  # more samples or sites than there are
OPTIONAL: tuple[DataWarning, ...] = ("sets-too-small-to-evaluate", "exact-solver-not-allowed")


@dataclass(frozen=True)
class Need:
    """A policy line that a run needs.

    Args:
        line: name of the policy line.
        field: the spec's field that requires it.
        needed: the strictest value that allows the run.
        here: the site's value.
        lets_out: what the needed value discloses.
        refused: whether the site's value refuses the run.
        code: of the refusal, or of the warning if the run omits the figures; "" if there is neither.
    """

    line: str
    field: str
    needed: object
    here: object
    lets_out: str
    refused: bool
    code: str = ""


def needs(policy: Policy, *checks: Callable[[Policy], object]) -> list[Need]:
    """Return the policy lines that a run needs, in the policy's order.

    Args:
        policy: of the site.
        checks: each raises the first refusal of a policy.

    Raises:
        UserError: a check fails for another reason.
    """
    strict, asked, refused = _strict(policy), dict[str, tuple[PolicyError, object]](), dict[str, PolicyError]()
    for check in checks:
        for error in refusals(check, strict):
            asked |= {line: (error, value) for line, value in error.change.items()}  # the last one is enough for all
            strict = strict.mended(error.change)
        for error in refusals(check, policy):
            if error.code not in OPTIONAL or refused.keys().isdisjoint(error.change):
                refused |= dict.fromkeys(error.change, error)
            asked |= {line: (error, value) for line, value in error.change.items() if line not in asked}
    return [
        Need(
            line=line,
            field=(refused.get(line) or asked[line][0]).field,
            needed=asked[line][1],
            here=policy.model_dump(mode="json")[line],
            lets_out=asked[line][0].lets_out,
            refused=line in refused and refused[line].code not in OPTIONAL,
            code=refused[line].code if line in refused else "",
        )
        for line in Policy.model_fields
        if line in asked
    ]


def shown(value: object, most: int) -> str:
    """Format a policy value, with at most `most` names of a list."""
    if not isinstance(value, list | tuple):
        return json.dumps(value)
    more = f" and {len(value) - most:,} more" * (len(value) > most)
    return ", ".join(map(str, value[:most])) + more or "none"


def patients_for_sums(spec: RunSpec, policy: Policy) -> int:
    """Return how many patients a site needs before its policy allows the sums of a linear model; 0 for no minimum.

    This assumes folds and parts of equal size; rare levels and classes may require more patients.

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
    """Return a policy that allows nothing, with the folds of the site's policy."""
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
