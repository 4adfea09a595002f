"""Parses single cells of a table: numbers, levels, labels. Errors name file, row and column."""

from __future__ import annotations

import datetime
import math
import re
from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from rankdad.common.data.reading import BROKEN, BROKEN_ADVICE, MISSING, MOST, Array, number, shown
from rankdad.common.data.tables import Table, holder
from rankdad.common.errors import DataError
from rankdad.common.spec.table_schema import canonical, spelling
from rankdad.common.spec.written import YEAR, Comparison, Date, Tabular

LABEL_RULE = ": data.positive is a rule for numbers: write one, or list the code for missing in data.missing_values"
NOISE = 1e-12  # relative: rounding of equal numbers in computations
MAX_ROUNDING = 1e-3  # standard deviations: more changes coefficients
LIMIT = re.compile(r"[<>≤≥]=?\s*([\d.,]+)")  # of detection
ISO = re.compile(r"(([1-9][0-9]{3}-[0-9]{2}-[0-9]{2})?\n)*")  # dates or nothing, a line each
DATE = re.compile(r"\d{1,4}([-./])\d\d?\1\d{1,4}\b")


def column_numbers(table: Table, column: str, dtype: str = "float64", hint: str = "", *, levels: bool = True) -> Array:
    """Return a column as float64 [rows], checked to fit into a dtype; NaN for missing values.

    Args:
        table: with the column.
        column: its name.
        dtype: that the numbers have to fit into.
        hint: remedy for an invalid cell; by default derived from it.
        levels: whether the schema could treat the column as categorical.

    Raises:
        DataError: a cell is not a number.
    """
    found = table.numbers(column)
    most = min(float(np.finfo(dtype).max), MOST)
    odd = ~(np.abs(found) <= most)
    wrong = np.flatnonzero(odd & ~table.missing(column)).tolist() if odd.any() else []
    if wrong:
        found, texts = found.copy(), table.texts(column)
        hint = hint or _advice(table, column, texts, wrong, levels=levels)
    for row in wrong:
        problem = f"holds {shown(texts[row])}, expected a finite number of at most {most:.0e}"
        code = "formula" if BROKEN.fullmatch(texts[row]) else "not-a-number"
        table.refuse(row, column, problem, hint, code=code)
        found[row] = math.nan
    _check_digits(table, column, found[np.isfinite(found)], dtype)
    return found


def _check_digits(table: Table, column: str, values: Array, dtype: str) -> None:
    """Refuse numbers whose differences a dtype would round away, such as times of this century."""
    if not len(values):
        return
    largest, spread, kind = np.abs(values).max(), np.ptp(values), np.finfo(dtype)
    rounding = largest * kind.eps + kind.smallest_subnormal  # at most
    if spread <= NOISE * largest or rounding * math.sqrt(2 * len(values)) <= MAX_ROUNDING * spread:
        return  # a spread is at most sqrt(2 n) standard deviations
    if np.abs(values - values.astype(dtype)).max() <= MAX_ROUNDING * values.std():
        return
    text = f"{values.min():.9g} to {values.max():.9g} differ by too little for {dtype}, which would round them"
    advice = f"subtract the same number, such as {values.mean():.2g}, from all of them at every site"
    raise DataError(table.source, f"column {shown(column)}: {text}: {advice}", code="digits-lost", field=column)


def _advice(table: Table, column: str, texts: Sequence[str], wrong: Sequence[int], *, levels: bool) -> str:
    """Return a remedy for cells that are not numbers, if possible a field of the schema."""
    text = texts[wrong[0]]
    if BROKEN.fullmatch(text):
        return f": {BROKEN_ADVICE}"
    if column in (table.decimals.doubtful or {}) and re.search(r"\d[.,]\d", text):
        return f": it {(table.decimals.doubtful or {})[column]}"
    if re.fullmatch(r"[+-]?\d+([.,]\d+)+", text) and not DATE.match(text):
        mark, other = ("comma", "a point") if column in table.decimals.comma else ("point", "a comma")
        return f": numbers here have a decimal {mark}; write it without {other}, or name the mark in data.decimal"
    if LIMIT.fullmatch(text):
        limit = text.lstrip("<>≤≥= ")
        instead = f"write the limit itself, {limit}, at every site, or list the code for missing in"
        return f": a value beyond what can be measured: {instead} data.missing_values"
    held = [text for text in texts if text.lower() not in MISSING]
    if 2 * len(wrong) < len(held) or math.isfinite(number(text)) or len(held) < 3:
        instead = "write a number, leave the cell empty if it is missing, or list the code for missing in"
        return f": {instead} data.missing_values"
    if DATE.match(text):
        return ": if the column holds dates, say since when they count in data.dates; or leave it out by data.exclude"
    if not levels:
        return ": write its levels as numbers, the same at every site, or leave the channel out of data.features"
    if len(set(held)) == len(held):
        return ": if the column names rows, leave it out by data.exclude, or make it data.key or data.group"
    return ": if the column is categorical, list its levels in data.categorical; or leave it out by data.exclude"


def column_codes(
    table: Table, column: str, levels: Sequence[Sequence[str]], hint: str = "", *, other: bool = False
) -> Array:
    """Return the index of each cell's level, float64 [rows]; NaN for missing values.

    Args:
        table: with the column.
        column: its name.
        levels: the cell values of each level.
        hint: remedy for an unknown level.
        other: whether unknown values are a further level, the last.

    Raises:
        DataError: a cell is no level.
    """
    places = {value: float(place) for place, values in enumerate(levels) for value in values}
    rest = float(len(levels)) if other else None
    rows, texts = table.levels(column)
    codes = [
        places.get(canonical(text), math.nan if text.lower() in MISSING and canonical(text) not in places else rest)
        for text in texts
    ]
    wrong = np.array([code is None for code in codes], bool)
    for row in np.flatnonzero(wrong[rows]).tolist():
        _refuse_level(table, row, column, texts[rows[row]], list(places), hint)
    return np.array([math.nan if code is None else code for code in codes], np.float64)[rows]


