"""What others have written is data: nothing in it acts where it is shown."""

from __future__ import annotations

import unicodedata

import pytest

from rankdad.common.errors import REASON_CHARACTERS, ProtocolError, RunFailedError, one_line, visible


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
    for said in (str(ProtocolError(422, text)), RunFailedError("alpha", text).reason, one_line(ValueError(text))):
        assert len(said) <= REASON_CHARACTERS
        assert not any(unicodedata.category(letter)[0] == "C" for letter in said)
