"""A run's file: rounds in their order and whole, whatever a crash, a disk or another process does."""

from __future__ import annotations

import os
import shutil
import sqlite3
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from rankdad.common.errors import UserError
from rankdad.remote import run_file
from rankdad.remote.records import DamageError, Entry, Record, digest_of
from rankdad.remote.retention import ending, is_whole
from rankdad.remote.run_file import RunFile
from rankdad.remote.run_reader import FILE, RunReader
from rankdad.remote.tables import rows_of, write_tables

PLAN, RUN = "a" * 64, "0123456789abcdef"
RESET = Record(Entry.RESET, 5, 1)
AGAIN = Record(Entry.CONTRIBUTION, 5, 1, b"5 1 again")
SIZE = 3000  # of a contribution: beyond what a page takes in with others


def opened(folder: Path, **options: Any) -> RunFile:
    return RunFile(folder / FILE, PLAN, RUN, **options)


def round_of(number: int) -> list[Record]:
    sent = [Record(Entry.CONTRIBUTION, number, site, f"{number} {site} ".encode() * (SIZE // 4)) for site in (1, 0)]
    return [*sent, Record(Entry.UPDATE, number, body=f"update {number}".encode())]


def add(file: RunFile, number: int) -> list[Record]:
    records = round_of(number)
    if number == 5:
        records[2:2] = [RESET, AGAIN]
    for record in records:
        file.append(record)
    file.row("steps", [number, 0.5, "late"])
    file.commit()
    return records


def write(folder: Path, rounds: int = 10) -> list[Record]:
    """Write so many rounds, and a contribution to one that is open."""
    with closing(opened(folder)) as file:
        file.begin_table("steps", ["step", "loss", "left_out"])
        records = [record for number in range(rounds) for record in add(file, number)]
        records.append(round_of(rounds)[0])
        file.append(records[-1])
        file.commit()
    return records


def contents(folder: Path) -> tuple[list[Record], list[dict[str, str]]]:
    with closing(RunReader(folder / FILE, PLAN)) as file:
        file.check_end(0)
        return [*file.records()], [*rows_of(file, "steps")]


def test_rounds_come_back_in_the_order_in_which_they_were_written(tmp_path: Path) -> None:
    records = write(tmp_path)
    with closing(opened(tmp_path)) as file:
        assert [*file.records(5)] == [record for record in records if record.round >= 5]
        assert [file.update(number) for number in (0, 9, 10, -1, 2**64 - 1)] == [b"update 0", b"update 9", *[None] * 3]
        assert (file.oldest, file.end, file.run_id) == (0, 10, RUN)
        assert [record.round for record in file.updates(3)] == list(range(3, 10))
        file.append(round_of(10)[2])
        file.commit()
        assert file.update(10) == b"update 10"
        write_tables(file, tmp_path)
    assert (tmp_path / "steps.csv").read_text().splitlines()[:2] == ["step,loss,left_out", "0,0.5,late"]
    assert {path.stat().st_mode & 0o777 for path in tmp_path.glob(f"{FILE}*")} == {0o600}


@pytest.mark.parametrize("updates", [False, True])
def test_what_no_checkpoint_needs_goes(tmp_path: Path, updates: bool) -> None:
    write(tmp_path)
    with closing(opened(tmp_path)) as file:
        for before in (3, 6, 8):
            file.retire(before, updates=updates)
        assert min(one.round for one in file.records() if one.entry is Entry.CONTRIBUTION) == 8
        assert (file.oldest_contribution, file.oldest) == (8, 6 * updates)
        assert file.update(0) == (None if updates else b"update 0")
        if updates:
            with pytest.raises(UserError, match="has no round before 6"):
                list(file.updates())


@pytest.mark.slow
def test_what_sites_have_sent_is_in_no_file_once_it_is_deleted(tmp_path: Path) -> None:
    write(tmp_path, 100)
    with closing(opened(tmp_path)) as file:
        file.retire(50, updates=False)
        size = (tmp_path / FILE).stat().st_size
        assert file.sent().keys() == {0, 1}
        file.delete({"end": "over"}, site=1)
        assert file.sent().keys() == {0}
        file.delete({}, all_sites=True)
        assert (file.sent(), file.fact("end"), file.update(99)) == ({}, "over", b"update 99")
        left = b"".join(path.read_bytes() for path in tmp_path.iterdir())
    assert not any(f"{number} {site} ".encode() * 3 in left for number in range(100) for site in (0, 1))
    assert (tmp_path / FILE).stat().st_size < size / 4


def test_one_process_at_a_time_writes_and_hears_that_another_has(tmp_path: Path) -> None:
    first = opened(tmp_path)
    with pytest.raises(UserError) as refused:
        opened(tmp_path)
    assert refused.value.code == "locked"
    first.unlock()
    assert first.relock(), "nobody has written"
    first.unlock()
    with closing(opened(tmp_path)) as second:
        with pytest.raises(UserError, match="is in use by another process"):
            first.relock()
        assert first._lock < 0
        add(second, 0)
    assert not first.relock(), "it let go of the file: whoever wants to write opens it again"
    first.close()


def test_a_file_of_another_plan_or_format_or_of_something_else_is_refused(tmp_path: Path) -> None:
    write(tmp_path)
    with pytest.raises(UserError) as refused:
        RunFile(tmp_path / FILE, "b" * 64, RUN)
    assert refused.value.code == "ledger-of-another-run"
    with closing(opened(tmp_path)) as file:
        file.set("format", "0")
    with pytest.raises(UserError) as refused:
        opened(tmp_path)
    assert refused.value.code == "ledger-of-earlier-version"
    (tmp_path / FILE).write_bytes(b"no database" * 1000)
    with pytest.raises(DamageError):
        opened(tmp_path)
    with pytest.raises(UserError) as refused:
        RunReader(tmp_path / "missing" / FILE)
    assert refused.value.code == "no-ledger"


def test_a_disk_that_is_full_loses_nothing_that_was_written(tmp_path: Path) -> None:
    import resource

    with closing(opened(tmp_path)) as file:
        add(file, 0)
        soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
        room = (tmp_path / f"{FILE}-wal").stat().st_size + 2000
        resource.setrlimit(resource.RLIMIT_FSIZE, (room, hard))
        try:
            with pytest.raises(UserError, match="the run can resume from here"):
                add(file, 1)
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
        assert file.end == 1
        file.commit()
        assert (file.end, len([*file.records()])) == (2, 6)


@pytest.mark.parametrize("done", ["", "PRAGMA auto_vacuum = INCREMENTAL; VACUUM; PRAGMA journal_mode = WAL"])
def test_a_file_that_a_crash_has_left_without_tables_is_begun_again(tmp_path: Path, done: str) -> None:
    os.close(os.open(tmp_path / FILE, os.O_CREAT | os.O_WRONLY, 0o600))
    with closing(sqlite3.connect(tmp_path / FILE)) as other:
        other.executescript(done)
    with closing(opened(tmp_path)) as file:
        assert (file.end, file.run_id) == (0, RUN)


def test_what_is_deleted_is_said_to_be_only_once_nobody_reads_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(run_file, "PATIENCE", 0)
    write(tmp_path)
    with closing(opened(tmp_path)) as file:
        with closing(RunReader(tmp_path / FILE)), pytest.raises(UserError) as read:
            file.delete({}, all_sites=True)
        assert read.value.code == "file-is-read"
        file.delete({}, all_sites=True)
    assert [path.name for path in tmp_path.glob("*") if b"5 1 5 1 " in path.read_bytes()] == []


def test_a_reader_sees_the_file_as_it_was_when_it_was_opened(tmp_path: Path) -> None:
    write(tmp_path)
    with closing(opened(tmp_path)) as file, closing(RunReader(tmp_path / FILE)) as read:
        before = [*read.table("steps")]
        for number in range(11, 14):
            add(file, number)
        assert ([*read.table("steps")], read.end, [*read.faults()]) == (before, 10, [])


@pytest.mark.parametrize("how", ["removed", "replaced", "journal removed"])
def test_a_file_that_is_taken_away_while_its_run_goes_on_is_missed(tmp_path: Path, how: str) -> None:
    write(tmp_path)
    with closing(opened(tmp_path)) as file:
        add(file, 11)
        if how == "journal removed":
            (tmp_path / f"{FILE}-wal").unlink()
        else:
            shutil.copy(tmp_path / FILE, tmp_path / "copy")
            (tmp_path / FILE).unlink()
        if how == "replaced":
            (tmp_path / "copy").rename(tmp_path / FILE)
        with pytest.raises(UserError) as missed:
            add(file, 12)
        assert missed.value.code == "file-replaced"
    if how == "journal removed":  # nothing was lost: what was in it is in the file
        with closing(RunReader(tmp_path / FILE)) as left:
            assert left.end == 12


def test_a_run_whose_rounds_are_lost_does_not_begin_again(tmp_path: Path) -> None:
    """As after a kill -9 with all rounds still in a journal that somebody then removes."""
    write(tmp_path)
    (tmp_path / "run.json").write_text("{}")
    (tmp_path / FILE).write_bytes(b"")
    with pytest.raises(DamageError):
        opened(tmp_path)
    assert (tmp_path / FILE).read_bytes() == b""


@pytest.mark.parametrize("open_file", [RunReader, RunFile])
@pytest.mark.parametrize("what", ["a folder", "another user's"])
def test_a_file_that_cannot_be_opened_is_a_sentence(tmp_path: Path, open_file: Any, what: str) -> None:
    write(tmp_path)
    path, made = tmp_path / FILE, os.geteuid()
    if what == "a folder":
        path.unlink()
        path.mkdir()
    else:
        path.chmod(0o600)
        if made != 0:
            pytest.skip("only root can become another user")
        os.seteuid(65534)
    try:
        with pytest.raises(UserError) as refused:
            open_file(path)
    finally:
        os.seteuid(made)
    assert refused.value.code in ("cannot-read", "cannot-write", "no-ledger")


def test_rounds_far_apart_are_not_gone_through_one_by_one(tmp_path: Path) -> None:
    write(tmp_path)
    with closing(sqlite3.connect(tmp_path / FILE, isolation_level=None)) as database:
        values = (1 << 62, 0, "{}")
        database.execute("INSERT INTO updates VALUES (?, ?, ?, ?, ?)", (*values, digest_of(RUN, *values, b""), b""))
        with closing(RunReader(tmp_path / FILE)) as file:
            assert sum("the update of round 10 is missing" in fault for fault in file.faults()) >= 1
        database.execute("UPDATE updates SET round = round + (1 << 40) WHERE round < 10")
    with closing(RunReader(tmp_path / FILE)) as file:
        assert len([*file.faults()]) >= 10


FOREIGN = {
    "a trigger": "CREATE TRIGGER keep AFTER INSERT ON contributions BEGIN SELECT 1; END",
    "a table": "CREATE TABLE stash (body)",
    "a view": "CREATE VIEW shown AS SELECT 1",
    "without types": "DROP TABLE updates; CREATE TABLE updates (round, sent, rows, digest, body)",
    "endless": "DROP TABLE facts; CREATE VIEW facts AS WITH RECURSIVE n(name) AS "
    "(SELECT 'x' UNION ALL SELECT name FROM n) SELECT name, 1 AS value, 2 AS digest FROM n",
}


@pytest.mark.parametrize("statements", FOREIGN.values(), ids=FOREIGN)
def test_a_file_with_anybodys_tables_is_not_read(tmp_path: Path, statements: str) -> None:
    write(tmp_path)
    with closing(sqlite3.connect(tmp_path / FILE)) as database:
        database.executescript(statements)
    for kind in (RunReader, RunFile):
        with pytest.raises(DamageError, match="has other tables than a run"):
            kind(tmp_path / FILE)


@pytest.mark.parametrize(
    ("name", "value"),
    [("contributions from", "x"), ("contributions from", "[1]"), ("rounds", "{}"), ("columns of steps", "5")]
    + [("columns of steps", "[" * 5000), ("end", "{}"), ("retention", "[1]")],
)
def test_facts_that_are_anybodys_are_damage(tmp_path: Path, name: str, value: str) -> None:
    write(tmp_path)
    with closing(opened(tmp_path)) as file:
        file.set(name, value)

    def read(file: RunReader) -> None:
        file.check_end(0)
        assert [*file.records(), *rows_of(file, "steps"), ending(file), is_whole(file)]

    with closing(RunReader(tmp_path / FILE)) as found, pytest.raises(UserError):
        read(found)


@pytest.mark.parametrize("row", ["5", "{}", "[[]]", "[" * 5000, f"[{'1' * 10_000}]", '["\\ud800"]'])
def test_rows_that_are_anybodys_are_damage(tmp_path: Path, row: str) -> None:
    write(tmp_path)
    with closing(sqlite3.connect(tmp_path / FILE, isolation_level=None)) as database:
        values = ("steps", 10, 9)
        database.execute("INSERT INTO cells VALUES (?, ?, ?, ?, ?)", (*values, digest_of(RUN, *values, row), row))
    with closing(RunReader(tmp_path / FILE)) as file, pytest.raises(DamageError):
        [*file.table("steps")]
