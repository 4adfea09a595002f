"""What a site says to the aggregator when it cannot go on, and when it says nothing."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

import pytest

from rankdad.common.protocol.messages import Kind
from rankdad.local.drivers.drive import drive
from rankdad.local.drivers.http import RefusedError


class Refusing:
    """A connection to an aggregator that refuses every contribution."""

    def __init__(self, code: str) -> None:
        self.code, self.given_up = code, 0

    def expect(self, plan: Any) -> None: ...

    def exchange(self, body: bytes, round_: int, computed: float | None = None) -> bytes:
        raise RefusedError("refused", 409, code=self.code)

    def give_up(self, body: bytes) -> None:
        self.given_up += 1


@pytest.mark.parametrize(("code", "given_up"), [("contribution-repeated", 0), ("weight-differs", 1)])
def test_a_second_process_of_a_site_ends_without_ending_the_run(code: str, given_up: int) -> None:
    client = Refusing(code)
    due = SimpleNamespace(round=7, kind=Kind.STEP)
    site = SimpleNamespace(plan=None, due=due, take=lambda *_: None, say=lambda: b"contribution")
    with pytest.raises(RefusedError):
        drive(cast(Any, site), cast(Any, client), "alpha")
    assert client.given_up == given_up
