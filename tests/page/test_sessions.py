"""Sessions of browsers."""

from __future__ import annotations

from rankdad.page import sessions
from rankdad.page.sessions import LASTS, Sessions


def test_a_cookie_stands_for_its_token_until_it_is_closed_old_or_one_of_too_many() -> None:
    clock = [0.0]
    known = Sessions(lambda: clock[0])
    first, second = known.open("anna's"), known.open("anna's")
    assert first != second
    assert known.token(first) == "anna's"
    assert known.token("anna's") == known.token("") == ""
    known.close(first)
    clock[0] = LASTS - 1
    assert (known.token(first), known.token(second)) == ("", "anna's")
    third = known.open("vera's")
    for _ in range(sessions.MOST):
        known.open("vera's")
    assert (known.token(second), known.token(third)) == ("anna's", ""), "nobody ends another's session"
    clock[0] += LASTS
    assert known.token(second) == ""


def test_sessions_of_tokens_without_end_do_not_fill_the_memory() -> None:
    known = Sessions()
    first = known.open("token 0")
    for number in range(1, sessions.MOST_OF_ALL):
        known.open(f"token {number}")
    assert known.token(first) == "token 0"
    known.open("one more")
    assert known.token(first) == ""
