"""A journal: what was appended is read back, whatever a crash has left behind it."""

from __future__ import annotations

import errno
import os
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from common.errors import UserError
from common.journal import MARK, NOBODY, Entry, Journal, Record

PLAN, RUN = "a" * 64, "0" * 16
START = len(MARK) + 64 + 1 + 16 + 1 + 8 + 1
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
    ledger = Journal(path, PLAN, RUN)
    records = [record for _, record in ledger.records()]
    ledger.close()
    return records


@pytest.mark.parametrize("sync", [False, True])
def test_records_come_back(tmp_path: Path, sync: bool) -> None:
    ledger = Journal(tmp_path / "ledger", PLAN, RUN, sync=sync)
    places = [ledger.append(record) for record in RECORDS]
    assert [ledger.at(place) for place in places] == RECORDS
    assert [record for _, record in ledger.records()] == RECORDS
    ledger.close()
    assert read(tmp_path / "ledger") == RECORDS


@settings(max_examples=60, deadline=None)
@given(cut=st.integers(0, 10_000), garbage=st.binary(max_size=40))
def test_a_torn_tail_is_dropped_and_the_file_goes_on(
    tmp_path_factory: pytest.TempPathFactory, cut: int, garbage: bytes
) -> None:
    path = written(tmp_path_factory.mktemp("torn") / "ledger")
    whole = path.read_bytes()
    cut %= len(whole) - START + 1
    path.write_bytes(whole[: len(whole) - cut] + garbage)
    found = read(path)
    assert found == RECORDS[: len(found)]
    assert cut == 0 or len(found) < len(RECORDS) or garbage
    ledger = Journal(path, PLAN, RUN)
    ledger.append(Record(Entry.UPDATE, 7, NOBODY, b"more"))
    ledger.close()
    assert read(path) == [*found, Record(Entry.UPDATE, 7, NOBODY, b"more")]


@settings(max_examples=60, deadline=None)
@given(at=st.integers(0, 500), bit=st.integers(0, 7))
def test_a_flipped_bit_is_never_read_as_a_record(tmp_path_factory: pytest.TempPathFactory, at: int, bit: int) -> None:
    path = written(tmp_path_factory.mktemp("flip") / "ledger")
    data = bytearray(path.read_bytes())
    at %= len(data)
    data[at] ^= 1 << bit
    path.write_bytes(data)
    try:
        found = read(path)
    except UserError as error:
        said = str(error)
        found = RECORDS[:0]
    else:
        said = ""
    assert not said or at < START or "whole records behind it" in said, "a flipped bit is not what a crash cuts short"
    assert found == RECORDS[: len(found)]
    assert len(found) < len(RECORDS)


def test_the_ledger_of_another_run_is_left_alone(tmp_path: Path) -> None:
    path = written(tmp_path / "ledger")
    before = path.read_bytes()
    with pytest.raises(UserError, match="another run"):
        Journal(path, "b" * 64, RUN)
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
    assert [record for _, record in ledger.records()] == [RECORDS[0], RECORDS[3]]
    ledger.close()


def test_damage_with_whole_records_behind_it_is_said_and_left(tmp_path: Path) -> None:
    path = written(tmp_path / "ledger")
    data = bytearray(path.read_bytes())
    data[data.index(b"both") + 5] ^= 1
    path.write_bytes(data)
    with pytest.raises(UserError, match="with whole records behind it"):
        Journal(path, PLAN, RUN)
    assert path.read_bytes() == bytes(data), "nothing is cut off"


def test_two_processes_do_not_write_the_same_journal(tmp_path: Path) -> None:
    first = Journal(tmp_path / "ledger", PLAN, RUN)
    with pytest.raises(UserError, match="written by another process"):
        Journal(tmp_path / "ledger", PLAN, RUN)
    first.close()
    Journal(tmp_path / "ledger", PLAN, RUN).close()
    assert (tmp_path / "ledger").stat().st_mode & 0o777 == 0o600
