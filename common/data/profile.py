"""Describes a table column by column, and finds likely mistakes in it."""

from __future__ import annotations

import datetime
import hashlib
import math
import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Literal

import numpy as np
import pandas as pd

from rankdad.common.data.cells import DATE, LIMIT
from rankdad.common.data.dialect import THOUSANDS
from rankdad.common.data.identifiers import (
    Digits,
    alike_within,
    are_texts,
    counts_rows,
    digits_of,
    names_patients,
    to_read,
)
from rankdad.common.data.joining import twice_written
from rankdad.common.data.reading import BROKEN, BROKEN_ADVICE, MISSING, Array, shown
from rankdad.common.data.tables import Table
from rankdad.common.errors import counted, visible
from rankdad.common.spec.table_schema import canonical
from rankdad.common.spec.written import Date

Kind = Literal["number", "levels", "date", "id", "text", "empty"]
MAX_LEVELS = 20  # most values of a categorical column
MANY_GAPS = 0.2  # share of missing values that is worth a remark
SENTINELS = frozenset({-9999, -999, -99, -9, -1, 99, 999, 9999, 99999})  # common codes for a missing number
NINE = 9.0  # such a code among few smaller whole numbers
SCALE, PAIRS = frozenset({0.0, 1.0, 2.0, 3.0, 4.0}), ({0.0, 1.0}, {1.0, 2.0})
CODE = re.compile(r"[^\w+<>≤≥]+")  # codes for a missing value: ?, -, ., *
# Words for a missing value among numbers; in other columns they may be a level.
UNKNOWN = frozenset({"unknown", "unk", "missing", "unbekannt", "nk", "nd", "n.d.", "k.a.", "k. a.", "#null!"})
NAMES_ROWS = "it identifies rows: not an input; make it data.key or data.group, or leave it out with data.exclude"
NUMBER = re.compile(r"[+-]?[\d.,]*\d([eE][+-]?\d+)?")  # with a mark of any kind
WORDS = frozenset({"none", "null"})  # count as missing, but may be levels
FAR = 10.0  # distance of an outlier from the median, in interquartile ranges
ALONE = 5.0  # ratio of its distance to that of the next number
FEW_OUTLIERS = 0.01  # of the numbers
LARGE = 100.0  # median of whole numbers from which 1.842 may mean 1842


@dataclass(frozen=True)
class Remark:
    """A likely mistake, or a hint to a field of the schema.

    Args:
        code: kind of remark, in words-with-hyphens.
        text: a sentence.
        column: concerned; "" for remarks on rows.
        row: of the file; None for several rows.
        value: text of a cell that may be a code for missing.
    """

    code: str
    text: str
    column: str = ""
    row: int | None = None
    value: str = ""


@dataclass(frozen=True)
class Column:
    """One column.

    Args:
        name: of the column.
        kind: of its values.
        missing: number of missing cells.
        known: number of other cells.
        distinct: number of different values.
        numbers: minimum, quartiles, maximum, mean and deviation; empty unless numeric.
        zeros: number of zeros.
        levels: rows by value, most frequent first; empty for many values.
        remarks: on the column.
        others: non-numeric cells among numbers, and words among levels that count as missing, with frequencies.
        most: rows of the most frequent value.
        dates: first and last, as 2020-04-03; empty unless all are unambiguous.
        codes: cells without a letter or digit, such as ?, with frequencies; they count as missing.
        stand_ins: numbers that cannot be measured values, as text, with frequencies.
        whole: whether all numbers are whole.
        unread: row, text and reason, if known, of the first non-numeric cell among numbers that is no code, such as
            5 mg; otherwise empty.
        digits: form of its cells as identifiers; None unless they consist of digits.
    """

    name: str
    kind: Kind
    missing: int
    distinct: int
    numbers: Mapping[str, float] = field(default_factory=dict)
    zeros: int = 0
    levels: Mapping[str, int] = field(default_factory=dict)
    remarks: tuple[Remark, ...] = ()
    others: Mapping[str, int] = field(default_factory=dict)
    most: int = 0
    dates: tuple[str, ...] = ()
    codes: Mapping[str, int] = field(default_factory=dict)
    stand_ins: Mapping[str, int] = field(default_factory=dict)
    whole: bool = False
    unread: tuple[str, ...] = ()
    known: int = 0
    digits: Digits | None = None


@dataclass(frozen=True)
class Profile:
    """The profile of a table.

    Args:
        source: its file.
        rows: number of samples.
        columns: profiles, in order.
        remarks: on rows.
        digest: of its rows, in any order.
    """

    source: str
    rows: int
    columns: tuple[Column, ...]
    remarks: tuple[Remark, ...] = ()
    digest: str = ""

    @property
    def by_name(self) -> dict[str, Column]:
        """Columns by name."""
        return {column.name: column for column in self.columns}


