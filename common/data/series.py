"""Reads series from a long table, with a row for each time, and labels from it or from a second table."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path

import numpy as np
import pandas as pd

from rankdad.common.data.cells import as_labels, column_numbers, labels_for
from rankdad.common.data.encoding import all_rows
from rankdad.common.data.files import read_first
from rankdad.common.data.formats import check_fits
from rankdad.common.data.joining import keys_of, told_apart
from rankdad.common.data.listed import complete
from rankdad.common.data.reading import MISSING, Array, Reading, by_column, fingerprints, number, shown
from rankdad.common.data.table_files import read_table
from rankdad.common.data.tables import Table, holder
from rankdad.common.errors import DataError, UserError
from rankdad.common.spec.series import SeriesData


def read_series(path: Path, data: SeriesData, dtype: str, *, beside: Sequence[str] | None = None) -> Reading:
    """Read series, ordered by time and padded with frames of NaN.

    Args:
        path: the folder of the schema's files, or a file to read instead of the long table.
        data: the schema.
        dtype: of the inputs, such as "float32".
        beside: columns to copy next to predictions: single series are then refused, and labels may be missing; None to
            read for training.

    Raises:
        DataError: data cannot be used; names file, row and column.
    """
    folder, rows, notes = read_first(path, data.file, data)
    refused = dict[int, DataError]()
    if not len(rows):
        raise DataError(rows.source, "has no rows", code="no-rows")
    if beside is not None:
        rows = replace(rows, refused=refused)
    names = _names(rows, data.key)
    codes, found = pd.factorize(np.array(names, object))
    times = _times(rows, data.time)
    values = np.column_stack([column_numbers(holder((rows,), one), one, dtype, levels=False) for one in data.features])
    order = np.lexsort((times, codes))
    _check_times(rows, data, names, codes, times, order)
    order, values, told = _filled(rows, data, codes, order, values)
    taken = {str(name): order[codes[order] == code] for code, name in enumerate(found)} if len(order) else {}
    taken = {name: _cut(rows, data, own) for name, own in taken.items() if len(own)}
    wrong = {names[row]: error for row, error in sorted(refused.items(), reverse=True)}
    samples, notes_too = _samples(folder, rows, data, codes, training=beside is None)
    notes += (*told, *notes_too, *told_apart(rows, data.key, [str(name) for name in found]))
    check_fits(
        rows.source,
        f"samples of shape {list(data.shape)}",
        len(samples) * math.prod(data.shape) * np.dtype(dtype).itemsize,
    )
    refused, whole = {}, len(samples)
    keys = samples.ids(data.key)
    empty = [place for place, name in enumerate(keys) if name not in taken and name not in wrong]
    if beside is None:
        samples, told = _without(samples, data, empty)
    else:
        refused |= {place: wrong[name] for place, name in enumerate(keys) if name in wrong}
        samples, told = replace(samples, refused=refused), ()
        for place in empty:
            problem = f"{shown(keys[place])} has no rows in {Path(rows.source).name}"
            samples.refuse(place, data.key, problem, code="series-empty")
    notes += told
    labels, unlabelled, told = labels_for(data, (samples,), training=beside is None)
    if labels is not None and beside is None:
        samples, labels, told = complete(samples, data, labels, ())
    kept = [place for place in range(len(samples)) if place not in refused]
    if not kept:
        raise UserError(f"no row can be predicted: {refused[0]}", code="nothing-to-predict")
    used = samples.take(kept)
    keys = used.ids(data.key)
    groups = None if data.group is None or beside is not None else tuple(used.ids(data.group))
    if data.group is not None and groups is not None:
        notes += told_apart(used, data.group, groups)
    return Reading(
        rows.source if beside is not None else used.source,
        _padded([values[taken[name]] for name in keys], data.shape, dtype),
        None if labels is None else as_labels(data, labels[kept]),
        keys=tuple(keys),
        groups=groups,
        dropped=whole - len(samples),
        notes=notes + told,
        rows=None if beside is None else all_rows((samples,), (data.key, data.group), beside, refused, unlabelled),
        named_by=by_column(None if groups is None else data.group, data.key),
        stands=lambda: (
            {column: used.stands(column) for column in data.targets}
            | {"samples": np.concatenate([fingerprints(values[taken[name]][None]) for name in keys])}
        ),
    )


def _without(samples: Table, data: SeriesData, empty: Sequence[int]) -> tuple[Table, tuple[str, ...]]:
    """Return samples without those that have no rows, and notes on them.

    Raises:
        DataError: there are some, and the schema does not drop them.
    """
    if not empty:
        return samples, ()
    count = f"{len(empty)} of {len(samples)} series have no rows"
    problem = f"{shown(samples.ids(data.key)[empty[0]])} has no rows: {count}"
    error = samples.error(empty[0], data.key, problem, code="series-empty")
    if data.missing == "refuse":
        raise error
    left = sorted(set(range(len(samples))).difference(empty))
    return samples.take(left), (f"{error}; they are left out",)


def _names(rows: Table, key: str) -> list[str]:
    """Return the series of each row."""
    names = holder((replace(rows, refused=None),), key).ids(key)
    for row, name in enumerate(names):
        if name.lower() in MISSING:
            raise rows.error(row, key, "is missing, expected the series that the row is of", code="key-missing")
    return names


def _times(rows: Table, column: str) -> Array:
    """Return a column's numbers, or the seconds of its dates and times, float64 [rows]."""
    texts = holder((rows,), column).texts(column)
    given = [text for text in texts if text.lower() not in MISSING]
    dated = sum(not math.isnan(_seconds(text)[0]) for text in given) > len(given) / 2
    if not dated or column in rows.decimals.comma:
        times = column_numbers(rows, column)
    else:
        read = [_seconds(text) for text in texts]
        times, offsets = np.array([seconds for seconds, _ in read]), [offset for _, offset in read]
        known = np.flatnonzero(~np.isnan(times)).tolist()
        for row in known:
            if offsets[row] != offsets[known[0]]:
                words = ("has no offset from UTC", "has an offset from UTC")
                problem = f"{shown(texts[row])} {words[offsets[row]]}, and {rows.place(known[0])[1]}"
                rows.refuse(row, column, f"{problem} {words[offsets[known[0]]]}: write all alike", code="offsets-mixed")
    for row in np.flatnonzero(np.isnan(times)).tolist():
        missing = texts[row].lower() in MISSING
        found = "is missing" if missing else f"holds {shown(texts[row])}"
        expected = "a date and time such as 2020-04-03 14:05" if dated else "a number, as in the other rows"
        rows.refuse(row, column, f"{found}, expected {expected}", code="time-missing" if missing else "not-a-time")
    return times


