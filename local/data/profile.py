"""What a table holds, column by column, and what in it looks like a mistake: before anything is trained."""

from __future__ import annotations

import datetime
import math
import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Literal

import numpy as np

from rankdad.common.errors import visible
from rankdad.common.spec.table_schema import canonical
from rankdad.common.spec.written import Date
from rankdad.local.data.cells import DATE, LIMIT
from rankdad.local.data.reading import BROKEN, BROKEN_ADVICE, MISSING, Array, shown
from rankdad.local.data.tables import Table

Kind = Literal["number", "levels", "date", "id", "text", "empty"]
MAX_LEVELS = 20  # distinct values beyond which nobody meant a column to be categorical
MANY_GAPS = 0.2  # share of missing values from which a column is worth a word
SENTINELS = frozenset({-9999, -999, -99, -9, -1, 99, 999, 9999, 99999})  # what some write for a missing number
IDENTIFIERS = frozenset({"id", "uid", "uuid", "guid", "identifier", "mrn"})  # last words of a name
WHOLE = frozenset({"subject", "patient", "participant", "person", "case", "record", "row", "index", "name"})  # names
NUMBER = re.compile(r"[+-]?[\d.,]*\d([eE][+-]?\d+)?")  # with a mark of any kind
WORDS = frozenset({"none", "null"})  # of what counts as missing, these may be levels
FACTOR = 5.0  # between the medians of two tables, from which their units may differ


@dataclass(frozen=True)
class Column:
    """One column.

    Args:
        name: of it.
        kind: what it seems to hold.
        missing: cells that are.
        distinct: different values among the others.
        numbers: least, lower quartile, median, upper quartile and largest, mean and deviation; none unless numbers.
        zeros: numbers that are 0.
        levels: how many rows have each value, the most frequent first; none where there are more than a few.
        remarks: what looks like a mistake, or says which field of a schema helps.
        others: cells among numbers that are none, and words among levels that count as missing, with how often.
        most: rows of the most frequent value.
        dates: the first and the last, as 2020-04-03, where all can be told; else nothing.
        stand_ins: numbers that may mean that one is missing, as text, with how often.
    """

    name: str
    kind: Kind
    missing: int
    distinct: int
    numbers: Mapping[str, float] = field(default_factory=dict)
    zeros: int = 0
    levels: Mapping[str, int] = field(default_factory=dict)
    remarks: tuple[str, ...] = ()
    others: Mapping[str, int] = field(default_factory=dict)
    most: int = 0
    dates: tuple[str, ...] = ()
    stand_ins: Mapping[str, int] = field(default_factory=dict)


@dataclass(frozen=True)
class Profile:
    """One table.

    Args:
        source: its file.
        rows: how many samples it has.
        columns: of it, in order.
        remarks: on its rows.
    """

    source: str
    rows: int
    columns: tuple[Column, ...]
    remarks: tuple[str, ...] = ()

    @property
    def by_name(self) -> dict[str, Column]:
        """Columns by name."""
        return {column.name: column for column in self.columns}


def profile_of(table: Table) -> Profile:
    """Return what a table holds."""
    columns = tuple(_column(table, str(name)) for name in table.frame.columns if name)
    remarks = list[str]()
    twice = int(table.frame.astype(str).duplicated().sum())
    if twice:
        remarks.append(f"{twice} rows repeat another one in every column")
    for column in columns:
        if is_identifier(column.name) and column.most > 1:
            said = f"{len(table) - column.missing} rows name {column.distinct} different ones, up to {column.most} each"
            remarks.append(f"column {column.name}: {said}: make it data.group, so that they stay in one fold")
    return Profile(str(table.source), len(table), columns, tuple(remarks))


