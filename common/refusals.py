"""Refusals of runs by a site's policy, and what a changed policy would disclose."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping

from rankdad.common.errors import PolicyError
from rankdad.common.policy import Policy

WHOLE = "the whole gradient of a layer, with a rank up to the number of samples: a batch can be rebuilt from it"
MORE_ROWS = "more rows of a layer's gradient per sample: the more rows, the easier it is to separate samples"
FEWER_SAMPLES = "sums over fewer samples: the fewer, the easier it is to single one out; a sum over one is the sample"
FEWER_SITES = "sums over fewer sites: of two, each learns the other's part; a sum over one is that site's own"
MORE_SITES = "more sites in every round"
VISITS = "sums over fewer people than min_rows, if one person has several rows"
CHOSEN_WEIGHTS = "gradients at chosen weights: a unit that responds to one patient alone sends that patient's row"
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
    lines = " and ".join(f"{json.dumps(name)}: {json.dumps(value)}" for name, value in change.items())
    lets = "lets" if len(change) == 1 else "let"
    sentence = (
        f"the run {asks}, but this site's policy allows {allows}{f', which {owner} would respect' if owner else ''}; "
    )
    sentence += f"{lines} in its policy {lets} out {lets_out}"
    return PolicyError(field, sentence, change=change, code=code, lets_out=lets_out)


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
        for error in refusals(check, policies[site]):
            error.site = site
            found.append(error)
    if found:
        if len(found) > 1:
            found[0].quoted = tuple(f"{error.site}: {error}" for error in found)
        raise found[0]
