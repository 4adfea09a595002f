"""Reads texts from a table, or from files that a table lists, as sequences of tokens."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np

from rankdad.common.data.cells import as_labels, labels_for
from rankdad.common.data.encoding import all_rows
from rankdad.common.data.files import read_first
from rankdad.common.data.formats import check_fits
from rankdad.common.data.joining import keys_of, told_apart
from rankdad.common.data.listed import complete, file_within
from rankdad.common.data.reading import MISSING, Array, Reading, by_column, shown
from rankdad.common.data.tables import Table, holder
from rankdad.common.data.tokens import Encoder, encoder_of
from rankdad.common.errors import DataError, UserError
from rankdad.common.spec.text import PADDING, TextData

MOST_BYTES = 40  # of memory for each byte of a text


def read_text(path: Path, data: TextData, *, beside: Sequence[str] | None = None) -> Reading:
    """Read texts, padded to the schema's length.

    Args:
        path: the folder of the schema's table, or a table to read instead.
        data: the schema.
        beside: columns to copy next to predictions: single rows are then refused, and labels may be missing; None to
            read for training.

    Raises:
        DataError: data cannot be used; names file, row and column.
    """
    folder, table, notes = read_first(path, data.file, data)
    encode = encoder_of(data, folder)
    training, whole = beside is None, len(table)
    if not whole:
        raise DataError(table.source, "has no rows", code="no-rows")
    group = data.group if training or data.group in table.frame else None  # predictions need none
    for column in filter(None, (data.column, group, data.key if training or data.key in table.frame else None)):
        holder((table,), column)
    if table.missing(data.column).all():
        said = f"column {shown(data.column)} is empty, expected a text in each row"
        raise DataError(table.source, said, code="column-empty", field=data.column)
    table = replace(table, refused=None if training else {})
    labels: Array | None = np.zeros((whole, 0))
    unlabelled, told = np.zeros(whole, bool), tuple[str, ...]()
    if data.targets:
        labels, unlabelled, told = labels_for(data, (table,), training=training)
    notes += told
    if labels is not None and training:
        table, labels, told = complete(table, data, labels, (data.column,), code="text-empty")
        notes += told
        if data.key is not None:
            keys_of(table, data.key)
        if data.holds == "file":
            keys_of(table, data.column, lambda text: str(Path(text)))
    tokens = _tokens(table, data, encode)
    if not tokens:
        raise UserError(f"no row can be predicted: {(table.refused or {})[0]}", code="nothing-to-predict")
    used, (key, group) = table.take(list(tokens)), (data.key if data.key in table.frame else None, group)
    check_fits(table.source, f"texts of {data.length} tokens", 8 * len(tokens) * data.length)
    inputs = np.full((len(tokens), data.length), PADDING, np.int64)
    for place, (own, _) in enumerate(tokens.values()):
        inputs[place, : len(own)] = own
    groups = tuple(used.ids(group)) if training and group is not None else None
    return Reading(
        table.source,
        inputs,
        _bytes(tokens) if not data.targets else None if labels is None else as_labels(data, labels[list(tokens)]),
        keys=used.names() if key is None else tuple(used.ids(key)),
        groups=groups,
        dropped=whole - len(table),
        notes=notes if groups is None or group is None else notes + told_apart(used, group, groups),
        rows=None if table.refused is None else all_rows((table,), (data.key, data.group), beside or (), table.refused,
                                                         unlabelled),
        named_by=by_column(group, key),
        stands=lambda: {column: used.stands(column) for column in (data.column, *data.targets)},
    )  # fmt: skip


def _bytes(tokens: Mapping[int, tuple[Array, Array]]) -> Array:
    """Return the number of bytes of each text, float64 [n]: what a language model's bits are counted by."""
    return np.array([sizes.sum() for _, sizes in tokens.values()], np.float64)


def _tokens(table: Table, data: TextData, encode: Encoder) -> dict[int, tuple[Array, Array]]:
    """Return the tokens of each row's text, and their numbers of bytes; a row is refused if it has none or too many."""
    found, longer = dict[int, tuple[Array, Array]](), dict[int, int]()
    for row, text in enumerate(table.texts(data.column)):
        if text.lower() in MISSING:
            table.refuse(row, data.column, "is empty, expected a text", code="text-empty")
            continue
        if data.holds == "file":
            try:
                text = _file_text(Path(table.source).parent, text)
            except DataError as error:
                table.refuse(row, data.column, f"{shown(text)} {error.problem}", code=error.code)
                continue
        own, sizes = encode(text)
        if len(own) > data.length and data.longer == "refuse":
            longer[row] = len(own)
        kept = slice(-data.length, None) if data.longer == "last" else slice(data.length)
        found[row] = own[kept], sizes[kept]
    for row, length in longer.items():
        most = f" (the longest has {max(longer.values())})" * (len(longer) > 1)
        problem = f"has {length} tokens with begin and end{most}, expected at most {data.length}, data.length"
        advice = ": raise it, or set data.longer to first or last"
        table.refuse(row, data.column, problem, advice, code="text-too-long")
    return {row: own for row, own in found.items() if row not in (table.refused or {})}


def _file_text(folder: Path, name: str) -> str:
    """Return the text of a file.

    Raises:
        DataError: it is outside the folder, empty, or not in UTF-8.
    """
    try:
        file = file_within(folder, name)
        check_fits(name, "its tokens", MOST_BYTES * file.stat().st_size)
        text = file.read_bytes().decode("utf-8-sig").strip()
    except UnicodeDecodeError as error:
        raise DataError(name, f"is not text in UTF-8, at byte {error.start + 1}", code="not-utf-8") from None
    except OSError as error:
        raise DataError(name, f"cannot be read: {error.strerror}", code="cannot-read") from None
    if not text:
        raise DataError(name, "is empty, expected a text", code="text-empty")
    return text