def is_identifier(name: str) -> bool:
    """Tell whether a column's name is that of an identifier, such as id, subject_id, PatientID or MRN."""
    words = [word.lower() for word in re.findall(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+", name)]
    return bool(words) and (words[-1] in IDENTIFIERS or (len(words) == 1 and words[0] in WHOLE))


def _held(table: Table, name: str) -> list[str]:
    return [text for text in table.texts(name) if text.lower() not in MISSING]


def _column(table: Table, name: str) -> Column:
    """Return what a column of a table holds, in the unit of its cells.

    Of kind "number" alone there are quartiles, mean and deviation. Levels are counted of any kind but "id", up to
    `MAX_LEVELS` of them. A column without a value is of kind "empty".
    """
    held = _held(table, name)
    found, missing = np.array(table.numbers(name), np.float64), len(table) - len(held)
    numbers = found[np.isfinite(found)]
    counts = Counter(map(canonical, held))
    remarks = list[str]()
    if not held:
        return Column(name, "empty", missing, 0, remarks=("no row has a value",))
    if missing >= MANY_GAPS * len(table):
        remarks.append(f"{missing / len(table):.0%} of the rows lack it")
    if len(counts) == 1 and len(held) > 1:
        remarks.append("it is the same in every row")
    kind = _kind(name, held, numbers, counts)
    words = dict(Counter(text for text in table.texts(name) if text.lower() in WORDS)) if kind == "levels" else {}
    if words:
        said = ", ".join(f"{shown(word)} in {count} rows" for word, count in words.items())
        remarks.append(f"{said} counts as missing, unless data.categorical, or data.values of a label, lists it")
    others: dict[str, int] = {}
    if kind == "number" and len(numbers) < len(held):
        numeric = zip(table.texts(name), found, strict=True)
        others = dict(Counter(text for text, one in numeric if text.lower() not in MISSING and not math.isfinite(one)))
        why = (table.decimals.doubtful or {}).get(name)
        advice = f"it {why}" if why else "if that means missing, list it in data.missing_values"
        if any(map(LIMIT.fullmatch, others)):
            advice = "write limits of detection as numbers, or list them in data.missing_values to have them imputed"
        said = f"{len(held) - len(numbers)} cells are no plain numbers, such as {shown(next(iter(others)))}"
        remarks.append(f"{said}: {advice}")
    if broken := [text for text in held if BROKEN.fullmatch(text)]:
        remarks.append(f"{len(broken)} cells hold {shown(broken[0])} or the like, {BROKEN_ADVICE}")
    if kind == "id":
        remarks.append("it names rows: no input, but data.key or data.group, or leave it out by data.exclude")
    summary: dict[str, float] = {}
    stand_ins: dict[str, int] = {}
    if kind == "number" and len(numbers):
        told, stand_ins = _stand_ins(numbers)
        remarks += told
        marks = np.quantile(numbers, [0, 0.25, 0.5, 0.75, 1]).tolist()
        summary = dict(zip(("least", "lower", "median", "upper", "largest"), marks, strict=True))
        with np.errstate(over="ignore"):  # squares of numbers beyond 1e154, which no reader takes
            mean, deviation = np.nan_to_num([numbers.mean(), numbers.std()]).tolist()  # infinity is no JSON
        summary |= {"mean": mean, "deviation": deviation}
    levels = dict(counts.most_common()) if len(counts) <= MAX_LEVELS and kind != "id" else {}
    zeros, most, said_of_it = int((numbers == 0).sum()), max(counts.values()), tuple(map(visible, remarks))
    ends, others = _ends(held) if kind == "date" else (), others or words
    return Column(name, kind, missing, len(counts), summary, zeros, levels, said_of_it, others, most, ends, stand_ins)


def _ends(held: Sequence[str]) -> tuple[str, ...]:
    """Return the first and the last of a column's dates; nothing where one is none, or might be two."""
    calendar = Date(since="2000-01-01")
    try:
        days = [int(calendar.day(text)) for text in held]
    except ValueError:
        return ()
    return tuple(datetime.date.fromordinal(day).isoformat() for day in (min(days), max(days)))


def _kind(name: str, held: Sequence[str], numbers: Array, counts: Mapping[str, int]) -> Kind:
    alone = len(counts) == len(held) and len(held) > MAX_LEVELS
    if 2 * sum(bool(BROKEN.fullmatch(text)) for text in held) > len(held):
        return "text"
    if 2 * sum(bool(DATE.match(text)) for text in held) > len(held):
        return "date"
    if 2 * max(len(numbers), sum(bool(NUMBER.fullmatch(text)) for text in held)) >= len(held):
        return "id" if is_identifier(name) or (alone and _counts_rows(numbers)) else "number"
    if is_identifier(name) or alone:
        return "id"
    return "levels" if len(counts) <= MAX_LEVELS else "text"


def _counts_rows(numbers: Array) -> bool:
    """Tell whether numbers count rows."""
    return bool(len(numbers) > 2 and np.array_equal(np.diff(numbers), np.ones(len(numbers) - 1)))


def _stand_ins(numbers: Array) -> tuple[list[str], dict[str, int]]:
    """Return what is to be said of numbers that may mean that one is missing, and in how many rows each stands."""
    remarks, found = list[str](), dict[str, int]()
    rest = numbers[numbers != 0]
    zeros = len(numbers) - len(rest)
    if zeros and len(np.unique(rest)) > 10 and rest.min() > 0.1 * np.median(rest):
        said = f"0 stands in {zeros} of {len(numbers)} rows, and nothing else below {rest.min():g}"
        remarks.append(f"{said}: if it means missing, list it in data.missing_values")
        found["0"] = zeros
    for value in sorted(SENTINELS.intersection(np.unique(numbers).tolist())):
        others = numbers[numbers != value]
        if len(others) < 10:
            continue
        low, high = np.quantile(others, [0.25, 0.75])
        away = 3 * max(high - low, 1e-9)
        if value < min(others.min(), low - away) or value > max(others.max(), high + away):
            found[canonical(value)] = count = len(numbers) - len(others)
            said = f"{value:g} stands in {count} rows, far from all others"
            remarks.append(f"{said}: if it means missing, list it in data.missing_values")
    return remarks, found


def compared(profiles: Mapping[str, Profile]) -> dict[str, Profile]:
    """Return the profiles of several sites, with what sets each one apart from the others."""
    return {site: _beside(own, [one for name, one in profiles.items() if name != site])
            for site, own in profiles.items()}  # fmt: skip


def _beside(own: Profile, others: Sequence[Profile]) -> Profile:
    theirs = [other.by_name for other in others]
    columns, names = list[Column](), dict.fromkeys(name for known in theirs for name in known)
    for column in own.columns:
        elsewhere = [known[column.name] for known in theirs if column.name in known]
        columns.append(replace(column, remarks=column.remarks + _apart(column, elsewhere, len(others))))
    lacking = [name for name in names if name not in own.by_name]
    said = (f"it has no column {', '.join(lacking[:10])}{', …' * (len(lacking) > 10)}, which others have",)
    return replace(own, columns=tuple(columns), remarks=own.remarks + (said if lacking else ()))


def _far(median: float, other: float) -> bool:
    """Tell whether two medians differ as those of different units do."""
    return median > 0 and other > 0 and max(median / other, other / median) >= FACTOR


def _apart(own: Column, others: Sequence[Column], tables: int) -> tuple[str, ...]:
    """Return what sets a column apart from those of its name in other tables."""
    if not tables:
        return ()
    if not others:
        return ("no other table has it",)
    remarks = list[str]()
    known = [other for other in others if other.kind != "empty"]
    kinds = {other.kind for other in known}
    if own.kind != "empty" and len(kinds) == 1 and own.kind not in kinds:
        remarks.append(f"elsewhere it holds {kinds.pop()}")
    medians = [other.numbers["median"] for other in known if other.numbers and other.distinct > 1]
    if own.numbers and medians:
        middle, median = float(np.median(medians)), own.numbers["median"]
        if own.distinct == 1 and median == 0 != middle:
            least, most = (pick(other.numbers[end] for other in known if other.numbers)
                           for pick, end in ((min, "least"), (max, "largest")))  # fmt: skip
            remarks.append(f"0 in every row, elsewhere from {least:g} to {most:g}: if it means missing, list it in "
                           "data.missing_values")  # fmt: skip
        elif own.distinct > 10 and 2 * sum(_far(median, other) for other in medians) > len(medians):
            remarks.append(f"its median is {median:g}, elsewhere {middle:g}: are the units the same? If not, "
                           "convert it here, in the table")  # fmt: skip
    if own.kind == "levels" and known and all(other.levels for other in known):
        alone = [level for level in own.levels if not any(level in other.levels for other in known)]
        if alone:
            remarks.append(f"only here: {', '.join(alone[:5])}{', …' * (len(alone) > 5)}; data.categorical names all "
                           "levels, data.categorical_other makes one of the rest")  # fmt: skip
    return tuple(map(visible, remarks))


def ordered(levels: Iterable[str]) -> list[str]:
    """Return values in the order of numbers, then of the alphabet."""

    def key(level: str) -> tuple[bool, float, str, str]:
        try:
            return False, float(level), "", level
        except ValueError:
            return True, 0.0, level.casefold(), level  # "m" and "M" have one order, whatever a set's is

    return sorted(levels, key=key)
