"""Hospitals' tables in a folder: discovery, profiles, and their names in a schema."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from rankdad.common.data.files import left_out, places_of_sites, tables_in
from rankdad.common.data.joining import append
from rankdad.common.data.profile import Column, Profile, profile_of
from rankdad.common.data.table_files import TABLES, read_guessing
from rankdad.common.data.tables import Table
from rankdad.common.errors import DataError
from rankdad.common.spec.written import Written


@dataclass(frozen=True)
class Hospital:
    """A hospital's tables.

    Args:
        site: its name in a run; "" for one table to partition.
        tables: profile by file; tables with the same columns are joined under the first.
        files: names of all files.
    """

    site: str
    tables: dict[Path, Profile]
    files: tuple[str, ...]

    @property
    def columns(self) -> dict[str, Column]:
        """Columns of all tables by name; the first table's if several have one."""
        return {name: column for own in reversed(self.tables.values()) for name, column in own.by_name.items()}

    @property
    def profile(self) -> Profile:
        """All tables as one."""
        digest = " ".join(own.digest for own in self.tables.values())
        return Profile(self.site, self.rows, tuple(self.columns.values()), digest=digest)

    @property
    def rows(self) -> int:
        """Rows of the smallest table."""
        return min(own.rows for own in self.tables.values())

    @property
    def called(self) -> str:
        """Name in notes."""
        return self.site or "the table"

    def holding(self, column: str) -> str:
        """Return the file with a column; all files if none has it."""
        return next((str(path) for path, own in self.tables.items() if column in own.by_name), self.place)

    @property
    def place(self) -> str:
        """Its files, for errors."""
        return " and ".join(map(str, self.tables))


@dataclass(frozen=True)
class Consortium:
    """The contents of a table or folder.

    Args:
        hospitals: the hospitals; a single one for a table.
        table: the table to partition at random, or None.
        written: format of all tables.
        notes: notes for the user.
    """

    hospitals: tuple[Hospital, ...]
    table: Path | None
    written: Written = field(default=Written())
    notes: tuple[str, ...] = ()


def read_hospitals(data: Path, written: Written) -> Consortium:
    """Read a table, or a folder with a folder, or a table, for each hospital.

    Args:
        data: the table or folder.
        written: known format of the tables.

    Raises:
        DataError: there is no table, or one cannot be read.
    """
    if not data.exists():
        text = "does not exist: expected a folder with a folder for each hospital, or a table"
        raise DataError(data, text, code="data-missing", field="DATA")
    places, notes = {"": data}, list[str]()
    if data.is_dir():
        places = dict[str, Path](places_of_sites(data))
        if not places and len(alone := tables_in(data)) == 1:
            places = {"": alone[0]}
        for error in left_out(data):
            if error.code == "format-unexpected":
                raise error
            notes.append(str(error))
        renamed = [f"{place.name} is {site}" for site, place in places.items() if site and place.name.lower() != site]
        if renamed:
            notes.append(
                f"sites have the names of their files or folders, or the parts that differ: {', '.join(renamed[:20])}"
            )
    if not places:
        text = f"has no table ({', '.join(TABLES)}), nor a folder with one: expected a folder for each hospital"
        raise DataError(data, text, code="data-missing", field="DATA")
    found, guessed = list[Hospital](), False
    for site, place in places.items():
        tables: dict[Path, Table] = {}
        for path in tables_in(place) if place.is_dir() else [place]:
            tables[path], guess = read_guessing(path, written)
            if not len(tables[path]):
                raise DataError(path, "has no rows: expected one for each sample", code="table-empty")
            notes += [f"{guess}; it is in the spec now"] if guess else []
            guessed |= guess is not None
        files = tuple(path.name for path in tables)
        if len(tables) > 1 and len({frozenset(table.frame.columns) for table in tables.values()}) == 1:
            notes.append(f"{site}: {', '.join(files[:10])} have the same columns: they are read as one table")
            tables = {next(iter(tables)): append(list(tables.values()))}
        profiles = {path: profile_of(table) for path, table in tables.items()}
        for path, profile in profiles.items():
            for remark in (remark for remark in profile.remarks if remark.code == "row-of-totals"):
                raise DataError(path, remark.text, code=remark.code, row=remark.row)
        found.append(Hospital(site, profiles, files))
    written = written.model_copy(update={"encoding": "cp1252"}) if guessed else written
    found = _with_results(found)
    return Consortium(tuple(found), None if found[0].site else next(iter(found[0].tables)), written, tuple(notes))


def _with_results(found: Sequence[Hospital]) -> list[Hospital]:
    """Treat a code such as - as a level in columns where another hospital has it as a level."""
    levels: dict[str, set[str]] = {}
    for one in found:
        for name, column in one.columns.items():
            levels.setdefault(name, set()).update(column.levels)

    def read(column: Column) -> Column:
        counts = {code: count for code, count in column.codes.items() if code in levels[column.name]}
        if not counts or column.kind not in ("levels", "empty"):
            return column
        rows, kept = sum(counts.values()), {code: n for code, n in column.codes.items() if code not in counts}
        both = {**column.levels, **counts}
        return replace(
            column, kind="levels", levels=both, codes=kept, distinct=len(both), most=max(both.values()),
            missing=column.missing - rows, known=column.known + rows,
        )  # fmt: skip

    return [
        replace(
            one, tables={path: replace(own, columns=tuple(map(read, own.columns))) for path, own in one.tables.items()}
        )
        for one in found
    ]


def named_files(found: Sequence[Hospital]) -> tuple[dict[str, Any], list[str]]:
    """Return the schema's fields for the hospitals' tables, and notes.

    Raises:
        DataError: they do not belong together.
    """
    data: dict[str, Any] = {"reader": "csv"}
    if all(len(one.tables) == 1 for one in found):
        different = sorted({name for one in found for name in one.files})
        if len(different) == 1:
            return data | {"file": different[0]}, []
        stems = {name.partition(".")[0] for name in different}
        endings = sorted({next(end for end in TABLES if name.lower().endswith(end)) for name in different})
        alone = len(stems) == 1 and all(len(one.files) == 1 for one in found)
        file = f"{stems.pop()}.*" if alone else [f"*{end}" for end in endings]
        return data | {"file": file}, [
            f"the tables are called {', '.join(different)}: file is a pattern for all of them"
        ]
    names = found[0].files
    odd = next((one for one in found if one.files != names or len(one.tables) != len(names)), None)
    if odd is not None:
        problem = f"unlike {found[0].site}, which has {', '.join(names)}: expected one table a hospital"
        raise DataError(odd.place, problem, code="tables-differ", field="data.file")
    shared = [
        name
        for name in next(iter(found[0].tables.values())).by_name
        if all(name in own.by_name for one in found for own in one.tables.values())
    ]
    keys = [name for name in shared if all(_is_key(own, name) for one in found for own in one.tables.values())]
    if not keys:
        problem = "have no common column that identifies every row, by which they could be joined"
        raise DataError(found[0].place, problem, code="key-missing", field="data.key")
    first, *others = sorted(names, key=lambda name: -len(_named(found[0], name).columns))
    notes = [f"{first} is joined with {', '.join(others)} by {keys[0]}"]
    covariates = others[0] if len(others) == 1 else others
    return data | {"file": first, "covariates": covariates, "key": keys[0]}, notes


def _named(hospital: Hospital, name: str) -> Profile:
    return next(own for path, own in hospital.tables.items() if path.name == name)


def _is_key(table: Profile, name: str) -> bool:
    column = table.by_name[name]
    return column.most == 1 and not column.missing
