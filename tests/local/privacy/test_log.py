"""A site's secret and its log: kept together, over runs, and never more let out than before where one is lost."""

from __future__ import annotations

import random
import shutil
import sqlite3
import stat
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from errno import ENOSPC
from pathlib import Path
from typing import Any

import pytest

from rankdad.common.errors import DataError, PolicyError, UserError
from rankdad.common.privacy.heads import Heads
from rankdad.common.privacy.parts import Secret
from rankdad.local.privacy import witness
from rankdad.local.privacy.log import DisclosureLog
from rankdad.local.privacy.log_file import FILE, VERSION
from rankdad.local.privacy.patients import Patients

SECRET = Secret(b"s" * 32)
FORTY = [f"p{number}" for number in range(40)]


def parts(
    folder: Path,
    run: str | None,
    names: list[str],
    fewest: int = 8,
    site: str = "alpha",
    results: tuple[Path, ...] = (),
    others: int | None = None,
    **changes: Any,
) -> dict[str, int]:
    asked: dict[str, Any] = {"purpose": "{}", "named_by": "the column id", "patients": patients(names)} | changes
    log = DisclosureLog(folder, site, SECRET, results, others)
    looked = log.parts(run, fewest=fewest, **asked)
    while (kept := log.parts(run, fewest=fewest, **asked, expected=looked)) != looked:
        looked = kept  # another run has begun in between
    return kept


def patients(names: Iterable[str], values: Mapping[str, Sequence[int]] | None = None, **sets: int) -> Patients:
    """Return patients of whom two columns say something."""
    zeros, own = dict.fromkeys(names, 0), values or {}
    said = {name: tuple(bytes([value] * 8) for value in own.get(name, (0, 0))) for name in zeros}
    return Patients(zeros | sets, zeros, dict.fromkeys(zeros, frozenset()), said, ("age", "sex"))


def test_a_run_keeps_the_parts_that_it_began_with_and_later_ones_divide_them(tmp_path: Path) -> None:
    began = parts(tmp_path, "first", FORTY)
    assert sorted(Counter(began.values()).values()) == [8] * 5
    women = [name for name in FORTY if int(name[1:]) % 2]
    assert parts(tmp_path, "second", women) == {}, "every part would be divided into four and four"
    assert parts(tmp_path, "third", women, fewest=4).keys() <= set(women)
    assert parts(tmp_path, "first", FORTY) == began
    assert len(set(parts(tmp_path, "fourth", FORTY, fewest=4).values())) > 5


@pytest.mark.parametrize(
    ("code", "names", "changes"),
    [
        ("run-differs", FORTY, {"purpose": '{"spec": "another"}'}),
        ("data-changed", FORTY[1:], {}),
        ("data-changed", FORTY, {"patients": patients(FORTY, p3=1)}),
        ("data-changed", FORTY, {"patients": patients(FORTY, {"p3": (0, 1)})}),
        ("patients-named-otherwise", FORTY, {"named_by": "the column visit"}),
    ],
    ids=["another run", "a patient less", "another set", "another value", "another column"],
)
def test_a_run_by_the_name_of_one_that_began_is_that_one(
    tmp_path: Path, code: str, names: list[str], changes: dict[str, Any]
) -> None:
    """An aggregator may call any run by a number that the site knows, and an owner choose what names patients."""
    parts(tmp_path, "first", FORTY)
    with pytest.raises(UserError) as raised:
        parts(tmp_path, "first", names, **changes)
    assert (raised.value.code, raised.value.field) == (code, "privacy")
    if code == "patients-named-otherwise":
        with pytest.raises(UserError):
            parts(tmp_path, "second", names, **changes)


