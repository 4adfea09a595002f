"""A checksum of all rows of a database, kept by triggers: SQLite does not notice a flipped bit of a value."""

from __future__ import annotations

import sqlite3
import zlib
from collections.abc import Iterable

TABLE = "checksum"
SCHEMA = f"CREATE TABLE IF NOT EXISTS {TABLE} (value INTEGER NOT NULL);"
MASK = 2**32 - 1
EVENTS = {"INSERT": {"NEW": "+"}, "DELETE": {"OLD": "-"}, "UPDATE": {"NEW": "+", "OLD": "-"}}


def watch(database: sqlite3.Connection, tables: Iterable[str]) -> None:
    """Keep the checksum of some tables up to date with what this connection writes."""
    database.create_function("of_row", -1, _of_row, deterministic=True)
    database.execute("PRAGMA recursive_triggers = ON")  # or rows that REPLACE deletes would not be seen
    for table in tables:
        columns = [name for _, name, *_ in database.execute(f"PRAGMA table_info({table})")]
        for event, rows in EVENTS.items():
            changes = " ".join(
                f"{sign} of_row('{table}', {', '.join(f'{row}.{column}' for column in columns)})"
                for row, sign in rows.items()
            )
            database.execute(
                f"CREATE TEMP TRIGGER {table}_{event} AFTER {event} ON main.{table} "
                f"BEGIN UPDATE {TABLE} SET value = (value {changes}) & {MASK}; END"
            )


def begin(database: sqlite3.Connection, tables: Iterable[str]) -> None:
    """Write the first checksum of some tables."""
    database.execute(f"INSERT INTO {TABLE} VALUES (?)", [_of_all(database, tables)])


def holds(database: sqlite3.Connection, tables: Iterable[str]) -> bool:
    """Return whether all rows of some tables are those that were written."""
    return database.execute(f"SELECT value FROM {TABLE}").fetchall() == [(_of_all(database, tables),)]


def _of_all(database: sqlite3.Connection, tables: Iterable[str]) -> int:
    rows = (_of_row(table, *row) for table in tables for row in database.execute(f"SELECT * FROM {table}"))
    return sum(rows) & MASK


def _of_row(*row: object) -> int:
    return zlib.crc32(repr(row).encode())
