"""What a draft of the run lacks, from what all members' tables say: columns, classes, levels, the batch size.

A table's cells stay at its site. What leaves it are names of columns of numbers, and values of the label and of
categorical columns that enough of its rows have.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import pandas as pd
from pydantic import AfterValidator, Field

from rankdad.common.columns import COLUMN, Column, Level, canonical
from rankdad.common.data import CsvData, FreesurferData, TableData, resolve_features
from rankdad.common.documents import Part, validate
from rankdad.common.errors import DataError, SpecError, UserError
from rankdad.common.patterns import is_pattern, literal
from rankdad.common.spec import RunSpec
from rankdad.platforms.coinstac.fields import FIELDS
from rankdad.platforms.coinstac.form import Columns, Problem
from rankdad.platforms.coinstac.inputs import SITES, Filled, with_sites

MAX_LEVELS = 20  # values of a column beyond which nobody meant it to be categorical
BATCH = 32  # rows of the largest member in a step
SPARE = 1.3  # rows of the smallest member in a step over what its policy asks for: splits are not exact


TOO_MANY = f"has more than {MAX_LEVELS} different values: choose another column, or regression if they are numbers"
NAMED = "to name them yourself, write diagnosis = benign | malignant"
MAX_ROWS = 10**7
MIXED_SHARE = 0.5  # of a column's cells that are numbers: then the others are mistakes
TEXT = "it holds text; if it is categorical, the owner can name it under Categorical columns"
MIXED = "most of its cells are numbers, but not all: mend them, or leave the column out with a minus sign"


def _printable(level: str) -> str:
    if not level.isprintable():
        raise ValueError("expected a value without control characters")
    return level


Shown = Annotated[Level, AfterValidator(_printable)]
Levels = Annotated[tuple[Shown, ...], Field(max_length=1000)]


class Profile(Part):
    """What a member's table says about the run."""

    rows: Annotated[int, Field(ge=0, le=MAX_ROWS)] = 0
    """Rows that have a label."""
    min_rows: Annotated[int, Field(ge=1, le=MAX_ROWS)] = 1
    """Fewest rows behind anything that leaves the member."""
    columns: Annotated[tuple[Column, ...], Field(max_length=100_000)] = ()
    """Columns for which a pattern may stand, in the table's order."""
    levels: Annotated[dict[Column, Levels], Field(max_length=1000)] = Field(default={})
    """Values of columns whose values nobody named."""

    def told(self, counts: Mapping[str, Mapping[str, int]]) -> Profile:
        """Return what of it may leave the site: no value that fewer rows than `min_rows` have."""
        levels = {
            name: tuple(level for level in found if counts[name][level] >= self.min_rows)
            for name, found in self.levels.items()
        }
        return self.model_copy(update={"levels": levels})


@dataclass(frozen=True)
class Described:
    """A member's table in the light of the form.

    Args:
        own: what it says.
        told: what of that may leave the site.
        problems: with the form.
        notes: for its own member.
    """

    own: Profile
    told: Profile
    problems: tuple[Problem, ...] = ()
    notes: tuple[str, ...] = ()


def describe(filled: Filled, data: Path, min_rows: int) -> Described:
    """Return what a table says about the run.

    Args:
        filled: the form.
        data: the table, or the folder of a whole specification's files.
        min_rows: fewest rows behind anything that leaves.

    Raises:
        DataError: there is no readable table.
    """
    if filled.whole:
        profile = Profile(min_rows=min_rows, columns=_known_columns(filled.draft["data"], data))
        return Described(profile, profile)
    from rankdad.local.data.table_files import read_table

    table = read_table(data)
    if not len(table):
        raise DataError(data, "has no rows")
    texts: pd.DataFrame = table.frame.loc[:, [name for name in table.frame.columns if name]]
    missing = _missing(texts)
    asked = {name: filled.values[name] or Columns() for name in ("label", "features", "categorical")}
    problems = [
        FIELDS[field].problem(f"{data.name} has no column {name}", _nearest(name, texts), member=True)
        for field, columns in asked.items()
        for name in columns.names
        if name not in texts and not ("*" in name or "?" in name)
    ]
    if problems:
        return Described(Profile(), Profile(), tuple(problems))
    (label,) = asked["label"].names
    counts: dict[str, dict[str, int]] = {}
    for field in ("label", "categorical"):
        if field == "label" and filled.values["task"] == "regression":
            continue
        for name in asked[field].names:
            if not (asked[field].values or {}).get(name):
                counts[name] = _counts(texts[name][~missing[name]])
                if len(counts[name]) > MAX_LEVELS:
                    problems.append(FIELDS[field].problem(f"column {name} of {data.name} {TOO_MANY}", member=True))
    if problems:
        return Described(Profile(), Profile(), tuple(problems))
    others = texts.columns.difference([label, *asked["categorical"].names], sort=False)
    columns, left_out = _numbers(texts[others], missing[others], identifiers=bool(asked["features"].names))
    mixed = [name for name, why in left_out.items() if why == MIXED and name not in asked["features"].excluded]
    patterns = not asked["features"].names or any("*" in name or "?" in name for name in asked["features"].names)
    notes = tuple(f"{data.name}: column {name} is no input: {why}" for name, why in left_out.items() if patterns)
    if mixed and patterns:
        said = (f"column {name} of {data.name}: {MIXED}" for name in mixed)
        return Described(
            Profile(), Profile(), tuple(FIELDS["features"].problem(one, member=True) for one in said), notes
        )
    levels = {name: tuple(found) for name, found in counts.items()}
    own = Profile(rows=int((~missing[label]).sum()), min_rows=min_rows, columns=columns, levels=levels)
    return Described(own, own.told(counts), notes=notes)