def test_heads_go_on_with_every_run_and_a_copy_that_goes_its_own_way_has_others(tmp_path: Path) -> None:
    log, told = DisclosureLog(tmp_path / "one", "alpha", SECRET), list[Heads]()
    for run in ("first", "second", "second"):  # which goes on
        parts(tmp_path / "one", run, FORTY)
        told.append(log.heads())
        if run == "first":
            shutil.copytree(tmp_path / "one", tmp_path / "copy")
    assert [one.length for one in told] == [1, 2, 2]
    assert told[1] == told[2]
    assert told[1].heads[0] == told[0].heads[0]
    parts(tmp_path / "copy", "third", FORTY)
    copy = DisclosureLog(tmp_path / "copy", "alpha").heads()
    assert (copy.id, copy.heads[0], copy.heads[1] == told[1].heads[1]) == (told[0].id, told[0].heads[0], False)
    assert DisclosureLog(tmp_path / "new", "alpha").heads().id != told[0].id


def test_looking_keeps_nothing_and_the_log_names_nobody(tmp_path: Path) -> None:
    names = [f"patient {number}" for number in range(40)]
    looked = parts(tmp_path, None, names[:20])
    assert parts(tmp_path, "run", names).keys() == set(names)
    assert looked.keys() == set(names[:20])
    assert b"patient 1" not in (tmp_path / FILE).read_bytes()


def test_of_two_runs_that_begin_at_once_each_is_within_one_partition(tmp_path: Path) -> None:
    parts(tmp_path, None, FORTY)
    with ThreadPoolExecutor(2) as pool:
        first, second = pool.map(lambda run: parts(tmp_path, run, FORTY if run == "a" else FORTY[:24]), ("a", "b"))
    classes = Counter((first.get(name), second.get(name)) for name in FORTY)
    assert all(count >= 8 for (one, other), count in classes.items() if (one, other) != (None, None))


def test_a_secret_is_made_once_and_only_its_owner_reads_it(tmp_path: Path) -> None:
    folder = tmp_path / "privacy"
    with ThreadPoolExecutor(4) as pool:
        made = {secret.value for secret in pool.map(lambda _: DisclosureLog(folder, "alpha").secret, range(4))}
    assert len(made) == 1
    assert len(made.pop()) == 32
    assert stat.S_IMODE((folder / FILE).stat().st_mode) == 0o600
    assert [path.name for path in folder.iterdir()] == [FILE]
    assert "s" * 8 not in repr(SECRET)
    assert DisclosureLog(tmp_path, "alpha", SECRET).secret == DisclosureLog(tmp_path, "alpha").secret == SECRET


def damage(log: Path, case: str) -> None:
    if case == "truncated":
        log.write_bytes(log.read_bytes()[:3000])
    elif case == "empty":
        log.write_bytes(b"")
    elif case == "no-log":
        log.write_text("this is no log")
    elif case == "header":  # the space at each page's end that is left empty: values are read from other places
        content = bytearray(log.read_bytes())
        content[20] ^= 2
        log.write_bytes(content)
    elif case == "newer":
        with closing(sqlite3.connect(log)) as connection:
            connection.execute(f"PRAGMA user_version = {VERSION + 1}")
    elif case == "folder":
        log.unlink()
        log.mkdir()


@pytest.mark.parametrize(
    ("case", "code"),
    [
        ("truncated", "log-unusable"),
        ("empty", "log-unusable"),
        ("no-log", "log-unusable"),
        ("header", "log-unusable"),
        ("folder", "log-unusable"),
        ("newer", "log-version"),
        ("another-site", "log-of-another-site"),
    ],
)
def test_a_log_that_is_not_whole_or_not_this_sites_lets_nothing_out(tmp_path: Path, case: str, code: str) -> None:
    parts(tmp_path, "first", FORTY)
    damage(tmp_path / FILE, case)
    before = None if case == "folder" else (tmp_path / FILE).read_bytes()
    with pytest.raises(UserError) as raised:
        parts(tmp_path, "second", FORTY, site="beta" if case == "another-site" else "alpha")
    assert (raised.value.code, raised.value.field) == (code, "privacy")
    assert before is None or (tmp_path / FILE).read_bytes() == before


