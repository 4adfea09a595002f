"""What members have joined with: whether all of it makes one run."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from rankdad.common import __version__
from rankdad.common.errors import UserError, visible
from rankdad.platforms.coinstac.inputs import SPEC, Filled, read
from rankdad.platforms.coinstac.outputs import Failed, FromSite, Joined


def check_members(said: Mapping[str, FromSite]) -> dict[str, Joined]:
    """Return what every member has joined with, by client.

    Raises:
        UserError: with a line for everything that keeps single members from joining, each once.
    """
    joined = {client: one for client, one in said.items() if isinstance(one, Joined)}
    lines = [f"{visible(client, 64)}: {one.reason}" for client, one in said.items() if isinstance(one, Failed)]
    for client, one in joined.items():
        who = one.site if one.site == client else f"{one.site} (member {client})"
        if one.version != __version__:
            lines.append(f"{who}: runs rankdad {one.version}, the aggregator {__version__}: use one image")
        lines += [problem.named(who) for problem in one.problems]
    if not lines and len(joined) < len(said):
        lines.append("the sites are not in the same round")
    _raise(lines)
    return joined


def check_together(joined: Sequence[Joined]) -> Filled:
    """Return what the owner has filled in, if the members make one run of it.

    Raises:
        UserError: with a line for every problem.
    """
    first, *others = joined
    filled, names = read(first.form), [one.site for one in joined]
    lines = [
        f"{one.site}: has other inputs of the owner than {first.site}: save Map again there, then start the run again"
        for one in others
        if one.form != first.form
    ]
    lines += [problem.named() for problem in filled.problems]
    lines += [
        f"{name}: {names.count(name)} members have this name: every site needs its own, in its JSON file"
        for name in sorted(set(names))
        if names.count(name) > 1
    ]
    lines += [
        SPEC.problem(f"federation.sites: {name} does not take part; {', '.join(names)} do").named()
        for name in filled.sites
        if name not in names
    ]
    lines += [
        f"{name}: is not among the owner's sites ({', '.join(filled.sites)})"
        for name in names
        if filled.sites and name not in filled.sites
    ]
    _raise(lines)
    return filled


def _raise(lines: Sequence[str]) -> None:
    if lines:
        raise UserError("\n".join(dict.fromkeys(lines)), code="members-disagree")