def _known_columns(data: Mapping[str, Any], folder: Path) -> tuple[str, ...]:
    """Return all columns of a folder's tables, where a whole specification has patterns of them."""
    from rankdad.local.data.columns import all_columns

    if data.get("reader") not in ("csv", "freesurfer"):
        return ()
    schema = validate(CsvData if data["reader"] == "csv" else FreesurferData, data)
    return tuple(name for name in all_columns(schema, folder) if re.fullmatch(COLUMN, name)) if schema.patterns else ()


def _missing(texts: pd.DataFrame) -> pd.DataFrame:
    from rankdad.local.data.reading import MISSING

    missing: pd.DataFrame = texts.apply(lambda column: column.str.lower().isin(MISSING))
    return missing


def _nearest(name: str, texts: pd.DataFrame) -> str:
    from rankdad.local.data.tables import nearest

    return nearest(name, list(texts.columns)).removeprefix("; ")


def _counts(cells: pd.Series[str]) -> dict[str, int]:
    counts = cells.map(canonical).value_counts()
    return {level: int(counts[level]) for level in ordered(map(str, counts.index))}


def _numbers(
    texts: pd.DataFrame, missing: pd.DataFrame, *, identifiers: bool
) -> tuple[tuple[str, ...], dict[str, str]]:
    """Return columns that hold numbers, and why each of the others is left out.

    Args:
        texts: cells by column.
        missing: which of them are.
        identifiers: whether columns that look like identifiers stay.
    """
    from rankdad.local.data.profile import is_identifier

    kept: list[str] = []
    left_out: dict[str, str] = {}
    counted = [*range(len(texts))]
    for name in texts.columns:
        numbers = pd.to_numeric(texts[name][~missing[name]], errors="coerce")
        if not re.fullmatch(COLUMN, name):
            left_out[name] = "a spec cannot hold its name"
        elif numbers.empty:
            left_out[name] = "it is empty"
        elif not numbers.map(math.isfinite).all():
            share = numbers.map(math.isfinite).mean()
            left_out[name] = MIXED if share >= MIXED_SHARE else TEXT
        elif not identifiers and is_identifier(name):
            left_out[name] = "its name is that of an identifier; the owner can name it under Columns of the inputs"
        elif not identifiers and len(texts) > 2 and numbers.tolist() in (counted, [*range(1, len(texts) + 1)]):
            left_out[name] = "it counts the rows"
        else:
            kept.append(name)
    return tuple(kept), left_out


