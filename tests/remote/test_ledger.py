"""The ledger: rounds in their order over several files, and what is kept of them."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path

import pytest

from rankdad.common.errors import UserError
from rankdad.remote.ledger import Ledger, Retention, read_updates
from rankdad.remote.records import NOBODY, DamageError, Entry, Record

PLAN = "a" * 64


@contextlib.contextmanager
def opened(folder: Path) -> Iterator[Ledger]:
    ledger = Ledger(folder, PLAN)
    yield ledger
    ledger.close()


def round_of(number: int) -> list[Record]:
    contributions = [Record(Entry.CONTRIBUTION, number, site, f"{number} {site}".encode()) for site in (1, 0)]
    return [*contributions, Record(Entry.UPDATE, number, NOBODY, f"update {number}".encode())]


RESET = Record(Entry.RESET, 5, 1, b"")
AGAIN = Record(Entry.CONTRIBUTION, 5, 1, b"5 1 again")


def write(folder: Path, retention: Retention) -> list[Record]:
    """Eleven rounds, a checkpoint before rounds 3, 6 and 9; the last round is open."""
    everything: list[Record] = []
    with opened(folder) as ledger:
        for number in range(11):
            if number in (3, 6, 9):
                ledger.begin(number, retention)
                if number > 3:
                    ledger.retire(number - 3, retention)
            records = round_of(number)
            if number == 5:
                records[2:2] = [RESET, AGAIN]
            if number == 10:
                records = records[:1]
            for record in records:
                ledger.append(record)
            everything += records
    return everything


def test_rounds_come_back_in_their_order_whatever_the_files(tmp_path: Path) -> None:
    everything = write(tmp_path, Retention.ALL)
    with opened(tmp_path) as ledger:
        kept = list(ledger.records(3))
        assert kept == [record for record in everything if record.round >= 3]
        assert list(ledger.records(5)) == [record for record in everything if record.round >= 5]
        assert [ledger.update(number) for number in range(12)] == [f"update {n}".encode() for n in range(10)] + [
            None
        ] * 2
        assert ledger.oldest == 0
        ledger.append(round_of(10)[2])
        assert ledger.update(10) == b"update 10"
    assert [record.round for record in read_updates(tmp_path, PLAN)] == list(range(11))


@pytest.mark.parametrize(("retention", "oldest"), [(Retention.ALL, 0), (Retention.TAIL, 3)])
def test_what_no_checkpoint_needs_goes(tmp_path: Path, retention: Retention, oldest: int) -> None:
    """The older of two checkpoints stands before round 6; the file before it stays, see `Ledger.retire`."""
    write(tmp_path, retention)
    with opened(tmp_path) as ledger:
        assert min(record.round for record in ledger.records() if record.entry is Entry.CONTRIBUTION) == 3
        assert ledger.oldest == oldest
        assert ledger.update(oldest) == f"update {oldest}".encode()
        assert ledger.oldest_contribution == 3
    if oldest:
        with pytest.raises(UserError, match="keeps no round before 3"):
            list(read_updates(tmp_path, PLAN))


def test_a_damaged_update_is_said_not_sent(tmp_path: Path) -> None:
    write(tmp_path, Retention.TAIL)
    with opened(tmp_path) as ledger:
        path = tmp_path / "updates-000000000003"
        data = bytearray(path.read_bytes())
        data[-3] ^= 1
        path.write_bytes(data)
        with pytest.raises(DamageError, match=r"updates-0+3: record 2 \(round 5\) at byte .* is damaged"):
            ledger.update(5)


def test_a_lost_file_of_updates_is_missed(tmp_path: Path) -> None:
    """From the rounds of those before and after it."""
    write(tmp_path, Retention.TAIL)
    (tmp_path / "updates-000000000006").unlink()
    said = r"updates-0+3: record 3 \(round 6\) at byte \d+ is missing, the file ends there"
    with pytest.raises(DamageError, match=said), opened(tmp_path):
        pass
    updates = read_updates(tmp_path, PLAN, 3)
    assert [next(updates).round for _ in range(3)] == [3, 4, 5]
    with pytest.raises(DamageError, match=said):
        next(updates)
    with pytest.raises(DamageError, match=said), opened(tmp_path):  # nothing is left locked
        pass


def test_a_file_is_not_begun_in_the_midst_of_what_is_recorded(tmp_path: Path) -> None:
    """As where an aggregator goes on from the older checkpoint, and comes by the newer one again."""
    with opened(tmp_path) as ledger:
        for number in range(5):
            ledger.append(round_of(number)[2])
        ledger.begin(3, Retention.TAIL)
        ledger.append(round_of(5)[2])
        assert [ledger.update(number) for number in (3, 5)] == [b"update 3", b"update 5"]


def test_an_update_of_another_round_than_its_place_says_is_refused(tmp_path: Path) -> None:
    with opened(tmp_path) as ledger:
        ledger.append(round_of(0)[2])
        ledger.append(round_of(2)[2])
        with pytest.raises(DamageError, match=r"record 1 at byte \d+ is of round 2, expected 1"):
            ledger.update(1)
    with pytest.raises(DamageError, match=r"record 1 at byte \d+ is of round 2, expected 1"), opened(tmp_path):
        pass


def test_a_ledger_that_another_process_writes_can_be_left_and_taken_up_again(tmp_path: Path) -> None:
    first = Ledger(tmp_path, PLAN)
    first.unlock()
    second = Ledger(tmp_path, PLAN)
    with pytest.raises(UserError, match="is written by another process"):
        first.relock()
    first.unlock()
    second.close()
    assert not first.relock(), "its files are closed: whoever wants to write opens it again"
    first.close()
