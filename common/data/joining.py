"""Concatenates the rows of several files, and joins the columns of several tables."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from pathlib import Path

import pandas as pd

from rankdad.common.data.reading import (
    MISSING,
    shown,
    told_together,
)
from rankdad.common.data.tables import Table, holder
from rankdad.common.errors import DataError
from rankdad.common.spec.table_schema import spelling


def append(tables: Sequence[Table]) -> Table:
    """Concatenate tables from files in one folder.

    Raises:
        DataError: they do not have the same columns.
    """
    first, columns = tables[0], [name for name in tables[0].frame.columns if name]
    for table in tables[1:]:
        for whole, other in ((first, table), (table, first)):
            for name in whole.frame.columns:
                if name and name not in other.frame:
                    problem = f"has no column {shown(name)}, unlike {Path(whole.source).name}"
                    raise DataError(
                        other.source, f"{problem}: files of one table have the same columns", code="columns-differ"
                    )
    decimals = first.decimals
    for table in tables[1:]:
        decimals = decimals.union(table.decimals)

    def cells() -> pd.DataFrame:
        frames = {Path(table.source).name: table.cells() if table.cells else table.frame for table in tables}
        return pd.concat({name: frame[columns] for name, frame in frames.items()})

    if not all(table.cells for table in tables):
        return Table(first.source, cells(), first.written, decimals)
    frames = {Path(table.source).name: table.frame[columns] for table in tables}
    return Table(first.source, pd.concat(frames), first.written, decimals, cells=functools.cache(cells))


def join(
    tables: Sequence[Table], key: str, missing: str, form: Callable[[str], str] = str
) -> tuple[list[Table], tuple[str, ...], int]:
    """Return the rows with keys in all tables, in the order of the first.

    Args:
        tables: one, or several.
        key: the column.
        missing: "refuse" raises an error if a key is not in all tables; otherwise it is left out.
        form: normalises keys before comparison.

    Returns:
        The tables, with the key only in the first; notes on keys that were left out; their number.

    Raises:
        DataError: a key is missing, repeated in a table, or not in all tables.
    """
    positions = [keys_of(table, key, form) for table in tables]
    first, ours = tables[0], positions[0]
    everywhere, anywhere, notes = set(ours), set(ours), []
    for second, theirs in zip(tables[1:], positions[1:], strict=True):
        for table, own, other, others in ((first, ours, second, theirs), (second, theirs, first, ours)):
            alone = [row for found, row in own.items() if found not in others]
            if alone:
                named = table.ids(key)[alone[0]]
                problem = f"{len(alone)} of {len(own)} keys are not in {Path(other.source).name}"
                problem += f", the first is {shown(named)}"
                hint, code = _otherwise_written(named, others), "key-not-in-all"
                if missing == "refuse":
                    problem += "; complete the tables, or set data.missing to drop"
                    raise table.error(alone[0], key, problem, hint, code=code)
                notes.append(str(table.error(alone[0], key, f"{problem}; they are left out", hint, code=code)))
        if not ours.keys() & theirs and len(first) and len(second):
            problem = f"column {key}: no key is in {Path(second.source).name} too"
            hint = _otherwise_written(next(iter(ours)), theirs)
            raise DataError(first.source, problem, code="keys-disjoint", field=key, hint=hint)
        everywhere &= theirs.keys()
        anywhere |= theirs.keys()
    kept = [found for found in ours if found in everywhere]
    joined = [table.take([own[found] for found in kept]) for table, own in zip(tables, positions, strict=True)]
    rest = [replace(table, frame=table.frame.drop(columns=key)) for table in joined[1:]]
    return [joined[0], *rest], tuple(notes), len(anywhere) - len(kept)


def aligned(
    tables: Sequence[Table], key: str, refused: dict[int, DataError], form: Callable[[str], str] = str
) -> list[Table]:
    """Return tables with the rows of the first; rows are refused if their key is not in all tables exactly once.

    Args:
        tables: one, or several.
        key: the column.
        refused: reasons, by position.
        form: normalises keys before comparison.

    Raises:
        DataError: a table has no such column, or no rows.
    """
    first = replace(tables[0], refused=refused)
    keys = [form(text) for text in holder((first,), key).ids(key)]
    found = [first]
    for table in tables[1:]:
        places: dict[str, list[int]] = {}
        for row, text in enumerate(holder((replace(table, refused={}),), key).ids(key)):
            places.setdefault(form(text), []).append(row)
        if not len(table):
            raise DataError(table.source, "has no rows", code="no-rows")
        for row, name in enumerate(keys):
            if len(places.get(name, ())) != 1 or name.lower() in MISSING:
                if name.lower() in MISSING:
                    first.refuse(row, key, "is missing, expected a key", code="key-missing")
                    continue
                often, code = ("twice", "key-repeated") if name in places else ("not", "key-not-in-all")
                problem = f"{shown(name)} is {often} in {Path(table.source).name}"
                first.refuse(row, key, problem, _otherwise_written(name, places), code=code)
        rows = [places.get(name, [0])[0] for name in keys]
        found.append(replace(table, frame=table.frame.drop(columns=key).iloc[rows], refused=refused))
    return found


def _otherwise_written(key: str, others: Iterable[str]) -> str:
    """Return a hint about a different spelling of a key elsewhere; "" if there is none."""
    if key in others:
        return ""
    own = spelling(key)
    alike = next((other for other in others if spelling(other) == own), None)
    same = "if it is the same, write it alike; identifiers are compared as text"
    return "" if alike is None else f"; there is {shown(alike)}: {same}"


def told_apart(table: Table, column: str, ids: Sequence[str]) -> tuple[str, ...]:
    """Return a note on identifiers that may be one with two spellings; none if there are none."""
    return tuple(f"{table.source}: column {column}: {told}" for told in twice_written(ids))


def twice_written(ids: Iterable[str]) -> tuple[str, ...]:
    """Return a sentence about the first identifier that may have two spellings; none if there is none."""
    seen: dict[str, str] = {}
    for text in dict.fromkeys(ids):
        if (other := seen.setdefault(spelling(text), text)) != text:
            both = told_together((other, text))
            return (f"{both} are two, since identifiers are compared as text: if they are one, write it alike",)
    return ()


def keys_of(table: Table, key: str, form: Callable[[str], str] = str, several: str = "") -> dict[str, int]:
    """Return each key's position in a table.

    Args:
        table: to search.
        key: the column.
        form: normalises keys before comparison.
        several: remedy for a repeated key; by default that of rows of a table.

    Raises:
        DataError: a key is missing or repeated.
    """
    positions: dict[str, int] = {}
    for row, text in enumerate(holder((table,), key).ids(key)):
        if text.lower() in MISSING:
            raise table.error(row, key, "is missing, expected a key", code="key-missing")
        before = positions.setdefault(form(text), row)
        if before != row:
            file, place = table.place(before)
            other = f"{file.name}, {place}" if isinstance(table.frame.index, pd.MultiIndex) else place
            several = several or "; if rows may have it in common, take it for data.group and leave data.key out"
            raise table.error(row, key, f"{shown(text)} is also in {other}{several}", code="key-repeated")
    return positions
