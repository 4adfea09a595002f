"""The profile of a member's table for the run.

A table's cells stay at its site. Only names of numeric columns leave it, and values of the label and categorical
columns that enough rows have.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated, Any

import pandas as pd
from pydantic import AfterValidator, Field

from rankdad.common.data.columns import all_columns
from rankdad.common.data.files import read_one
from rankdad.common.data.identifiers import names_patients
from rankdad.common.data.levels import ordered, respelled
from rankdad.common.data.profile import MAX_LEVELS, profile_of
from rankdad.common.data.reading import MISSING
from rankdad.common.data.table_files import read_table
from rankdad.common.data.tables import Table, nearest
from rankdad.common.documents import Part, validate
from rankdad.common.errors import DataError
from rankdad.common.spec.data import CsvData, FreesurferData, resolve_features
from rankdad.common.spec.patterns import literal
from rankdad.common.spec.table_schema import COLUMN, Column, Level, canonical
from rankdad.platforms.coinstac.fields import FIELDS
from rankdad.platforms.coinstac.form import FormError
from rankdad.platforms.coinstac.inputs import Filled

MAX_ROWS = 10**7
MIXED_SHARE = 0.5  # share of numbers in a column above which other cells count as mistakes
TOO_MANY = f"has more than {MAX_LEVELS} different values: choose another column, or regression if they are numbers"
TEXT = "it holds text; if it is categorical, the owner can name it under Categorical columns"
MIXED = "most of its cells are numbers, but not all: fix them, or leave the column out with a minus sign"
IDENTIFIER = "it appears to be an identifier; the owner can name it under Columns of the inputs"


def _printable(level: str) -> str:
    if not level.isprintable():
        raise ValueError("expected a value without control characters")
    return level


Shown = Annotated[Level, AfterValidator(_printable)]
Levels = Annotated[tuple[Shown, ...], Field(max_length=1000)]


class Profile(Part):
    """Properties of a member's table."""

    rows: Annotated[int, Field(ge=0, le=MAX_ROWS)] = 0
    """Rows with a label."""
    min_rows: Annotated[int, Field(ge=1, le=MAX_ROWS)] = 1
    """Minimum rows of any disclosure by the member."""
    columns: Annotated[tuple[Column, ...], Field(max_length=100_000)] = ()
    """Columns that patterns may match, in the table's order."""
    levels: Annotated[dict[Column, Levels], Field(max_length=1000)] = Field(default={})
    """Values of columns without values in the form."""
    stand_ins: Annotated[dict[Column, Levels], Field(max_length=1000)] = Field(default={})
    """Numbers that may be codes of missing values, such as -9."""


@dataclass(frozen=True)
class Description:
    """A member's table as described for the form.

    Args:
        whole: its complete profile.
        public: the part that may leave the site, without values of fewer than `min_rows` rows.
        notes: notes for the member itself.
    """

    whole: Profile
    public: Profile
    notes: tuple[str, ...] = ()


def describe(filled: Filled, data: Path, min_rows: int) -> Description:
    """Describe a table for the run.

    Args:
        filled: the form.
        data: the table, or the folder of a whole specification's files.
        min_rows: minimum rows of any disclosure.

    Raises:
        DataError: the table is missing or unreadable.
        FormError: the form does not fit the table.
    """
    if filled.whole:
        profile = Profile(min_rows=min_rows, columns=_open_columns(filled.draft["data"], data))
        codes = _codes(filled.draft["data"], data)
        public = profile.model_copy(update={"stand_ins": _told(codes, min_rows)})
        return Description(profile.model_copy(update={"stand_ins": _told(codes)}), public, _code_notes(data, codes))
    table = read_table(data)
    if not len(table):
        raise DataError(data, "has no rows", code="no-rows")
    texts: pd.DataFrame = table.frame.loc[:, [name for name in table.frame.columns if name]]
    _check_columns(filled, data, texts)
    missing: pd.DataFrame = texts.apply(lambda column: column.str.lower().isin(MISSING))
    counts = _count_levels(filled, data, texts, missing)
    label, features, categorical = (filled.values[name] for name in ("label", "features", "categorical"))
    others = texts.columns.difference([*label.names, *categorical.names], sort=False)
    columns, left_out = _numbers(texts[others], missing[others], identifiers=bool(features.names))
    notes: tuple[str, ...] = ()
    named = [*label.names, *features.names, *categorical.names]
    if not features.names or any(map(_has_wildcard, features.names)):
        named += columns
        mixed = [name for name, why in left_out.items() if why == MIXED and name not in features.excluded]
        if mixed:
            which = f"{data.name}: {', '.join(mixed)}"
            raise FormError(FIELDS["features"].problem(f"columns: {MIXED}", which, member=True, code="mixed-column"))
        notes = tuple(f"{data.name}: column {name} is no input: {why}" for name, why in left_out.items())
    stand_ins = _stand_ins(table, texts.columns.intersection(named, sort=False))
    notes += _code_notes(data, stand_ins)
    labelled = int((~missing[label.names[0]]).sum())

    def told(min_count: int) -> Profile:
        levels = {name: tuple(value for value in rows if rows[value] >= min_count) for name, rows in counts.items()}
        codes = _told(stand_ins, min_count)
        return Profile(rows=labelled, min_rows=min_rows, columns=columns, levels=levels, stand_ins=codes)

    return Description(told(0), told(min_rows), notes)


