"""The queue of a service, and the archive of a run's results."""

from __future__ import annotations

import asyncio
import sqlite3
import tarfile
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from rankdad.common.errors import ProtocolError, UserError
from rankdad.common.protocol.service import OPEN, State, run_name
from rankdad.local.owner import unpack
from rankdad.remote.app import Refusal
from rankdad.remote.application import _refusal
from rankdad.remote.auth import TokenFile
from rankdad.remote.service.archive import archive
from rankdad.remote.service.queue import FILE, Queue, QueueError

SITES = ("alpha", "beta")


def submit(queue: Queue, number: int = 1, **changes: Any) -> str:
    fields: dict[str, Any] = {"name": "run", "owner": "anna", "sites": SITES, "spec": {"a": 1}, "most": 10}
    return queue.submit(f"{number:016x}", **fields | changes).run


def test_a_run_is_submitted_once_and_begins_once_also_in_another_process(tmp_path: Path) -> None:
    queue = Queue(tmp_path / FILE)
    run = submit(queue)
    assert submit(queue) == run == "run-1", "the answer was lost, and the owner asks again"
    with pytest.raises(ProtocolError, match="another run's"):
        submit(queue, spec={"a": 2})
    assert submit(queue, 2, name="Été à l'hôpital") == "ete-a-l-hopital-2"
    with pytest.raises(ProtocolError, match="the queue is full: 2 of your runs"):
        submit(queue, 3, most=2)
    for site in SITES:
        assert not queue.entry(run).agreed
        queue.answer(run, site, "accepted", "")
    assert queue.entry(run).agreed
    assert queue.move(run, State.RUNNING, where=[State.WAITING])
    assert not queue.move(run, State.RUNNING, where=[State.WAITING])
    queue.close()
    again = Queue(tmp_path / FILE)
    assert [entry.run for entry in again.in_states(State.RUNNING)] == [run]
    assert again.move(run, State.ENDED, where=[State.RUNNING])
    assert not again.move(run, State.CANCELLED, where=OPEN)
    again.answer(run, "alpha", "finished", "")
    assert run in {entry.run for entry in again.open_runs()}, "beta has not saved its model"
    again.answer(run, "beta", "finished", "")
    assert run not in {entry.run for entry in again.open_runs()}
    counts = again.counts()
    again.close()
    assert counts == dict.fromkeys(State, 0) | {"ended": 1, "waiting for sites": 1}


def test_a_run_is_found_at_once_also_while_another_thread_reads(tmp_path: Path) -> None:
    """A connection of both gave the run that had just been submitted as unknown."""
    with closing(Queue(tmp_path / FILE)) as queue:
        submit(queue)
        submit(queue, 2)
        reading = queue.database.execute("select run from runs")
        reading.fetchone()
        assert asyncio.run(queue.write(submit, queue, 3)) == "run-3"
        assert len(reading.fetchall()) == 1
        assert queue.entry("run-3").state is State.WAITING


def test_a_disk_that_is_full_loses_nothing_and_another_format_is_named(tmp_path: Path) -> None:
    queue = Queue(tmp_path / FILE)
    run = submit(queue)
    (pages,) = queue.database.execute("pragma page_count").fetchone()
    with queue.writing() as database:
        database.execute(f"pragma max_page_count = {pages}")
    with pytest.raises(QueueError, match=r"queue.sqlite: cannot be written: database or disk is full"):
        submit(queue, 2, spec={"long": "x" * 100_000})
    assert [entry.run for entry in queue.newest(9)] == [run]
    with queue.writing() as database:
        database.execute("pragma max_page_count = 1000000")
    assert submit(queue, 2, spec={"long": "x" * 100_000}) == "run-2"
    with queue.writing() as database:
        database.execute("pragma user_version = 9")
    queue.close()
    with pytest.raises(UserError, match="has the format 9, this rankdad reads 1"):
        Queue(tmp_path / FILE)


