"""`rankdad policy init`: a first policy for a site's tables, with an explanation."""

from __future__ import annotations

from pathlib import Path

from rankdad.common.data.files import tables_in
from rankdad.common.data.profile import Column, Kind, profile_of
from rankdad.common.data.table_files import TABLES, read_guessing
from rankdad.common.errors import DataError
from rankdad.common.policy import Policy
from rankdad.common.spec.patterns import escaped

MIN_SITES = 3  # with two, each learns the other's part
LEFT_OUT: dict[Kind, str] = {"id": "identifiers", "text": "free text", "empty": "no values"}


def propose(data: Path) -> tuple[Policy, list[str]]:
    """Propose a policy for the tables of a site, with lines that explain it.

    Args:
        data: a table, or a folder of a site's tables.

    Raises:
        DataError: there is no table, or one cannot be read.
    """
    paths = [data] if data.is_file() else tables_in(data)
    if not paths:
        raise DataError(
            data,
            f"holds no table ({', '.join(TABLES)}): expected the folder of one hospital",
            code="data-missing",
            field="DATA",
        )
    profiles = [profile_of(read_guessing(path)[0]) for path in paths]
    found = dict[str, list[Column]]()
    for column in (column for profile in profiles for column in profile.columns):
        found.setdefault(column.name, []).append(column)
    kinds = {name: _kind(own) for name, own in found.items()}
    repeated = {
        name: sum(column.distinct for column in own)
        for name, own in found.items()
        if kinds[name] == "id" and max(column.most for column in own) > 1
    }
    group = min(repeated, key=repeated.__getitem__, default=None)  # the coarsest: patients, not their stays
    differ = len({frozenset(profile.by_name) for profile in profiles}) > 1
    joining = [name for name, own in found.items() if differ and kinds[name] == "id" and len(own) > 1]
    single = (name for name, own in found.items() if kinds[name] == "id" and max(column.most for column in own) == 1)
    key = None if group else next(single, None)  # identifies patients in the disclosure log
    columns = [name for name in found if kinds[name] not in LEFT_OUT or name in (group, key, *joining)]
    policy = Policy(
        files=tuple(escaped(path.name) for path in paths),
        columns=tuple(map(escaped, columns)),
        group=group,
        min_sites=MIN_SITES,
    )
    return policy, _explained(policy, kinds, joining, columns, key)


def _kind(own: list[Column]) -> Kind:
    """Return the kind of a column in one or several tables; a kind of LEFT_OUT in any table takes precedence."""
    kinds = [column.kind for column in own if column.kind != "empty"]
    return next((kind for kind in kinds if kind in LEFT_OUT), kinds[0] if kinds else "empty")


def _explained(
    policy: Policy, kinds: dict[str, Kind], joining: list[str], columns: list[str], key: str | None
) -> list[str]:
    lines = [
        f"files: a study may read {', '.join(policy.files or ())}, and no other file. A study of hospitals whose files "
        "have other names asks for a pattern, such as *.csv, and is refused until that is listed, too.",
        f"columns: a study may read these {len(columns)} of {len(kinds)} columns, and no other: {', '.join(columns)}.",
    ]
    for kind, what in LEFT_OUT.items():
        names = [name for name, own in kinds.items() if own == kind and name not in columns]
        lines += [f"  Left out ({what}): {', '.join(names)}."] * bool(names)
    if dates := [name for name in columns if kinds[name] == "date"]:
        lines.append(f"  Dates can identify people: {', '.join(dates)}. Remove those that no study needs.")
    if joining:
        lines.append(f"  {', '.join(joining)} is listed to join the tables. Identifiers do not leave the hospital.")
    if key:
        lines.append(f"  {key} is listed to identify patients across studies. It does not leave the hospital.")
    if policy.group is None:
        lines.append("group: no column repeats a person's identifier, so each row counts as one person. Check this.")
    else:
        lines.append(f"group: rows with the same {policy.group} count as one person, in every study.")
        share = f"at most {policy.largest_share:.0%} of a part's rows may be one person's; further rows are left out"
        lines.append(f"largest_share: {share}.")
    return [
        *lines,
        f"min_sites: at least {policy.min_sites} hospitals train a model. With two, each could learn the other's part.",
        f"min_rows: nothing leaves that comes from fewer than {policy.min_rows} people.",
        "pretrained: no study may start from weights of others. Such weights can be made to reveal single people.",
        "Names and values of columns decided what is listed: read the list before you approve it.",
        "A study that asks for more is refused before any data are read. All other lines are defaults; "
        "docs/reference/policy.md explains each.",
    ]