def _seconds(text: str) -> tuple[float, bool]:
    """Return the seconds of a date and time since 1970 in UTC, and whether it has an offset from UTC."""
    if not math.isnan(number(text)):  # 20200403 may be a date or a number
        return math.nan, False
    try:
        found = datetime.fromisoformat(text)
    except ValueError:
        return math.nan, False
    offset = found.tzinfo is not None
    return (found - datetime(1970, 1, 1, tzinfo=UTC if offset else None)).total_seconds(), offset


def _check_times(rows: Table, data: SeriesData, names: Sequence[str], codes: Array, times: Array, order: Array) -> None:
    """Check that no series has two rows with the same time, whose order would be unknown."""
    same = (codes[order][1:] == codes[order][:-1]) & (times[order][1:] == times[order][:-1])
    for place in np.flatnonzero(same).tolist():
        row, other = int(order[place + 1]), rows.place(int(order[place]))[1]
        problem = f"is that of {other}, too, and both rows are of {shown(names[row])}"
        rows.refuse(row, data.time, problem, ": leave one out, or give finer times", code="time-repeated")


def _filled(
    rows: Table, data: SeriesData, codes: Array, order: Array, values: Array
) -> tuple[Array, Array, tuple[str, ...]]:
    """Return the remaining rows in order, their values without gaps, and notes on the gaps."""
    gaps = np.isnan(values)
    gaps[list(rows.refused or ())] = False
    if not gaps.any():
        return order, values, ()
    row, place = (int(one) for one in np.argwhere(gaps)[0])
    column, count = data.features[place], f"{int(gaps.any(1).sum())} of {len(values)} rows lack a value"
    if data.missing == "refuse":
        advice = "complete it, or set data.missing to drop, which leaves such rows out, or carry, which takes the last"
        raise rows.error(row, column, f"is missing ({count}): {advice}", code="value-missing")
    text = "is left out"
    if data.missing == "carry":
        carried = pd.DataFrame(values[order]).groupby(codes[order], sort=False).ffill().to_numpy()
        values = values.copy()
        values[order] = carried
        text = "takes the value before it in its series, and is left out where there is none"
    left: Array = np.logical_not(np.isnan(values).any(1))
    return order[left[order]], values, (str(rows.error(row, column, f"is missing; {count}: each {text}")),)


def _cut(rows: Table, data: SeriesData, own: Array) -> Array:
    """Return a series' rows, cut as the schema says if it is too long."""
    if len(own) <= data.frames:
        return own
    if data.longer == "refuse":
        name = shown(rows.ids(data.key)[own[0]])
        problem = f"{name} has {len(own)} rows, expected at most {data.frames}, data.frames"
        advice = ": raise it, or set data.longer to first or last"
        rows.refuse(int(own[data.frames]), data.key, problem, advice, code="series-too-long")
    return own[-data.frames :] if data.longer == "last" else own[: data.frames]


def _samples(
    folder: Path, rows: Table, data: SeriesData, codes: Array, *, training: bool
) -> tuple[Table, tuple[str, ...]]:
    """Return a table with a row for each series."""
    if data.covariates is not None and (training or (folder / data.covariates).exists()):
        table = read_table(folder / data.covariates, data)
        own = keys_of(table, data.key, several=": each series has one row here")
        listed = np.array([name in own for name in rows.ids(data.key)])
        if listed.all():
            return table, ()
        row = int(listed.argmin())
        problem = f"{shown(rows.ids(data.key)[row])} is not in {data.covariates}"
        count = len(np.unique(codes[~listed]))
        if training and data.missing == "refuse":
            advice = "complete the table, or set data.missing to drop"
            raise rows.error(row, data.key, f"{problem}, nor are {count - 1} others: {advice}", code="key-not-in-all")
        return table, (str(rows.error(row, data.key, f"{problem}; {count} series are left out")),)
    first = np.unique(codes, return_index=True)[1]
    rows = replace(rows, refused=None)
    for column in filter(None, (*data.targets, data.group)):
        if not training and column not in rows.frame:
            continue
        texts: Array = np.array(holder((rows,), column).texts(column), object)
        differ: Array = np.not_equal(texts, texts[first][codes])
        if differ.any():
            row = int(differ.argmax())
            other = rows.place(int(first[codes[row]]))[1]
            problem = f"holds {shown(texts[row])}, and in {other} of the same series {shown(texts[first[codes[row]]])}"
            raise rows.error(row, column, f"{problem}: a series has one", code="series-contradicts")
    return rows.take(first.tolist()), ()


def _padded(series: Sequence[Array], shape: tuple[int, ...], dtype: str) -> Array:
    """Pad series [time, channels] with NaN to one array [n, frames, channels]."""
    found = np.full((len(series), *shape), np.nan, dtype)
    for place, own in enumerate(series):
        found[place, : len(own)] = own
    return found
