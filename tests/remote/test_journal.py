"""A journal: what was appended is read back, whatever a crash has left behind it, and damage is named."""

from __future__ import annotations

import errno
import os
import zlib
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from rankdad.common.errors import UserError
from rankdad.remote.journal import TORN, Journal
from rankdad.remote.records import BEGINNING_BYTES, HEAD_BYTES, NOBODY, DamageError, Entry, Record

PLAN, RUN = "a" * 64, "0" * 16
RECORDS = [
    Record(Entry.CONTRIBUTION, 0, 0, b"alpha"),
    Record(Entry.CONTRIBUTION, 0, 1, b""),
    Record(Entry.UPDATE, 0, NOBODY, b"both" * 100),
    Record(Entry.CONTRIBUTION, 1, 1, b"beta"),
]


def written(path: Path) -> Path:
    ledger = Journal(path, PLAN, RUN)
    for record in RECORDS:
        ledger.append(record)
    ledger.close()
    return path


def read(path: Path) -> list[Record]:
    with closing(Journal(path, PLAN, RUN)) as ledger:
        return list(ledger.records())


def place(number: int) -> int:
    """Where a record begins."""
    return BEGINNING_BYTES + sum(HEAD_BYTES + len(record.body) for record in RECORDS[:number])


@pytest.mark.parametrize("sync", [False, True])
def test_records_come_back(tmp_path: Path, sync: bool) -> None:
    ledger = Journal(tmp_path / "ledger", PLAN, RUN, sync=sync)
    for record in RECORDS:
        ledger.append(record)
    assert [ledger.at(number) for number in range(len(ledger))] == list(ledger.records()) == RECORDS
    ledger.close()
    assert read(tmp_path / "ledger") == RECORDS


