"""Refusals of runs by a site's policy, and what a changed policy would disclose."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence

from rankdad.common.errors import PolicyError
from rankdad.common.policy import Policy

WHOLE = "the whole gradient of a layer, with a rank up to the number of samples: a batch can be rebuilt from it"
MORE_ROWS = "more rows of a layer's gradient per sample: the more rows, the easier it is to separate samples"
FEWER_SAMPLES = "sums over fewer samples: the fewer, the easier it is to single one out; a sum over one is the sample"
FEWER_SITES = "sums over fewer sites: of two, each learns the other's part; a sum over one is that site's own"
MORE_SITES = "more sites in every round"
VISITS = "sums over fewer people than min_rows, if one person has several rows"
CHOSEN_WEIGHTS = "gradients at chosen weights: a unit that responds to one patient alone sends that patient's row"
NAMED_TOKENS = "rows of an embedding: a row says that some patient's text of the step has its token, such as a surname"
KNOWN_TEXTS = "which of all possible short texts each of a step's patients has: a gradient is a sum of known parts"
PRODUCTS = "products of columns: with few samples, single rows can be solved from them"


def refusal(
    field: str,
    asks: str,
    allows: str,
    change: dict[str, object],
    lets_out: str,
    *,
    code: str = "policy-refuses",
    owner: str = "",
) -> PolicyError:
    """Create the error for a run that its policy refuses.

    The sentence has this order: request, limit, what the owner could change, the policy line that would allow the run,
    what that line would disclose.
    """
    text = f"the run {asks}, but this site's policy allows {allows}{f', which {owner} would respect' if owner else ''}"
    return PolicyError(field, f"{text}; {_lines(change, lets_out)}", change=change, code=code, lets_out=lets_out)


def _lines(change: Mapping[str, object], lets_out: str) -> str:
    lines = " and ".join(f"{json.dumps(name)}: {json.dumps(value)}" for name, value in change.items())
    return f"{lines} in its policy {'lets' if len(change) == 1 else 'let'} out {lets_out}"


def enough(found: Sequence[PolicyError]) -> None:
    """Have each refusal of a policy name its lines as all of them together need them: else the next one refuses them.

    Args:
        found: as `refusals` returns them.
    """
    needed = {line: (value, error.lets_out) for error in found for line, value in error.change.items()}
    for error in found:
        change = {line: needed[line][0] for line in error.change}
        if change == error.change:
            continue
        lets_out = ", and ".join(dict.fromkeys(needed[line][1] for line in change))
        lines = _lines(error.change, error.lets_out), _lines(change, lets_out)
        error.reword(error.problem.replace(*lines), change, lets_out)


def refusals(check: Callable[[Policy], object], policy: Policy) -> list[PolicyError]:
    """Return all refusals by a policy, each with the earlier ones resolved."""
    found = list[PolicyError]()
    while True:
        try:
            check(policy)
        except PolicyError as error:
            found.append(error)
            mended = policy.mended(error.change)
            if mended == policy:
                return found
            policy = mended
        else:
            return found


def refuse_together(checks: Mapping[str, Callable[[Policy], object]], policies: Mapping[str, Policy]) -> None:
    """Check the policies of all sites, and raise one error for all refusals.

    Args:
        checks: by site; each raises the first refusal of a policy.
        policies: by site.

    Raises:
        PolicyError: the first refusal, with all of them in `quoted`.
    """
    found = list[PolicyError]()
    for site, check in checks.items():
        own = refusals(check, policies[site])
        enough(own)
        for error in own:
            error.site = site
        found += own
    if found:
        if len(found) > 1:
            found[0].quoted = tuple(f"{error.site}: {error}" for error in found)
        raise found[0]