def test_a_queue_that_another_process_has_locked_is_worth_another_try(tmp_path: Path) -> None:
    queue = Queue(tmp_path / FILE)
    with queue.writing() as database:
        database.execute("pragma busy_timeout = 1")
    with closing(sqlite3.connect(tmp_path / FILE, isolation_level=None)) as backup:
        backup.execute("begin immediate")
        with pytest.raises(QueueError) as locked:
            submit(queue)
    answer = Refusal(refusal := _refusal(locked.value), 0)
    assert (locked.value.code, refusal.code, answer.status_code) == ("queue-locked", "queue-locked", 503)
    assert answer.headers["retry-after"] == "1"
    assert submit(queue) == "run-1"


@pytest.mark.parametrize("damage", ["cut", "bit", "none"])
def test_results_that_do_not_come_whole_are_refused(tmp_path: Path, damage: str) -> None:
    run = tmp_path / "run"
    (run / "model").mkdir(parents=True)
    for name in ("run.sqlite", "run.sqlite-wal"):
        (run / name).write_text("what single sites have sent")
    (run / "summary.json").write_text("{}")
    (run / "model" / "weights").write_bytes(bytes(range(256)) * 10)
    stream = bytearray(b"".join(archive(run)))
    if damage == "cut":
        del stream[len(stream) // 2 :]
    elif damage == "bit":
        stream[stream.index(bytes(range(256)))] ^= 1
    (tmp_path / "archive").write_bytes(stream)
    if damage == "none":
        assert unpack(tmp_path / "archive", tmp_path / "out") == 2
        assert (tmp_path / "out/model/weights").read_bytes() == (run / "model/weights").read_bytes()
        assert not list((tmp_path / "out").glob("run.sqlite*"))
    else:
        with pytest.raises(UserError, match="results are incomplete"):
            unpack(tmp_path / "archive", tmp_path / "out")


@pytest.mark.parametrize("name", ["../out.txt", "/etc/out.txt", "a\x1b[2Jb", "sparse", "link", "twice"])
def test_an_archive_with_what_no_run_holds_is_refused(tmp_path: Path, name: str) -> None:
    member = tarfile.TarInfo(name)
    if name == "link":
        member.type, member.linkname = tarfile.SYMTYPE, "/etc/passwd"
    elif name == "sparse":  # a few bytes that would become a terabyte
        member.pax_headers = {"GNU.sparse.size": str(1 << 40), "GNU.sparse.map": f"{1 << 40},0"}
    with tarfile.open(tmp_path / "archive", "w", format=tarfile.PAX_FORMAT) as archived:
        for _ in range(1 + (name == "twice")):
            archived.addfile(member)
    with pytest.raises(UserError, match="which is no file of a run"):
        unpack(tmp_path / "archive", tmp_path / "out")
    assert not (tmp_path / "out.txt").exists()


def test_a_run_is_called_by_what_an_address_and_a_folder_can_have() -> None:
    assert run_name("../..", 3) == "run-3"
    assert len(run_name("x" * 63, 10**8)) < 80


def test_tokens_that_change_hold_at_once_and_a_broken_file_locks_nobody_out(tmp_path: Path) -> None:
    path = tmp_path / "tokens.json"
    path.write_text('{"anna": "sha256:%s"}' % ("0" * 64))
    tokens = TokenFile(path)
    assert list(tokens) == ["anna"]
    path.write_text("{")
    assert list(tokens) == ["anna"]
    path.write_text("{}")
    assert list(tokens) == []


def test_open_runs_are_asked_for_at_once_however_many_there_are(tmp_path: Path) -> None:
    """Each run had a question of its own for its answers, at every poll of every site."""
    queue, asked = Queue(tmp_path / FILE), list[str]()
    runs = [submit(queue, number, most=100) for number in range(1, 31)]
    for run in runs[::2]:
        queue.answer(run, "alpha", "accepted", "")
    queue.database.set_trace_callback(asked.append)
    found = queue.open_runs()
    assert [entry.run for entry in found] == runs
    assert [entry.answered("accepted") for entry in found] == [["alpha"], []] * 15
    assert len(asked) == 2
    newest = queue.newest(3)
    assert [(entry.run, entry.answered("accepted")) for entry in newest] == [
        (runs[29], []),
        (runs[28], ["alpha"]),
        (runs[27], []),
    ]