def test_a_torn_tail_is_put_aside_and_the_file_goes_on(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    path, more = written(tmp_path / "ledger"), Record(Entry.UPDATE, 7, NOBODY, b"more")
    whole = path.read_bytes()
    for size in range(BEGINNING_BYTES, len(whole)):
        path.write_bytes(whole[:size])
        caplog.clear()
        found = read(path)
        assert found == RECORDS[: len(found)]
        kept = place(len(found))
        assert path.read_bytes() == whole[:kept]
        if kept == size:
            assert not caplog.messages
            continue
        beside = tmp_path / ("ledger" + TORN)
        assert beside.read_bytes() == whole[kept:size]
        assert f"ledger: record {len(found)} at byte {kept} was cut short by a crash" in caplog.text
        beside.unlink()
        with closing(Journal(path, PLAN, RUN)) as ledger:
            ledger.append(more)
        assert read(path) == [*found, more]


def test_what_power_has_not_let_reach_the_disk_is_torn_too(tmp_path: Path) -> None:
    path = written(tmp_path / "ledger")
    with path.open("ab") as file:
        file.write(bytes(300))
    assert read(path) == RECORDS
    assert path.stat().st_size == place(len(RECORDS))


def test_every_flipped_bit_is_said_with_its_record_and_cuts_nothing_off(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """In a body, it costs this record alone; in a head, nothing that follows is looked for."""
    path = written(tmp_path / "ledger")
    whole = path.read_bytes()
    for at in range(len(whole)):
        data = bytearray(whole)
        data[at] ^= 1 << at % 8
        path.write_bytes(data)
        number = max((n for n in range(len(RECORDS)) if place(n) <= at), default=-1)
        record, begins = f"ledger: record {number}", place(max(number, 0))
        caplog.clear()
        if number >= 0 and at >= begins + HEAD_BYTES:
            found = read(path)
            assert f"{record} (round {RECORDS[number].round}) at byte {begins} is damaged" in caplog.text
            assert [lost for lost, one in enumerate(found) if one.damage] == [number]
            assert found[:number] + found[number + 1 :] == RECORDS[:number] + RECORDS[number + 1 :]
        else:
            said = f"{record} at byte {begins} has a damaged head" if number >= 0 else "its beginning .* is damaged"
            with pytest.raises(UserError, match=f"{said}.*; the file is left as it is"):
                read(path)
        assert path.read_bytes() == data
    assert list(tmp_path.iterdir()) == [path]


def test_a_damaged_size_does_not_hide_the_records_behind_it(tmp_path: Path) -> None:
    """Those were looked for at an offset from the damaged size, and cut off where they were not found there."""
    path = written(tmp_path / "ledger")
    data = bytearray(path.read_bytes())
    data[place(1)] ^= 4
    path.write_bytes(data)
    with pytest.raises(DamageError, match=rf"record 1 at byte {place(1)} has a damaged head"):
        Journal(path, PLAN, RUN)
    assert path.read_bytes() == bytes(data)


def test_a_record_that_is_not_there_is_missed_by_its_number(tmp_path: Path) -> None:
    path = written(tmp_path / "ledger")
    data = path.read_bytes()
    path.write_bytes(data[: place(1)] + data[place(2) :])
    with pytest.raises(DamageError, match=f"record 1 at byte {place(1)} is missing, record 2 stands there"):
        Journal(path, PLAN, RUN)
    assert path.read_bytes() == data[: place(1)] + data[place(2) :]


def test_a_damaged_body_is_written_again_only_as_it_was(tmp_path: Path) -> None:
    path = written(tmp_path / "ledger")
    whole = path.read_bytes()
    path.write_bytes(whole.replace(b"both", b"Both", 1))
    with closing(Journal(path, PLAN, RUN)) as ledger:
        with pytest.raises(DamageError, match=r"record 2 \(round 0\) .* is damaged"):
            ledger.mend(2, b"Both" * 100)
        ledger.mend(2, RECORDS[2].body)
        assert ledger.at(2) == RECORDS[2]
    assert path.read_bytes() == whole


@pytest.mark.parametrize(
    ("plan", "version", "said"),
    [
        ("b" * 64, b"3", "is the ledger of another run, or of another v"),
        (PLAN, b"2", "is a ledger of version 2, .* version 3"),
    ],
)
def test_the_ledger_of_another_run_or_version_is_left_alone(
    tmp_path: Path, plan: str, version: bytes, said: str
) -> None:
    path = written(tmp_path / "ledger")
    start = path.read_bytes()[: BEGINNING_BYTES - 10].replace(b"3", version, 1)
    before = start + f" {zlib.crc32(start):08x}\n".encode() + path.read_bytes()[BEGINNING_BYTES:]
    path.write_bytes(before)
    with pytest.raises(UserError, match=said):
        Journal(path, plan, RUN)
    assert path.read_bytes() == before


def test_a_full_disk_is_said_and_leaves_the_ledger_readable(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    ledger = Journal(tmp_path / "ledger", PLAN, RUN)
    ledger.append(RECORDS[0])
    real = os.pwrite

    def half(file: int, data: Any, place: int) -> int:
        if len(data) > 10:
            return real(file, data[:10], place)
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, "pwrite", half)
    with pytest.raises(UserError, match="No space left on device"):
        ledger.append(RECORDS[2])
    monkeypatch.undo()
    ledger.append(RECORDS[3])
    assert list(ledger.records()) == [RECORDS[0], RECORDS[3]]
    ledger.close()


def test_a_disk_that_cannot_read_a_record_has_damaged_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path, real = written(tmp_path / "ledger"), os.pread

    def fails(file: int, size: int, at: int) -> bytes:
        if at <= place(2) + HEAD_BYTES < at + size:
            raise OSError(errno.EIO, os.strerror(errno.EIO))
        return real(file, size, at)

    monkeypatch.setattr(os, "pread", fails)
    assert [record.damage is not None for record in read(path)] == [False, False, True, False]


def test_two_processes_do_not_write_the_same_journal(tmp_path: Path) -> None:
    first = Journal(tmp_path / "ledger", PLAN, RUN)
    with pytest.raises(UserError, match="written by another process"):
        Journal(tmp_path / "ledger", PLAN, RUN)
    first.close()
    Journal(tmp_path / "ledger", PLAN, RUN).close()
    assert (tmp_path / "ledger").stat().st_mode & 0o777 == 0o600
