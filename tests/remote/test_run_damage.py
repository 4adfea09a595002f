"""Damage of a run's file: flipped bits, deleted and foreign rows are named, or change nothing."""

from __future__ import annotations

import shutil
import sqlite3
from contextlib import closing, suppress
from pathlib import Path

import pytest

from rankdad.common.errors import UserError
from rankdad.remote.check_run import faults_of
from rankdad.remote.journal import HEAD, PAGE
from rankdad.remote.records import DamageError, Entry, Record
from rankdad.remote.run_file import RunFile
from rankdad.remote.run_reader import FILE, RunReader
from rankdad.remote.tables import rows_of
from tests.remote.test_run_file import PLAN, add, contents, opened, round_of, write


@pytest.mark.slow
@pytest.mark.parametrize("way", ["shortened", "changed"])
def test_a_round_is_there_with_all_that_it_was_made_of_or_not_at_all(tmp_path: Path, way: str) -> None:
    """Whatever of the journal has come to the disk when the power goes."""
    records = write(tmp_path / "whole", 3)
    (tmp_path / "cut").mkdir()
    with closing(opened(tmp_path / "whole")) as file:
        for number in range(3, 6):
            records += add(file, number)
        kept = {name: (tmp_path / "whole" / f"{FILE}{name}").read_bytes() for name in ("", "-wal")}
    records = [record for record in records if record.round < 3 or record != round_of(3)[0]]
    journal, ends = kept["-wal"], set[int]()
    for size in range(0, len(journal), 4051):
        torn = journal[:size] if way == "shortened" else journal[:size] + bytes(len(journal) - size)
        for name, data in {"": kept[""], "-wal": torn}.items():
            (tmp_path / "cut" / f"{FILE}{name}").write_bytes(data)
        with closing(opened(tmp_path / "cut")) as file:
            end = file.end
            found = [record for record in file.records() if record.round < end]
            assert found[-1] == Record(Entry.UPDATE, end - 1, body=f"update {end - 1}".encode())
            assert [row["step"] for row in rows_of(file, "steps")] == [str(number) for number in range(end)]
            assert len(found) == sum(len(round_of(number)) + 2 * (number == 5) for number in range(end)) + (end > 3)
            assert add(file, end), "and it goes on"
        ends.add(end)
        shutil.rmtree(tmp_path / "cut")
        (tmp_path / "cut").mkdir()
    assert ends >= {3, 4, 5}


@pytest.mark.slow
def test_a_flipped_bit_in_the_log_of_a_killed_run_loses_no_round_without_a_word(tmp_path: Path) -> None:
    """SQLite drops the round with it and all later ones; only the very last may be one that nobody was told of."""
    with closing(opened(tmp_path)) as file:
        for number in range(6):
            add(file, number)
        kept = {name: (tmp_path / f"{FILE}{name}").read_bytes() for name in ("", "-wal")}
    ends, size = set[tuple[int, bool]](), len(kept["-wal"])
    for at in (*range(0, HEAD, 5), *range(HEAD, size, 9973)):
        folder = tmp_path / str(at)
        folder.mkdir()
        log = bytearray(kept["-wal"])
        log[at] ^= 1 << at % 8
        (folder / FILE).write_bytes(kept[""])
        (folder / f"{FILE}-wal").write_bytes(log)
        is_told = False
        try:
            with suppress(UserError):
                is_told = "a last round that was cut short" in faults_of(folder)[1]
            opened(folder).close()
        except DamageError:
            assert (folder / f"{FILE}-wal").read_bytes() == log
            with suppress(UserError), closing(RunReader(folder / FILE)) as read:  # without tables, if its first is hit
                assert f"{FILE}-wal is damaged" in " ".join(read.faults())
                with pytest.raises(DamageError):
                    [*read.updates()]
            continue
        with closing(RunReader(folder / FILE)) as read:
            ends.add((read.end, is_told))
    assert ends == {(5, True)}


@pytest.mark.slow
@pytest.mark.parametrize("stride", [331, pytest.param(7, marks=[pytest.mark.slow, pytest.mark.timeout(1800)])])
def test_a_flipped_bit_is_said_or_changes_nothing(tmp_path: Path, stride: int) -> None:
    used = sum(len(record.body) for record in write(tmp_path))
    whole, known, said = (tmp_path / FILE).read_bytes(), contents(tmp_path), 0
    for at in range(0, len(whole), stride):
        data = bytearray(whole)
        data[at] ^= 1 << at % 8
        (tmp_path / FILE).write_bytes(data)
        damaged: list[UserError]
        try:
            records, rows = contents(tmp_path)
            damaged = [record.damage for record in records if record.damage is not None]
        except UserError as error:
            records, rows, damaged = [], [], [error]
        said += bool(damaged)
        assert all(str(tmp_path / FILE) in str(error) for error in damaged)
        assert damaged or (records, rows) == known, at
    assert said >= used // stride