def profile_of(table: Table) -> Profile:
    """Describe a table."""
    columns = _with_patients(table, [_column(table, str(name)) for name in table.frame.columns if name])
    remarks = _totals(table, columns)
    texts = table.frame.astype(str)
    twice = int(texts.duplicated().sum())
    if twice:
        remarks.append(Remark("rows-repeated", f"{twice} rows repeat another one in every column"))
    for column in columns:
        if column.kind == "id" and column.most > 1:
            text = f"{len(table) - column.missing} rows have {column.distinct} values, up to {column.most} rows each"
            text = f"column {column.name}: {text}: make it data.group, so that rows with the same value are in one fold"
            remarks.append(Remark("patients-repeated", text, column.name))
    names = sorted(map(str, texts))
    hashes = np.sort(pd.util.hash_pandas_object(texts[names], index=False).to_numpy())
    digest = hashlib.sha256(f"{names}".encode() + hashes.tobytes()).hexdigest()
    return Profile(str(table.source), len(table), tuple(columns), tuple(remarks), digest)


def _totals(table: Table, columns: Sequence[Column]) -> list[Remark]:
    """Return a remark on a last row that holds the sums or means of the rows above."""
    names = [column.name for column in columns if column.kind == "number" and column.numbers and column.distinct > 1]
    if len(table) < 4 or len(names) < 2:
        return []
    rows = np.array([table.numbers(name) for name in names])
    rows = rows[np.isfinite(rows[:, -1]) & np.isfinite(rows[:, :-1]).any(axis=1)]
    for what, of in (("sums", np.nansum), ("means", np.nanmean)):
        made = of(rows[:, :-1], axis=1)
        if len(rows) > 1 and np.allclose(made, rows[:, -1], rtol=1e-9, atol=0):
            place = table.place(len(table) - 1)[1]
            text = f"{place} holds the {what} of the rows above, and is no sample: remove it"
            return [Remark("row-of-totals", text, row=int(place.removeprefix("row ")))]
    return []


def _with_patients(table: Table, columns: list[Column]) -> list[Column]:
    """Return columns with the kind "id" for those that identify patients, by columns that agree in their rows."""
    if any(column.kind == "id" and column.most > 1 for column in columns):
        return columns
    cells = {column.name: table.texts(column.name) for column in columns if column.kind in ("number", "levels", "date")}
    found = []
    for column in columns:
        may_be = column.kind == "text" or (column.kind == "number" and column.whole and not column.others)
        others = {name: texts for name, texts in cells.items() if name != column.name}
        alike = alike_within(table.texts(column.name), others) if may_be and not column.missing else []
        if len(alike) > (column.kind == "number"):  # one may depend on a number
            told = (Remark("names-rows", NAMES_ROWS, column.name),)
            column = replace(column, kind="id", numbers={}, levels={}, stand_ins={}, remarks=told)
        elif alike:
            text = f"rows with the same value agree in {visible(alike[0])}: if it names patients, make it data.group"
            column = replace(column, remarks=(*column.remarks, Remark("may-name-patients", text, column.name)))
        found.append(column)
    return found