@pytest.mark.slow
def test_a_flipped_bit_is_named_or_changes_nothing(tmp_path: Path) -> None:
    for run in ("first", "second"):
        parts(tmp_path, run, FORTY)
        DisclosureLog(tmp_path, "alpha").tell(run, dict.fromkeys(FORTY, 0.1), dict.fromkeys(FORTY, 0.0), 1.0, anew=True)
        DisclosureLog(tmp_path, "alpha").note_place(run, b"sketch", 3, b"", "[]")
        DisclosureLog(tmp_path, "alpha").begin(run, "spec")
    DisclosureLog(tmp_path, "alpha").withdraw(["p3"])
    whole, expected, drawn = (tmp_path / FILE).read_bytes(), rows(tmp_path), random.Random(0)
    for _ in range(100):
        content, place = bytearray(whole), drawn.randrange(len(whole))
        content[place] ^= 1 << drawn.randrange(8)
        (tmp_path / FILE).write_bytes(content)
        code = read(tmp_path)
        assert code in ("log-unusable", "log-version") or (code == "" and rows(tmp_path) == expected), place


def test_a_log_without_checksum_gets_one(tmp_path: Path) -> None:
    parts(tmp_path, "first", FORTY)
    with closing(sqlite3.connect(tmp_path / FILE)) as connection:
        connection.executescript(f"DROP TABLE checksum; PRAGMA user_version = {VERSION - 1}")
    assert parts(tmp_path, "first", FORTY) == parts(tmp_path, "first", FORTY)
    with closing(sqlite3.connect(tmp_path / FILE)) as connection, connection:
        connection.execute("UPDATE used SET part = part + 1 WHERE patient = (SELECT min(patient) FROM used)")
    assert read(tmp_path) == "log-unusable"


def read(folder: Path) -> str:
    """Read a log; return the code of the error, if any."""
    try:
        DisclosureLog(folder, "alpha").runs()
    except UserError as error:
        return error.code
    return ""


def rows(folder: Path) -> list[object]:
    with closing(sqlite3.connect(folder / FILE)) as connection:
        tables = [name for (name,) in connection.execute("SELECT name FROM sqlite_schema WHERE type = 'table'")]
        return [connection.execute(f"SELECT * FROM {table}").fetchall() for table in sorted(tables)]


def test_a_value_that_cannot_be_read_names_the_log(tmp_path: Path) -> None:
    parts(tmp_path, "first", FORTY)
    with closing(sqlite3.connect(tmp_path / FILE)) as connection, connection:
        connection.execute("UPDATE runs SET purpose = '{]'")
    with pytest.raises(UserError) as raised:
        DisclosureLog(tmp_path, "alpha").runs()
    assert (raised.value.code, raised.value.field) == ("log-unusable", "privacy")


def test_patients_of_whom_a_column_says_something_else_are_a_set_of_their_own(tmp_path: Path) -> None:
    """The sums of two runs differ by what has changed: of one patient alone their whole part is used no more."""
    began = parts(tmp_path, "first", FORTY)
    one = patients(FORTY, {"p3": (1, 0)})
    assert parts(tmp_path, "one", FORTY, patients=one).keys() == {name for name in FORTY if began[name] != began["p3"]}
    all_of_a_part = {name: (2, 0) for name in FORTY if began[name] == began["p4"]}
    assert parts(tmp_path, "part", FORTY, patients=patients(FORTY, all_of_a_part)).keys() == set(FORTY)
    back = patients(FORTY, all_of_a_part | {"p4": (0, 0)})
    assert "p4" not in parts(tmp_path, "back", FORTY, patients=back), "its part's others have changed since the first"
    assert parts(tmp_path, "as at first", FORTY) == began
    assert parts(tmp_path, "first", FORTY) == began


def test_runs_of_an_owner_are_counted_per_day_and_in_all(tmp_path: Path) -> None:
    log = DisclosureLog(tmp_path, "alpha")
    for run in ("a", "b", "a"):
        log.count(run, "anna", 2, None)
    log.count("c", "bert", 2, None)
    with pytest.raises(PolicyError) as error:
        log.count("d", "anna", 2, None)
    assert (error.value.code, error.value.field) == ("too-many-runs", "runs_per_day")
    with closing(sqlite3.connect(tmp_path / FILE)) as database, database:
        database.execute("UPDATE asked SET at = '2020-01-01T00:00:00Z'")
    log.count("d", "anna", 2, 3)
    with pytest.raises(PolicyError) as error:
        log.count("e", "anna", 2, 3)
    assert (error.value.code, error.value.field) == ("too-many-runs", "runs")


