"""What others have written is data: nothing in it acts where it is shown."""

from __future__ import annotations

import pickle
import re
import unicodedata
from errno import ENOSPC
from signal import SIGTERM

import pytest

from rankdad.common.errors import (
    INTERRUPTED,
    REASON_CHARACTERS,
    STATUSES,
    DataError,
    PolicyError,
    ProtocolError,
    RankdadError,
    RunFailedError,
    SpecError,
    UnreachableError,
    UserError,
    one_line,
    visible,
)
from rankdad.common.files import cannot_write
from rankdad.common.logs import end_with, ended_with
from rankdad.local.shutdown_signals import ShutdownError
from rankdad.remote.process import InterruptedRunError
from tests.errors.sentences import sources


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("dose [/kg]: é, 名, 1 × 2", "dose [/kg]: é, 名, 1 × 2"),
        ("\x1b[2J\x1b]0;owned\x07", "\\x1b[2J\\x1b]0;owned\\x07"),
        ("a\r\nerror: forged\0", "a\\r\\nerror: forged\\x00"),
        ("\x9b31m", "\\x9b31m"),
        ("\u202etxt.exe\u2066\u200b\ufeff\U000e0041", "\\u202etxt.exe\\u2066\\u200b\\ufeff\\U000e0041"),
        ("\u2028\u00a0\ud800", "\\u2028\\xa0\\ud800"),
        ("x" * 10_000, "x" * (REASON_CHARACTERS - 1) + "…"),
        ("\n" * 10_000, "\\n" * ((REASON_CHARACTERS - 1) // 2) + "\\…"),
    ],
)
def test_what_acts_or_hides_is_escaped_and_the_rest_stays(text: str, shown: str) -> None:
    assert visible(text) == visible(shown) == shown
    for said in (
        str(ProtocolError(422, text, code="x")),
        RunFailedError("alpha", text, code="x").reason,
        one_line(ValueError(text)),
    ):
        assert len(said) <= REASON_CHARACTERS
        assert not any(unicodedata.category(letter)[0] == "C" for letter in said)


def test_an_error_keeps_its_places_between_processes() -> None:
    error = DataError("t.csv", "holds 'x'", code="value-unusable", field="age", row=5, place="row 5", hint=", or y")
    again = pickle.loads(pickle.dumps(error))
    assert (str(again), again.public_message) == (str(error), error.public_message)
    assert (again.code, again.field, again.file, again.row) == ("value-unusable", "age", "t.csv", 5)


def test_a_code_is_read_back_from_what_a_command_prints(capsys: pytest.CaptureFixture[str]) -> None:
    error = RunFailedError("beta", "row [5] holds NaN", code="not-finite")
    error.quoted = ("its last lines:", "x [y]")
    end_with(error)
    said = capsys.readouterr().err.removeprefix("error: ")
    assert ended_with(said) == (str(error), "not-finite")
    assert ended_with("a line of something else") == ("a line of something else", "")


@pytest.mark.parametrize(
    ("error", "status"),
    [
        (UserError("", code="c"), 2),
        (SpecError("f", "", code="c"), 2),
        (DataError("f", "", code="c"), 2),
        (PolicyError("f", "", code="c"), 2),
        (UnreachableError(""), 2),
        (cannot_write("f", OSError(ENOSPC, "full")), 2),
        (ProtocolError(409, "", code="c"), 1),
        (RunFailedError("a", "", code="c"), 1),
        (InterruptedRunError("", code="c"), 130),
        (ShutdownError(SIGTERM), 143),
    ],
)
def test_commands_end_with_a_status_of_the_table(error: RankdadError, status: int) -> None:
    assert error.exit_code == status
    assert str(min(status, INTERRUPTED)) in {told.split()[0] for told in STATUSES}


def test_no_command_ends_with_a_status_of_its_own() -> None:
    ends = [(path, said) for path in sources() for said in re.findall(r"typer\.Exit\((.+?)\)", path.read_text())]
    assert {said for _, said in ends} <= {"FAILED", "PARTLY"}, ends