def _refuse_level(table: Table, row: int, column: str, text: str, known: Sequence[str], hint: str) -> None:
    alike = next((value for value in known if spelling(value) == spelling(text)), None)
    if alike is not None and not BROKEN.fullmatch(text):
        sentence = f"holds {shown(text)}, which differs from {shown(alike)} only in how it is written"
        advice = ": write it alike at every site, as the spec lists it"
        table.refuse(row, column, sentence, advice, code="values-spelled-apart")
        return
    some = ", ".join(known[:10]) + ", …" * (len(known) > 10)
    advice, kind = (f": {BROKEN_ADVICE}", "formula") if BROKEN.fullmatch(text) else (hint, "level-unknown")
    table.refuse(row, column, f"holds {shown(text)}, expected one of {some}", advice, code=kind)


def column_dates(tables: Sequence[Table], column: str, date: Date) -> Array:
    """Return the time from a start to each of a column's dates, float64 [rows]; NaN for missing dates.

    Raises:
        DataError: a cell is no date.
    """
    begun = date.start if date.start is not None else _days(holder(tables, date.since), date.since, date)
    days = _days(holder(tables, column), column, date) - begun
    return days / YEAR if date.unit == "years" else days


def _days(table: Table, column: str, date: Date) -> Array:
    rows, texts = table.levels(column)
    wrong = dict[int, str]()
    if (days := _iso_days(texts)) is None:
        days = np.full(len(texts), np.nan)
        for place in (place for place, text in enumerate(texts) if text.lower() not in MISSING):
            try:
                days[place] = date.day(texts[place])
            except ValueError as error:
                wrong[place] = str(error)
    for row in np.flatnonzero(np.isin(rows, list(wrong))).tolist():
        text = texts[rows[row]]
        code = "formula" if BROKEN.fullmatch(text) else "not-a-date"
        advice = f": {BROKEN_ADVICE}" if code == "formula" else _count_of_days(text)
        table.refuse(row, column, f"holds {shown(text)}, {wrong[rows[row]]}", advice, code=code)
    return days[rows]


def _iso_days(texts: Sequence[str]) -> Array | None:
    """Return the days of dates such as 2020-04-03, as `Date.day` counts them; None if any is of another form.

    An empty text has NaN.
    """
    if not ISO.fullmatch("\n".join([*texts, ""])):
        return None
    try:
        found = np.array(texts, "datetime64[D]")
    except ValueError:  # no day of the calendar
        return None
    return np.where(np.isnat(found), np.nan, found.astype(np.int64) + datetime.date(1970, 1, 1).toordinal())


def _count_of_days(text: str) -> str:
    """Return a remedy for a number that a workbook would show as a date; "" for other cells."""
    if not re.fullmatch(r"[1-9]\d{4}(\.\d+)?", text):
        return ""
    return ": it may be a day as workbooks count them: format the column as dates in the workbook"


def labels_of(data: Tabular, tables: Sequence[Table]) -> Array:
    """Return labels: class indices or numbers, float64 [rows], or 0 and 1, [rows, labels]; NaN for missing ones.

    Raises:
        DataError: a cell is no label.
    """
    several = not isinstance(data.label, str)
    levels: tuple[tuple[str, ...], ...] = (("0",), ("1",)) if several else tuple((value,) for value in data.values)
    rule = None
    if not several:
        levels, rule = data.members, None if data.positive is None else Comparison(data.positive)
    hint = "" if several else "; data.merge makes several values one class, data.positive a rule such as '> 0'"
    columns = []
    for target in data.targets:
        table = holder(tables, target)
        if rule is not None:
            numbers = column_numbers(table, target, hint=LABEL_RULE)
            columns.append(np.where(np.isnan(numbers), np.nan, rule.holds(numbers)))
        else:
            columns.append(column_codes(table, target, levels, hint) if levels else column_numbers(table, target))
    return np.column_stack(columns) if several else columns[0]


def labels_for(
    data: Tabular, tables: Sequence[Table], *, training: bool
) -> tuple[Array | None, Array, tuple[str, ...]]:
    """Return labels as `labels_of` does, which rows have unknown labels, bool [rows], and notes on them.

    For training, a cell has to be a label or missing. Predictions need no labels: they may be None.
    """
    nothing = np.zeros(len(tables[0]), bool)
    if training:
        return labels_of(data, tables), nothing, ()
    if not all(any(target in table.frame for table in tables) for target in data.targets):
        return None, nothing, ()
    wrong: dict[int, DataError] = {}
    labels = labels_of(data, [replace(table, refused=wrong) for table in tables])
    unknown: Array = np.asarray(np.isnan(labels.reshape(len(labels), len(data.targets))).any(axis=1))
    if not unknown.any():
        return labels, unknown, ()
    row = min(wrong, default=int(unknown.argmax()))
    first = wrong.get(row) or holder(tables, data.targets[0]).error(row, data.targets[0], "is missing")
    some = "" if unknown.all() else ", and figures are those of the others"
    told = f"{first.path}: {first.problem}; {int(unknown.sum())} of {len(labels)} labels are not used{some}"
    return None if unknown.all() else np.nan_to_num(labels), unknown, (told,)


def as_labels(data: Tabular, found: Array) -> Array:
    """Convert labels without missing values to int64 for classes, otherwise float64."""
    return found.astype(np.int64) if data.values else found
