"""A site's refusals: what a run asks, what the policy allows, which line would let it in, and what that lets out."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence

from rankdad.common.errors import PolicyError
from rankdad.common.policy import Policy

WHOLE = "the whole gradient of a layer, of as high a rank as there are samples: a batch can be rebuilt from it"
MORE_ROWS = "more rows of a layer's gradient for each sample: the more, the easier samples are told apart"
FEWER_SAMPLES = "what fewer samples add up to: the fewer, the easier one is told apart, and of one it is the sample"
FEWER_SITES = "what fewer sites add up to: of two, each learns the other's part, and of one it is the site's own"
MORE_SITES = "more sites in every round"
VISITS = "sums of fewer people than min_rows, where several rows are one person's"
CHOSEN_WEIGHTS = (
    "what weights of another's making can be made to tell: a unit that answers to one patient alone sends their row"
)
PRODUCTS = "products of columns: of few samples these can be solved for single rows"


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
    """Return the error that says what a run asks, and what a policy allows.

    Then what the run's owner could change, and only then which line of the policy would, and what that lets out.
    """
    said = f"the run {asks}, but this site's policy allows {allows}{f', which {owner} would respect' if owner else ''}"
    return PolicyError(field, f"{said}; {_lines(change, lets_out)}", change=change, code=code, lets_out=lets_out)


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
        said = _lines(error.change, error.lets_out), _lines(change, lets_out)
        error.reword(error.problem.replace(*said), change, lets_out)


def refusals(check: Callable[[Policy], object], policy: Policy) -> list[PolicyError]:
    """Return all refusals of a policy: each as if those before it were mended."""
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
    """Check every site's policy, and refuse once: what is mended would else be refused for the next line, or site.

    Args:
        checks: raise a policy's first refusal, by site.
        policies: by site.

    Raises:
        PolicyError: the first refusal, below which all are quoted if there are several.
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
