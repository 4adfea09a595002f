"""What a site tells of its log: by it an older copy is known, and one that has gone its own way."""

from __future__ import annotations

import pytest

from rankdad.common.privacy import heads
from rankdad.common.privacy.heads import Heads, chained, pack, problem, unpack
from rankdad.common.privacy.parts import Secret

SECRET = Secret(bytes(32))


def log(*runs: str, secret: Secret = SECRET) -> Heads:
    return chained(secret, ((run, "{}") for run in runs))


@pytest.mark.parametrize(
    ("known", "told", "code"),
    [
        (None, None, ""),
        (None, log("a"), ""),
        (log("a"), log("a"), ""),
        (log("a"), log("a", "b", "c"), ""),
        (log("a"), None, "log-missing"),
        (log("a", "b"), log("a"), "log-too-old"),
        (log("a", "b"), log("a", "c"), "log-forked"),
        (log("a", "b"), log("a", "c", "d"), "log-forked"),
        (log("a"), log("a", "b", secret=Secret(b"o" * 32)), "log-replaced"),
    ],
)
def test_only_a_log_that_goes_on_from_the_one_last_seen_is_taken(
    known: Heads | None, told: Heads | None, code: str
) -> None:
    assert problem(known, told) == code


def test_of_a_log_that_has_gone_on_for_long_the_length_alone_is_compared() -> None:
    runs = [str(number) for number in range(heads.MOST + 3)]
    told, long_ago = log(*runs), log("another")
    assert (told.at(2), told.at(3), told.at(len(runs) + 1)) == (None, None, None)
    assert problem(long_ago, told) == ""
    assert problem(log(*runs[:4], "another"), told) == "log-forked"


@pytest.mark.parametrize("known", [None, log("a"), log(*map(str, range(heads.MOST + 3)))])
def test_heads_travel_whole(known: Heads | None) -> None:
    assert unpack(pack(known)) == known


@pytest.mark.parametrize(
    "wrong",
    [
        b"1",
        pack(log("a"))[:-1],
        pack(Heads("0" * 32, 5, ("1" * 32,))),
        pack(Heads("0" * 32, 2**60, ("1" * 32,) * heads.MOST)),
        pack(Heads("0" * 32, 200, ("1" * 32,) * 200)),
        pack(Heads("0" * 32, 0, ())),
    ],
)
def test_bytes_that_are_no_heads_are_refused(wrong: bytes) -> None:
    with pytest.raises(ValueError, match=r"heads|bytes"):
        unpack(wrong)
