"""A schema guessed from hospitals' tables: which columns are inputs, and of what kind. Every guess is said."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rankdad.common.errors import DataError, UserError, counted
from rankdad.common.preparation.labels import one_sided
from rankdad.common.spec.patterns import escaped
from rankdad.common.spec.table_schema import COLUMN
from rankdad.local.data.cells import LIMIT
from rankdad.local.data.files import tables_in
from rankdad.local.data.profile import MAX_LEVELS, WORDS, Column, Profile, compared, ordered, profile_of
from rankdad.local.data.table_files import TABLES, read_guessing
from rankdad.local.data.tables import no_column

MANY_CLASSES = 10  # values of a label of whole numbers beyond which it is a number
MANY_VISITS = 20  # rows of one patient
MANY_NOTES = 5  # of what looks odd
SUSPICION = re.compile(r"-?[\d.]+ (stands in \d+|in every row)|its median")
SITE = re.compile(r"[a-z0-9][a-z0-9._-]{0,62}")


@dataclass(frozen=True)
class Hospital:
    """A folder of tables.

    Args:
        site: its name in a run.
        tables: profile of each, by file.
    """

    site: str
    tables: dict[Path, Profile]

    @property
    def columns(self) -> dict[str, Column]:
        """All tables' columns by name; the first table's where several have one."""
        return {name: column for own in reversed(self.tables.values()) for name, column in own.by_name.items()}

    @property
    def rows(self) -> int:
        """Rows of the smallest table."""
        return min(own.rows for own in self.tables.values())


@dataclass(frozen=True)
class Guess:
    """What was guessed.

    Args:
        data: the schema.
        task: what is predicted.
        notes: a sentence for each guess.
    """

    data: dict[str, Any]
    task: dict[str, Any]
    notes: tuple[str, ...]


def hospitals(data: Path) -> tuple[list[Hospital], tuple[str, ...], str | None]:
    """Read what lies in a table, or in a folder's folders.

    Returns:
        The hospitals (one, if it is a table), what is to be told, and the encoding that some file needs.

    Raises:
        DataError: there is no table, or one cannot be read.
    """
    if data.is_file():
        folders = {"": [data]}
    else:
        inner = [one for one in sorted(data.iterdir()) if one.is_dir()] if data.is_dir() else []
        folders = {one.name.lower(): files for one in inner if (files := tables_in(one))}
        for site in folders:
            if not SITE.fullmatch(site):
                raise DataError(
                    data / site,
                    "cannot be a site's name, expected a folder of a-z, 0-9, '.', '_' and '-'",
                    code="site-name-malformed",
                )
        if not folders:
            where = "holds no folder with a table" if data.is_dir() else "does not exist"
            raise DataError(
                data, f"{where}: expected a folder for each hospital, or the name of one table", code="no-table"
            )
    found, notes = list[Hospital](), list[str]()
    for site, files in folders.items():
        tables: dict[Path, Profile] = {}
        for path in files:
            table, guess = read_guessing(path)
            tables[path] = profile_of(table)
            notes += [f"{guess}; it stands in the spec now"] if guess else []
        found.append(Hospital(site, tables))
    return found, tuple(notes), "cp1252" if notes else None


def guess_schema(found: Sequence[Hospital], label: str, positive: str | None) -> Guess:
    """Guess a schema.

    Args:
        found: the hospitals.
        label: name of the column to be predicted.
        positive: rule for a label of numbers, such as "> 0".

    Raises:
        DataError: the label is not everywhere, or has one value alone; or tables do not belong together.
    """
    data, notes = _files(found)
    everywhere = [name for name in found[0].columns if all(name in one.columns for one in found)]
    for one in found:
        if label not in one.columns:
            raise no_column(" and ".join(map(str, one.tables)), label, list(one.columns))
    notes += [
        f"column {name} is no input: {one.site} has no such column"
        for one in found
        for name in dict.fromkeys(name for other in found for name in other.columns)
        if name not in one.columns
    ]
    task, values = _task(found, label, positive, notes)
    data |= {"label": label} | ({"values": values} if values else {}) | ({"positive": positive} if positive else {})
    _subjects(found, everywhere, data, notes)
    features: list[str] = []
    categorical: dict[str, list[str]] = {}
    tokens: dict[str, list[str]] = {}
    gaps: dict[str, float] = {}
    for name in everywhere:
        if name in (label, data.get("key"), data.get("group")):
            continue
        columns = [one.columns[name] for one in found]
        why = _no_input(name, found)
        if why:
            notes.append(f"column {name} is no input: {why}")
            continue
        features.append(escaped(name))
        if any(column.kind == "levels" for column in columns):
            levels = ordered({level for column in columns for level in (*column.levels, *column.others)})
            categorical[name] = levels
            notes += _spellings(name, found)
            words = sorted({word for column in columns for word in column.others})
            if words:
                notes.append(f"column {name}: {', '.join(words)} is taken for a level, not for a missing value")
        else:
            own = ordered({token for column in columns for token in column.others})
            if own:
                tokens[name] = own
                limits = any(map(LIMIT.fullmatch, own))
                said = "; a limit of detection is better written as a number, at every hospital" if limits else ""
                notes.append(f"column {name}: {', '.join(own[:5])} is read as missing (data.missing_values){said}")
        sign = -1 if name in categorical else 1  # words that are levels here, cells that are no numbers
        rows = sum(column.missing + sign * sum(column.others.values()) for column in columns)
        gaps[name] = rows / max(1, sum(one.rows for one in found))
    if not features:
        raise DataError(
            str(next(iter(found[0].tables))),
            "no column that all hospitals have is a number or categorical",
            code="no-column-in-common",
        )
    notes += _suspicions(found, features)
    data["features"] = features
    data |= {"categorical": categorical} if categorical else {}
    data |= {"missing_values": tokens} if tokens else {}
    lacking = {name: share for name, share in gaps.items() if share > 0}
    if lacking or any(one.columns[label].missing for one in found):
        data["missing"] = "impute"
        worst = sorted(lacking, key=lacking.__getitem__, reverse=True)[:5]
        some = ", ".join(f"{name} {lacking[name]:.0%}" for name in worst)
        notes.append(f"gaps are filled with the mean of all hospitals (missing: impute): {some or 'none among inputs'}")
    unlabelled = sum(one.columns[label].missing for one in found)
    if unlabelled:
        notes.append(f"{counted(unlabelled, 'row')} without a value of {label}: left out")
    return Guess(data, task, tuple(notes))


def _files(found: Sequence[Hospital]) -> tuple[dict[str, Any], list[str]]:
    """Return how a schema names the tables, and notes."""
    names = [tuple(path.name for path in one.tables) for one in found]
    data: dict[str, Any] = {"reader": "csv"}
    if all(len(own) == 1 for own in names):
        different = sorted({own[0] for own in names})
        if len(different) == 1:
            return data | {"file": different[0]}, []
        stems = {name.partition(".")[0] for name in different}
        endings = sorted({next(end for end in TABLES if name.lower().endswith(end)) for name in different})
        file = f"{stems.pop()}.*" if len(stems) == 1 else [f"*{end}" for end in endings]
        return data | {"file": file}, [
            f"the tables are called {', '.join(different)}: file is a pattern for all of them"
        ]
    if len(set(names)) > 1:
        odd = next(own for own in found if tuple(path.name for path in own.tables) != names[0])
        place = " and ".join(map(str, odd.tables))
        raise DataError(
            place,
            f"unlike {found[0].site}, which has {', '.join(names[0])}: expected one table a hospital",
            code="tables-several",
        )
    shared = [
        name
        for name in next(iter(found[0].tables.values())).by_name
        if all(name in own.by_name for one in found for own in one.tables.values())
    ]
    keys = [name for name in shared if all(_is_key(own, name) for one in found for own in one.tables.values())]
    if not keys:
        place = " and ".join(map(str, found[0].tables))
        raise DataError(
            place,
            "have no column in common that names every row once, by which they could be joined",
            code="no-key-in-common",
        )
    first, *others = sorted(names[0], key=lambda name: -len(_named(found[0], name).columns))
    notes = [f"{first} is joined with {', '.join(others)} by {keys[0]}"]
    covariates = others[0] if len(others) == 1 else others
    return data | {"file": first, "covariates": covariates, "key": keys[0]}, notes


def _named(hospital: Hospital, name: str) -> Profile:
    return next(own for path, own in hospital.tables.items() if path.name == name)


def _is_key(table: Profile, name: str) -> bool:
    column = table.by_name[name]
    return column.most == 1 and not column.missing


def _task(
    found: Sequence[Hospital], label: str, positive: str | None, notes: list[str]
) -> tuple[dict[str, Any], list[str]]:
    columns = [one.columns[label] for one in found]
    numbers = all(column.kind in ("number", "empty") and not column.others for column in columns)
    few = all(len(column.levels) == column.distinct for column in columns)
    values = ordered({level for column in columns for level in column.levels}) if few else []
    if positive is not None:
        for one, column in zip(found, columns, strict=True):
            if column.kind not in ("number", "empty") or column.others:
                where = " and ".join(map(str, one.tables))
                raise UserError(
                    f"--positive: column {label} of {where} holds more than numbers, which a rule is for",
                    code="rule-for-numbers",
                    field="--positive",
                )
        return {"name": "classification", "classes": 2}, ["no", "yes"]
    whole = all(float(value).is_integer() for value in values) if numbers else True
    if numbers and not (few and whole and len(values) <= MANY_CLASSES):
        notes.append(f"column {label} is taken for a number: the task is regression")
        return {"name": "regression"}, []
    place = str(next(iter(found[0].tables)))
    if not values:
        raise DataError(
            place,
            f"column {label} has more than {MAX_LEVELS} different values that are no numbers",
            code="too-many-classes",
            field=label,
        )
    if len(values) == 1:
        words = {word for column in columns for word in column.others if word.lower() in WORDS}
        also = "".join(f"; {word!r} counts as missing: write another word" for word in sorted(words))
        said = f"column {label} has the one value {values[0]} at every hospital: nothing to predict{also}"
        raise DataError(place, said, code="label-unusable")
    counts = Counter[str]()
    for column in columns:
        counts.update(column.levels)
    some = ", ".join(f"{value} ({counts[value]} rows)" for value in values)
    notes.append(f"column {label} is taken for {len(values)} classes: {some}")
    for one, column in zip(found, columns, strict=True):
        notes += one_sided([column.levels.get(value, 0) for value in values], one.site)
    if len(values) > 2 and numbers:
        notes.append(f'if only some or none of {label} matters, write init again with --positive "> {values[0]}"')
    return {"name": "classification", "classes": len(values)}, values


def _subjects(found: Sequence[Hospital], names: Iterable[str], data: dict[str, Any], notes: list[str]) -> None:
    """Find the column that names subjects: the key if each has one row, else the group."""
    if "key" in data:
        return
    for name in names:
        columns = [one.columns[name] for one in found]
        if name == data["label"] or not all(_names_patients(column) for column in columns):
            continue
        if all(column.most == 1 for column in columns):
            data["key"] = name
            notes.append(f"column {name} names the rows: it is the key, from which folds follow")
        else:
            data["group"] = name
            most = max(column.most for column in columns)
            notes.append(f"column {name} names up to {most} rows: it is the group, whose rows stay in one fold")
        return


def _names_patients(column: Column) -> bool:
    """Tell whether a column looks as if it named patients, each in few rows."""
    repeats = column.kind == "text" and 1 < column.most <= MANY_VISITS
    return not column.missing and (column.kind == "id" or repeats)


def _no_input(name: str, found: Sequence[Hospital]) -> str | None:
    """Return why a column is no input; None if it may be one."""
    known = {one.site or "the table": one.columns[name] for one in found if one.columns[name].kind != "empty"}
    kinds = {column.kind for column in known.values()}
    if not re.fullmatch(COLUMN, name):
        return "a spec cannot hold its name"
    if not kinds:
        return "it is empty everywhere"
    if "date" in kinds:
        first = min((column.dates[0] for column in known.values() if column.dates), default="2000-01-01")
        offer = f'"dates": {{"{name}": {{"since": "{first}"}}}}'
        return f"it holds dates; to make it one, name it in data.features and add to data {offer}"
    if "id" in kinds:
        return "it names rows"
    if "text" in kinds:
        return f"it holds more than {MAX_LEVELS} different texts"
    if len(kinds) > 1:
        places = ", ".join(f"{column.kind} at {site}" for site, column in known.items())
        return f"it holds {places}: make them alike"
    levels = {level for column in known.values() for level in (*column.levels, *column.others)}
    if kinds == {"levels"}:
        return (
            f"it has {len(levels)} levels"
            if len(levels) > MAX_LEVELS
            else None
            if len(levels) > 1
            else "it is constant"
        )
    spread = {column.numbers[end] for column in known.values() if column.numbers for end in ("least", "largest")}
    return None if len(spread) > 1 else "it is constant"


def _spellings(name: str, found: Sequence[Hospital]) -> list[str]:
    """Return what is to be said of levels that one of several hospitals has alone."""
    levels = {one.site: set(one.columns[name].levels) for one in found if one.columns[name].levels}
    alone = {
        site: ordered(own.difference(*(other for name, other in levels.items() if name != site)))
        for site, own in levels.items()
    }
    some = [f"{', '.join(own[:5])} at {site}" for site, own in alone.items() if own]
    if len(levels) < 2 or not some:
        return []
    return [f"column {name}: levels at one hospital alone: {'; '.join(some[:5])}: are they written in one way?"]


def _suspicions(found: Sequence[Hospital], features: Sequence[str]) -> list[str]:
    """Return what describe says of zeros, units and stand-ins for missing numbers."""
    merged = {one.site: Profile(one.site, one.rows, tuple(one.columns.values())) for one in found}
    said = [
        f"{site}: column {column.name}: {remark}" if site else f"column {column.name}: {remark}"
        for site, own in compared(merged).items()
        for column in own.columns
        for remark in column.remarks
        if escaped(column.name) in features and SUSPICION.match(remark)
    ]
    more = [f"{len(said) - MANY_NOTES} more columns look odd somewhere: rankdad describe shows them"]
    return said[:MANY_NOTES] + more * (len(said) > MANY_NOTES)