def _stand_ins(table: Table, names: Iterable[str]) -> dict[str, Mapping[str, int]]:
    """Return numbers that may be codes of missing values, by column, with their numbers of rows."""
    held = profile_of(replace(table, frame=table.frame[[*names]])).columns
    return {column.name: column.stand_ins for column in held if column.stand_ins}


def _told(codes: Mapping[str, Mapping[str, int]], min_count: int = 0) -> dict[str, tuple[str, ...]]:
    told = {name: tuple(code for code, rows in own.items() if rows >= min_count) for name, own in codes.items()}
    return {name: own for name, own in told.items() if own}


def _code_notes(data: Path, codes: Mapping[str, Mapping[str, int]]) -> tuple[str, ...]:
    return tuple(
        f"{data.name}: {missing_code(name, code)} ({rows} rows)"
        for name, own in codes.items()
        for code, rows in own.items()
    )


def _codes(data: Mapping[str, Any], folder: Path) -> dict[str, Mapping[str, int]]:
    """Return unlisted codes of missing values in the table of a whole specification."""
    if data.get("reader") != "csv":
        return {}
    schema = validate(CsvData, data)
    table = read_table(folder, schema) if folder.is_file() else read_one(folder, schema.file, schema)[0]
    columns = [str(name) for name in table.frame.columns]
    used = {*map(literal, resolve_features(schema, columns).features), *schema.targets}
    return _stand_ins(table, [name for name in columns if name in used])


def missing_code(column: str, code: str) -> str:
    """Return a warning about a number that may be a code of missing values."""
    return (
        f"column {column} has {code} in some rows, far from all other values: if it means missing, leave these cells "
        "empty, and start the run again"
    )


def _open_columns(data: Mapping[str, Any], folder: Path) -> tuple[str, ...]:
    """Return all columns of a folder's tables if a whole specification has patterns."""
    if data.get("reader") not in ("csv", "freesurfer"):
        return ()
    schema = validate(CsvData if data["reader"] == "csv" else FreesurferData, data)
    return tuple(name for name in all_columns(schema, folder) if re.fullmatch(COLUMN, name)) if schema.patterns else ()


def _has_wildcard(name: str) -> bool:
    return "*" in name or "?" in name


def _check_columns(filled: Filled, data: Path, texts: pd.DataFrame) -> None:
    """Check that a table has all columns in the form."""
    problems = [
        FIELDS[field].problem(
            f"there is no column {name}",
            f"{data.name}{nearest(name, list(texts.columns))}",
            member=True,
            code="column-missing",
        )
        for field in ("label", "features", "categorical")
        for name in filled.values[field].names
        if name not in texts and not _has_wildcard(name)
    ]
    if problems:
        raise FormError(*problems)


def _count_levels(filled: Filled, data: Path, texts: pd.DataFrame, missing: pd.DataFrame) -> dict[str, dict[str, int]]:
    """Count the rows of each value, for columns without values in the form."""
    fields = ("categorical",) if filled.values["task"] == "regression" else ("label", "categorical")
    counts: dict[str, dict[str, int]] = {}
    problems = []
    for field in fields:
        for name in filled.values[field].names:
            if filled.values[field].values.get(name):
                continue
            levels = texts[name][~missing[name]].map(canonical).value_counts()
            counts[name] = {level: int(levels[level]) for level in ordered(map(str, levels.index))}
            if len(levels) > MAX_LEVELS:
                said = f"column {name} {TOO_MANY}"
                problems.append(FIELDS[field].problem(said, data.name, member=True, code="too-many-values"))
            elif ways := respelled(counts[name]):
                said = f"column {name} has values that differ only in how they are written"
                which = "; ".join(", ".join(f"{way!r} in {counts[name][way]} rows" for way in one) for one in ways)
                code = "values-spelled-apart"
                problems.append(FIELDS[field].problem(f"{said}: write them alike", which, member=True, code=code))
    if problems:
        raise FormError(*problems)
    return counts


def _numbers(
    texts: pd.DataFrame, missing: pd.DataFrame, *, identifiers: bool
) -> tuple[tuple[str, ...], dict[str, str]]:
    """Return columns of numbers, and the reason for omitting each of the others.

    Args:
        texts: cells by column.
        missing: mask of missing cells.
        identifiers: whether to keep columns that look like identifiers.
    """
    left_out: dict[str, str] = {}
    counted = [*range(len(texts))], [*range(1, len(texts) + 1)]
    for name in texts.columns:
        numbers = pd.to_numeric(texts[name][~missing[name]], errors="coerce")
        finite = numbers.map(math.isfinite)
        if not re.fullmatch(COLUMN, name):
            left_out[name] = "a spec cannot hold its name"
        elif numbers.empty:
            left_out[name] = "it is empty"
        elif not finite.all():
            left_out[name] = MIXED if finite.mean() >= MIXED_SHARE else TEXT
        elif not identifiers and names_patients(name, texts[name][~missing[name]].tolist(), numbers.to_numpy(float)):
            left_out[name] = IDENTIFIER
        elif not identifiers and len(texts) > 2 and numbers.tolist() in counted:
            left_out[name] = "it counts the rows"
    return tuple(name for name in texts.columns if name not in left_out), left_out
