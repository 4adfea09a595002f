"""`rankdad policy init`: a first policy for the tables of a site, with the reasons in words."""

from __future__ import annotations

from pathlib import Path

from rankdad.common.data.files import tables_in
from rankdad.common.data.profile import Column, Kind, profile_of
from rankdad.common.data.table_files import TABLES, read_guessing
from rankdad.common.errors import DataError
from rankdad.common.policy import Policy
from rankdad.common.spec.patterns import escaped

MIN_SITES = 3  # of two, each learns the other's part
LEFT_OUT: dict[Kind, str] = {"id": "identifiers", "text": "free text", "empty": "without a value"}


def propose(data: Path) -> tuple[Policy, list[str]]:
    """Return a policy that lists what tables hold, and a paragraph for each of its lines that was chosen.

    Args:
        data: a table, or a folder of a site's tables.

    Raises:
        DataError: there is no table, or one cannot be read.
    """
    paths = [data] if data.is_file() else tables_in(data)
    if not paths:
        raise DataError(
            data,
            f"holds no table ({', '.join(TABLES)}): expected one hospital's folder, whose policy is its own",
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
    group = min(repeated, key=repeated.__getitem__, default=None)  # the coarsest: a patient's stays are his
    differ = len({frozenset(profile.by_name) for profile in profiles}) > 1
    joining = [name for name, own in found.items() if differ and kinds[name] == "id" and len(own) > 1]
    single = (name for name, own in found.items() if kinds[name] == "id" and max(column.most for column in own) == 1)
    key = None if group else next(single, None)  # by which the site's log knows its patients
    columns = [name for name in found if kinds[name] not in LEFT_OUT or name in (group, key, *joining)]
    policy = Policy(
        files=tuple(escaped(path.name) for path in paths),
        columns=tuple(map(escaped, columns)),
        group=group,
        min_sites=MIN_SITES,
    )
    return policy, _explained(policy, kinds, joining, columns, key)


def _kind(own: list[Column]) -> Kind:
    """Return what a column of one or several tables holds: what is to be left out, if it is that in one of them."""
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
        lines += [f"  Left out, as {what}: {', '.join(names)}."] * bool(names)
    dates = [name for name in columns if kinds[name] == "date"]
    lines += [f"  Dates, by which people can be recognised: {', '.join(dates)}. Remove what no study needs."] * bool(
        dates
    )
    if joining:
        lines.append(f"  {', '.join(joining)} is listed to join the tables: it stays here, as all identifiers do.")
    if key:
        lines.append(f"  {key} is listed as the key by which patients are known here in later studies: it stays here.")
    if policy.group is None:
        lines.append("group: no column names a person more than once, so that every row counts as one. Is that so?")
    else:
        lines.append(f"group: rows with the same {policy.group} are one person's, and a study has to count them so.")
        share = f"nobody has more than {policy.largest_share:.0%} of a part's rows, those beyond are left out"
        lines.append(f"largest_share: {share}.")
    return [
        *lines,
        f"min_sites: {policy.min_sites} hospitals or more train a model: of two, each learns the other's part.",
        f"min_rows: nothing leaves that fewer than {policy.min_rows} people stand behind.",
        "pretrained: no study begins with weights of another's making, which can be made to read single people.",
        "All this is guessed by names and values of columns: read the list before you sign it.",
        "What a study asks for beyond this is refused before any data are read. All other lines are the usual limits: "
        "docs/reference/policy.md says of each what it holds back.",
    ]
