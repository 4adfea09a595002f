"""Checks that all members' inputs give one run."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from rankdad.common.errors import UserError, visible
from rankdad.common.protocol.versions import check_versions
from rankdad.platforms.coinstac.form import FormError, Problem
from rankdad.platforms.coinstac.inputs import SPEC, Filled, read
from rankdad.platforms.coinstac.outputs import Failed, FromSite, Joined

AGAIN = "save Map again there, then start the run again"
OWN_NAME = "every site needs its own, in its JSON file"


def check_members(said: Mapping[str, FromSite]) -> dict[str, Joined]:
    """Return every member's message by client.

    Raises:
        FormError: with all problems of single members, each once.
    """
    joined = {client: one for client, one in said.items() if isinstance(one, Joined)}
    wrong = [_member(visible(client, 64), one.reason) for client, one in said.items() if isinstance(one, Failed)]
    at: dict[Problem, list[str]] = {}  # members by problem of the owner's fields
    for client, one in joined.items():
        who = one.site if one.site == client else f"{one.site} (member {client})"
        try:
            check_versions("it", dict(one), "the aggregator")
        except UserError as error:
            wrong.append(_member(who, str(error), error.code))
        for problem in one.problems:
            if problem.source == "owner":
                at.setdefault(problem, []).append(who)
            else:
                wrong.append(problem.model_copy(update={"text": problem.named(who), "source": "member"}))
    for problem, members in at.items():
        some = f" (at {', '.join(members)})" * (len(members) < len(said))  # members are named unless all have it
        wrong.append(problem.model_copy(update={"text": f"{problem.text}{some}"}))
    if not wrong and len(joined) < len(said):
        wrong.append(Problem(source="member", text="the sites are not in the same round", code="rounds-differ"))
    _raise(wrong)
    return joined


def _member(who: str, said: str, code: str = "site-failed") -> Problem:
    """Create a problem of a member."""
    return Problem(source="member", text=f"{who}: {said}", code=code)


def check_together(joined: Sequence[Joined]) -> Filled:
    """Return the owner's form if the members fit together.

    Raises:
        FormError: with every problem.
    """
    first, *others = joined
    filled, names = read(first.form), [one.site for one in joined]
    wrong = [
        _member(one.site, f"has other inputs of the owner than {first.site}: {AGAIN}", "forms-differ")
        for one in others
        if one.form != first.form
    ]
    wrong += filled.problems
    wrong += [
        _member(name, f"{names.count(name)} members have this name: {OWN_NAME}", "names-equal")
        for name in sorted(set(names))
        if names.count(name) > 1
    ]
    wrong += [
        SPEC.problem(f"federation.sites: {name} does not take part; {', '.join(names)} do", code="site-missing")
        for name in filled.sites
        if name not in names
    ]
    wrong += [
        _member(name, f"is not among the owner's sites ({', '.join(filled.sites)})", "site-unknown")
        for name in names
        if filled.sites and name not in filled.sites
    ]
    _raise(wrong)
    return filled


def _raise(wrong: Sequence[Problem]) -> None:
    if wrong:
        raise FormError(*dict.fromkeys(wrong))