def complete(filled: Filled, profiles: Mapping[str, Profile]) -> tuple[dict[str, Any], list[Problem], list[str]]:
    """Return a draft with what it lacked, what is wrong with it, and what the owner should be told.

    Args:
        filled: the form.
        profiles: of the members' tables, by site.
    """
    draft: dict[str, Any] = json.loads(json.dumps(filled.draft))
    data: dict[str, Any] = draft["data"]
    problems: list[Problem] = []
    warnings: list[str] = []
    if not filled.whole:
        for name in data["categorical"]:
            data["categorical"][name] = data["categorical"][name] or _union(profiles.values(), name)
            if not data["categorical"][name]:
                said = (
                    f"column {name} has no value in enough rows of any member; to name its values, write {name} = a | b"
                )
                problems.append(FIELDS["categorical"].problem(said))
        if draft["task"]["name"] == "classification":
            data["values"] = data["values"] or _union(profiles.values(), data["label"])
            draft["task"]["classes"] = max(2, len(data["values"]))
            if len(data["values"]) < 2:
                one = f"the one value {data['values'][0]}" if data["values"] else "no value"
                said = f"column {data['label']} has {one} in enough rows of any member, expected at least two"
                problems.append(FIELDS["label"].problem(f"{said}; {NAMED}"))
        draft["training"]["batch_size"] = _batch_size(list(profiles.values()), draft["evaluation"]["name"])
    if problems or (not any(profile.columns for profile in profiles.values()) and filled.whole):
        return draft, problems, warnings
    first, *others = profiles.values()
    everywhere = set(first.columns).intersection(*(other.columns for other in others))
    common = [name for name in first.columns if name in everywhere]
    if not common and not filled.whole and not (filled.values["features"] or Columns()).names:
        said = "no column of numbers is in every member's table: name the inputs, or look at the column names"
        return draft, [FIELDS["features"].problem(said)], warnings
    schema = validate(FreesurferData if data["reader"] == "freesurfer" else CsvData, data)
    try:
        found: TableData = resolve_features(schema, common)
    except SpecError as error:
        return draft, [filled.problem(error.field, str(error).removeprefix(f"{error.field}: "))], warnings
    data["features"] = list(found.features)
    if not filled.whole:
        data["features"] += [name for name in data["categorical"] if name not in found.named]
    anywhere = dict.fromkeys(name for profile in profiles.values() for name in profile.columns)
    for site, profile in profiles.items():
        own = set(profile.columns)
        lacking = [name for name in anywhere if name not in own]
        if lacking and schema.patterns:
            some = ", ".join(lacking[:10]) + ", …" * (len(lacking) > 10)
            warnings.append(f"{site}: its table has no column of numbers called {some}, so it is no input for anyone")
    return draft, problems, warnings


def alone(filled: Filled, profile: Profile) -> tuple[dict[str, Any], list[Problem]]:
    """Return a draft as one member's table alone would have it, to try that table by, and what is wrong with it."""
    (label,) = (filled.values["label"] or Columns()).names if not filled.whole else ("",)
    if len(profile.levels.get(label, ())) == 1:  # others may have another class
        profile = profile.model_copy(update={"levels": {**profile.levels, label: (*profile.levels[label], "another")}})
    draft, problems, _ = complete(filled, {SITES[0]: profile})
    return draft, problems


def check_opened(filled: Filled, own: Profile, run: Mapping[str, Any]) -> None:
    """Check that a run is the one that the owner's form asks for, filled in from tables with columns as this one's.

    Args:
        filled: the form.
        own: what the member's own table says.
        run: the document of the run that the aggregator opens, valid.

    Raises:
        UserError: it is another.
    """
    data = run["data"]
    if filled.whole and not any(is_pattern(name) for name in filled.draft["data"].get("features", ())):
        columns: tuple[str, ...] = ()
    else:
        columns = tuple(name for name in map(literal, data.get("features", ())) if name in own.columns)
    levels = {name: tuple(found) for name, found in (data.get("categorical") or {}).items()}
    if isinstance(data.get("label"), str):
        levels[data["label"]] = tuple(data.get("values") or ())
    profile = Profile(rows=own.rows, min_rows=own.min_rows, columns=columns, levels=levels)
    expected, problems, _ = complete(filled, {SITES[0]: profile})
    if not filled.whole:
        expected["training"]["batch_size"] = run["training"]["batch_size"]
    asked = validate(RunSpec, with_sites(expected, run["federation"]["sites"])).model_dump(mode="json")
    other = sorted(part for part in asked if asked[part] != run.get(part))
    if problems or other:
        raise UserError(f"the aggregator opens another run than the form asks for: {', '.join(other) or 'data'} differ")


def _union(profiles: Iterable[Profile], column: str) -> list[str]:
    return ordered({level for profile in profiles for level in profile.levels.get(column, ())})


def ordered(levels: Iterable[str]) -> list[str]:
    """Return values in the order of numbers, then of the alphabet."""

    def key(level: str) -> tuple[bool, float, str]:
        try:
            return False, float(level), level
        except ValueError:
            return True, 0.0, level.casefold()

    return sorted(levels, key=key)


def _batch_size(profiles: Sequence[Profile], evaluation: str) -> int:
    """Return so many rows of the largest member in a step that the smallest one's share is as large as it asks for."""
    share = 0.85 * (1.0 if evaluation == "leave-one-site-out" else 0.8)  # what is neither tested nor validated
    largest = max(1.0, *(share * profile.rows for profile in profiles))
    most = min(share * profile.rows / (SPARE * profile.min_rows) for profile in profiles)
    return math.ceil(largest / max(1, min(math.ceil(largest / BATCH), math.floor(most))))