def _column(table: Table, name: str) -> Column:
    """Describe a column of a table, in the unit of its cells.

    Only kind "number" has quartiles, mean and deviation. Levels are counted for all kinds but "id", up to `MAX_LEVELS`.
    A column without a value has the kind "empty".
    """
    given = [text if text.lower() not in MISSING else "" for text in table.texts(name)]
    results = any(re.fullmatch(r"\++", text) for text in given)  # then "-" is the negative result
    codes = Counter(text for text in given if text and not results and CODE.fullmatch(text) and not BROKEN.match(text))
    held = [text for text in given if text and text not in codes]
    found, missing = np.array(table.numbers(name), np.float64), len(table) - len(held)
    numbers = found[np.isfinite(found)]
    remarks = list[Remark]()

    def say(code: str, text: str, value: str = "") -> None:
        remarks.append(Remark(code, visible(text), name, value=value))

    if not held:
        say("column-empty", "no row has a value")
    elif missing >= MANY_GAPS * len(table):
        say("column-sparse", f"missing in {missing / len(table):.0%} of the rows")
    if codes:
        sentence = ", ".join(f"{shown(code)} in {counted(count, 'row')}" for code, count in codes.items())
        say("word-unknown", f"{sentence}: if that means missing, list it in data.missing_values")
    if not held:
        return Column(name, "empty", missing, 0, remarks=tuple(remarks), codes=codes)
    kind = _kind(name, held, numbers)
    counts = Counter(held if kind == "id" else map(canonical, held))
    if len(counts) == 1 and len(held) > 1:
        say("column-constant", "it is the same in every row")
    others, stand_ins = dict[str, int](), dict[str, int]()
    unread: tuple[str, ...] = ()
    if kind == "id":
        others = {one: n for one, n in counts.items() if one.lower() in UNKNOWN or (n > 1 and re.fullmatch("-9+", one))}
    if kind == "levels":
        others = dict(Counter(text for text in table.texts(name) if text.lower() in WORDS))
    if others:
        sentence = ", ".join(f"{shown(word)} in {counted(count, 'row')}" for word, count in others.items())
    if others and kind == "id":
        say("word-unknown", f"{sentence}: if that means missing, list it in data.missing_values")
    elif others:
        say(
            "word-missing",
            f"{sentence} counts as missing, unless data.categorical, or data.values of a label, lists it",
        )
    why = ""
    if kind == "number" and (marked := _thousands(table, name)):
        why = "may be a whole number with a thousands mark, since all others here are whole: remove the mark, or "
        why += "name the decimal mark in data.decimal"
        found[marked], numbers = math.nan, np.delete(found, marked)[np.isfinite(np.delete(found, marked))]
    if kind == "number" and len(numbers) < len(held):
        strange = {
            row: text for row, text in enumerate(given) if text and text not in codes and not math.isfinite(found[row])
        }
        others = dict(Counter(strange.values()))
        why = (table.decimals.doubtful or {}).get(name, "") or why
        digits = [
            row
            for row, text in strange.items()
            if (re.search(r"\d", text) and not LIMIT.fullmatch(text))
            or (BROKEN.fullmatch(text) and text.lower() not in UNKNOWN)
        ]
        why = f"is {BROKEN_ADVICE}" if digits and BROKEN.fullmatch(strange[digits[0]]) else why
        unread = (table.place(digits[0])[1], strange[digits[0]], why) if digits else ()
        advice = f"it {why}" if why and digits else "if that means missing, list it in data.missing_values"
        if any(map(LIMIT.fullmatch, others)):
            advice = "write limits of detection as numbers, or list them in data.missing_values to have them imputed"
        elif digits and not why:
            advice = "write them as numbers"
        sentence = (
            f"{len(strange)} cells are no plain numbers, such as {shown(unread[1] if unread else next(iter(others)))}"
        )
        say("number-expected", f"{sentence}: {advice}")
    if kind != "number" and (broken := [text for text in held if BROKEN.fullmatch(text)]):
        say("formula", f"{len(broken)} cells hold {shown(broken[0])} or the like, {BROKEN_ADVICE}")
    if kind in ("id", "text") and (why := to_read(counts)):
        say("free-text", why)
    if kind == "id":
        say("names-rows", NAMES_ROWS)
        for sentence in twice_written(held):
            say("identifier-twice-written", sentence)
    summary: dict[str, float] = {}
    if kind == "number" and len(numbers):
        told, stand_ins = _stand_ins(numbers)
        for token, sentence in told.items():
            say("stand-in", sentence, token)
        if sentence := _outliers(numbers):
            say("outlier", sentence)
        marks = np.quantile(numbers, [0, 0.25, 0.5, 0.75, 1]).tolist()
        summary = dict(zip(("least", "lower", "median", "upper", "largest"), marks, strict=True))
        with np.errstate(over="ignore"):  # squares of numbers beyond 1e154
            mean, deviation = np.nan_to_num([numbers.mean(), numbers.std()]).tolist()  # infinity is no JSON
        summary |= {"mean": mean, "deviation": deviation}
    return Column(
        name,
        kind,
        missing,
        len(counts),
        summary,
        zeros=int((numbers == 0).sum()),
        levels=dict(counts.most_common()) if len(counts) <= MAX_LEVELS and kind != "id" else {},
        remarks=tuple(remarks),
        others=others,
        most=max(counts.values()),
        dates=_ends(held) if kind == "date" else (),
        codes=dict(codes),
        stand_ins=stand_ins,
        whole=bool(len(numbers)) and bool((numbers == np.round(numbers)).all()),
        unread=unread,
        known=len(held),
        digits=digits_of(list(counts)) if kind == "id" else digits_of(held),
    )


def _thousands(table: Table, name: str) -> list[int]:
    """Return the rows with texts such as 1.842 among large whole numbers, unless the schema names the decimal mark."""
    if table.written.decimal is not None:
        return []
    texts = {row: cell.strip() for row, cell in enumerate(table.frame[name].tolist()) if isinstance(cell, str)}
    marked = [row for row, text in texts.items() if re.search(r"\d[.,]\d", text)]
    whole = [float(text) for text in texts.values() if re.fullmatch(r"\d{1,15}", text)]
    grouped = all(THOUSANDS.fullmatch(texts[row]) for row in marked)
    return marked if marked and grouped and whole and float(np.median(whole)) >= LARGE else []