@pytest.mark.parametrize("body", [b"update 5", b"another"])
def test_a_damaged_update_is_named_and_mended_by_what_it_was(tmp_path: Path, body: bytes) -> None:
    write(tmp_path)
    with closing(sqlite3.connect(tmp_path / FILE)) as other, other:
        other.execute("UPDATE updates SET body = ? WHERE round = 5", (b"damaged",))
    with closing(opened(tmp_path)) as file:
        assert [record.round for record in file.records() if record.damage is not None] == [5]
        with pytest.raises(DamageError, match=f"{FILE}: the update of round 5 is damaged"):
            file.update(5)
        if body == b"another":
            with pytest.raises(DamageError, match="round 5"):
                file.mend(5, body)
            return
        file.mend(5, body)
        assert file.update(5) == body
        assert [*file.faults()] == []


def test_all_that_is_damaged_or_missing_is_listed(tmp_path: Path) -> None:
    write(tmp_path)
    with closing(sqlite3.connect(tmp_path / FILE)) as other, other:
        other.execute("UPDATE contributions SET site = 2 WHERE place >> 20 = 3")
        other.execute("DELETE FROM updates WHERE round = 4")
        other.execute("UPDATE cells SET row = '[9]' WHERE round = 2")
    with closing(RunReader(tmp_path / FILE, PLAN)) as file:
        faults = [*file.faults()]
        with pytest.raises(DamageError, match="the update of round 4 is missing"):
            list(file.updates())
    assert [fault.partition(" of ")[2].partition(":")[0] for fault in faults if "contribution" in fault] == [
        "round 3 is damaged"
    ] * 2
    assert any("row 2 of steps of round 2 is damaged" in fault for fault in faults)
    assert any("the update of round 4 is missing" in fault for fault in faults)


@pytest.mark.parametrize(("where", "missing"), [("round < 5", 2), ("round >= 0", 0), ("round > 7", 8)])
def test_deleted_updates_are_named_whether_they_were_first_or_last(tmp_path: Path, where: str, missing: int) -> None:
    write(tmp_path)
    with closing(opened(tmp_path)) as file:
        for before in (2, 4):  # those before 2 are gone by right
            file.retire(before, updates=True)
        file.set("rounds", "10")
        assert [*file.faults()] == []
    with closing(sqlite3.connect(tmp_path / FILE)) as other, other:
        other.execute(f"DELETE FROM updates WHERE {where}")
        other.execute("DELETE FROM contributions")
        other.execute("DELETE FROM cells WHERE ?", (missing == 8,))
    with closing(RunReader(tmp_path / FILE, PLAN)) as file:
        assert f"the update of round {missing} is missing" in " ".join(file.faults())


def test_rows_of_another_run_are_damage(tmp_path: Path) -> None:
    """Their digests were right: they did not include the run."""
    write(tmp_path / "one")
    with closing(RunFile(tmp_path / "other" / FILE, PLAN, "f" * 16)) as file:
        for number in range(10):
            add(file, number)
    with closing(sqlite3.connect(tmp_path / "one" / FILE)) as one, one:
        one.execute("ATTACH ? AS other", (str(tmp_path / "other" / FILE),))
        for table, where in (("contributions", "place >> 20 = 3"), ("updates", "round = 4"), ("cells", "round = 5")):
            one.execute(f"REPLACE INTO {table} SELECT * FROM other.{table} WHERE {where}")
    with closing(RunReader(tmp_path / "one" / FILE, PLAN)) as file:
        found = " ".join(file.faults())
    for what in ("contribution 1 of round 3", "update of round 4", "row 5 of steps of round 5"):
        assert f"{what} is damaged" in found


def test_a_damaged_page_is_named_by_its_round_or_written_anew(tmp_path: Path) -> None:
    write(tmp_path)
    whole, known, found = (tmp_path / FILE).read_bytes(), contents(tmp_path), set[object]()
    for at in (PAGE + 3, *range(6 * PAGE, len(whole), PAGE)):  # the map of pages, and the kinds of those with rows
        (tmp_path / FILE).write_bytes(whole[:at] + bytes([whole[at] ^ 4]) + whole[at + 1 :])
        try:
            opened(tmp_path).close()
            found.add(contents(tmp_path) == known)
        except DamageError as error:
            found.add(error.row is not None)
    assert found == {True}