@pytest.mark.parametrize("since", ["a run", "a withdrawal", "nothing"])
def test_an_older_log_is_not_taken_for_the_newest(tmp_path: Path, since: str) -> None:
    """A run's patients are then divided again: together with what had left, one patient's sums came out."""
    log, results = tmp_path / FILE, (tmp_path / "out", tmp_path / "out" / "runs" / "second")
    parts(tmp_path, "first", FORTY, results=results[:1])
    older = log.read_bytes()
    if since == "a run":
        parts(tmp_path, "second", [*FORTY, *(f"q{number}" for number in range(8))], results=results)
        (results[0] / witness.FILE).unlink()  # that of the run's own folder tells of it, too
    elif since == "a withdrawal":
        DisclosureLog(tmp_path, "alpha", results=results[:1]).withdraw(["p3"])
    newest = log.read_bytes()
    for content in (older, None):
        log.unlink()
        if content is not None:
            log.write_bytes(content)
        if content == newest:
            continue
        with pytest.raises(UserError) as raised:
            parts(tmp_path, "third", FORTY, results=results[:1])
        assert (raised.value.code, raised.value.field) == ("log-too-old", "privacy")
    assert not log.exists(), "a new one would stand in the newest one's way"
    log.write_bytes(newest)
    assert parts(tmp_path, "first" if since != "a withdrawal" else None, FORTY, results=results[:1])


@pytest.mark.parametrize(
    ("at", "error"),
    [("sqlite3.connect", sqlite3.OperationalError("database or disk is full")), ("os.link", OSError(ENOSPC, "full"))],
    ids=["full later", "full at first"],
)
def test_a_log_that_cannot_be_written_now_is_no_damaged_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, at: str, error: Exception
) -> None:
    """Whoever then puts a copy back has an older log; and what a full disk cuts short is no new log."""

    def fails(*_: object, **__: object) -> None:
        raise error

    with monkeypatch.context() as patched:
        patched.setattr(at, fails)
        with pytest.raises(UserError) as raised:
            parts(tmp_path, "first", FORTY)
    assert raised.value.code == "log-out-of-reach"
    assert list(tmp_path.iterdir()) == []
    assert parts(tmp_path, "first", FORTY)


@pytest.mark.parametrize("called", [{"p3": "P3"}, {"p3": "p3 "}, {"17": "17.0"}, {"17": "017"}])
def test_a_known_patient_is_no_new_one_by_another_spelling(tmp_path: Path, called: dict[str, str]) -> None:
    """A table that went through a spreadsheet: the whole hospital was dealt out a second time."""
    patients = [*FORTY, "17"]
    parts(tmp_path, "first", patients)
    before = (tmp_path / FILE).read_bytes()
    again = [*(called.get(name, name) for name in patients), *(f"q{number}" for number in range(8))]
    with pytest.raises(DataError) as raised:
        parts(tmp_path, "second", again)
    assert (raised.value.code, raised.value.field) == ("patients-named-otherwise", "privacy")
    (name,) = called.values()
    assert name in str(raised.value)
    assert name not in raised.value.public_message, "a guessed name is not confirmed to others"
    assert (tmp_path / FILE).read_bytes() == before


def test_most_patients_are_others_only_in_the_run_for_which_the_site_says_so(tmp_path: Path) -> None:
    renamed = [f"new {name}" for name in FORTY]
    parts(tmp_path, "first", FORTY)
    for others in (None, 1, 3):
        with pytest.raises(DataError) as raised:
            parts(tmp_path, "second", renamed, others=others)
        assert (raised.value.code, raised.value.field) == ("patients-replaced", "privacy")
    assert parts(tmp_path, "second", FORTY[:20] + renamed[:20], others=None), "half of them may be others"
    assert parts(tmp_path, "third", renamed, others=3)
    with pytest.raises(DataError):
        parts(tmp_path, "fourth", [f"newer {name}" for name in FORTY], others=3)