def _ends(held: Sequence[str]) -> tuple[str, ...]:
    """Return the first and the last of a column's dates; nothing if one is invalid or ambiguous."""
    calendar = Date(since="2000-01-01")
    try:
        days = [int(calendar.day(text)) for text in held]
    except ValueError:
        return ()
    return tuple(datetime.date.fromordinal(day).isoformat() for day in (min(days), max(days)))


def _kind(name: str, held: Sequence[str], numbers: Array) -> Kind:
    """Return the kind of a column from its cells that are not missing."""
    if 2 * sum(bool(BROKEN.fullmatch(text)) for text in held) > len(held):
        return "text"
    if 2 * sum(bool(DATE.match(text)) for text in held) > len(held):
        return "date"
    if names_patients(name, held, numbers) or (len(numbers) == len(held) and counts_rows(numbers)):
        return "id"
    known = [text for text in held if text.lower() not in UNKNOWN]
    like_numbers = sum(bool(NUMBER.fullmatch(text)) for text in known)
    words = {text for text in known if not NUMBER.fullmatch(text)}
    one_word = len(words) == 1 and len(np.unique(numbers)) > 2  # a code for missing among numbers
    if known and (2 * max(len(numbers), like_numbers) >= len(known) or one_word):
        return "number"
    values = Counter(map(canonical, held))
    return "levels" if len(values) <= MAX_LEVELS and not are_texts(values) else "text"


def _stand_ins(numbers: Array) -> tuple[dict[str, str], dict[str, int]]:
    """Return remarks on numbers that may be codes for missing, and those that certainly are, with frequencies."""
    told, sure = dict[str, str](), dict[str, int]()
    rest = numbers[numbers != 0]
    zeros = len(numbers) - len(rest)
    if zeros and len(np.unique(rest)) > 10 and rest.min() > 0.1 * np.median(rest):
        text = f"0 occurs in {zeros} of {len(numbers)} rows, and all others are at least {rest.min():g}"
        told["0"] = f"{text}: if it means missing, list it in data.missing_values"
        low, high = np.quantile(rest, [0.25, 0.75])
        sure |= {"0": zeros} if rest.min() >= high - low else {}
    for value in sorted({*SENTINELS, NINE}.intersection(np.unique(numbers).tolist())):
        others = numbers[numbers != value]
        count = len(numbers) - len(others)
        where, certain = _set_apart(value, count, others) if len(others) >= 10 else ("", False)
        if where:
            text = f"{value:g} occurs in {count} rows, {where}"
            told[canonical(value)] = f"{text}: if it means missing, list it in data.missing_values"
            sure |= {canonical(value): count} if certain else {}
    return told, sure


def _set_apart(value: float, count: int, others: Array) -> tuple[str, bool]:
    """Return how a possible code for missing differs from other numbers, and whether it certainly is one."""
    few = set(np.unique(others).tolist())
    if value == NINE:  # counts may include one: next to two codes it is a third
        return (f"beside {', '.join(f'{one:g}' for one in sorted(few))}", few in PAIRS) if few <= SCALE else ("", False)
    low, high = np.quantile(others, [0.25, 0.75])
    away = 3 * max(high - low, 1e-9)
    if value < min(others.min(), low - away) or value > max(others.max(), high + away):
        return "far from all others", True
    if value < 0 <= others.min() and (value < -1 or len(few) > len(SCALE)):  # in a skewed column it is not far away
        return "and nothing else below 0", value < -1 and count > 1
    return "", False


def _outliers(numbers: Array) -> str:
    """Return a remark on a few numbers that are far from all others, as if in other units."""
    values = numbers[~np.isin(numbers, list(SENTINELS))]
    if len(values) < 10:
        return ""
    low, median, high = np.quantile(values / 2, [0.25, 0.5, 0.75])  # halves, to avoid overflow of differences
    far = np.abs(values / 2 - median)
    order = np.argsort(far)
    apart = far[order]
    most = max(1, int(FEW_OUTLIERS * len(values)))
    for at in range(len(values) - most, len(values)):
        if apart[at] / FAR > high - low and apart[at] / ALONE > apart[at - 1] > 0:
            some, count = values[order[-1]], len(values) - at
            text = f"{some:.10g} is an outlier" if count == 1 else f"{count} numbers are outliers, such as {some:.10g}"
            least, largest = values[order[:at]].min(), values[order[:at]].max()
            return f"{text}: all others are from {least:g} to {largest:g}: correct it, or set data.clip"
    return ""
