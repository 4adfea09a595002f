"""What others have written is data: nothing in it acts where it is shown."""

from __future__ import annotations

import pickle
import unicodedata

import pytest

from rankdad.common.errors import REASON_CHARACTERS, DataError, ProtocolError, RunFailedError, one_line, visible
from rankdad.common.logs import end_with, ended_with


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
