"""What a site says to the aggregator when it cannot go on, and when it says nothing."""

from __future__ import annotations

from errno import ENOSPC, EROFS
from types import SimpleNamespace
from typing import Any, cast

import msgpack
import pytest

from rankdad.common.errors import UserError
from rankdad.common.protocol.messages import Kind
from rankdad.local.drivers.drive import drive
from rankdad.local.drivers.http import RefusedError


class Refusing:
    """A connection to an aggregator that refuses every contribution."""

    def __init__(self, code: str) -> None:
        self.code, self.given_up, self.said = code, 0, b""

    def expect(self, plan: Any) -> None: ...

    def exchange(self, body: bytes, round_: int, computed: float | None = None) -> bytes:
        raise RefusedError("refused", 409, code=self.code)

    def give_up(self, body: bytes) -> None:
        self.given_up += 1
        self.said = body


@pytest.mark.parametrize(
    ("code", "given_up"), [("contribution-repeated", 0), ("process-replaced", 0), ("weight-differs", 1)]
)
def test_a_second_process_of_a_site_ends_without_ending_the_run(code: str, given_up: int) -> None:
    client = Refusing(code)
    due = SimpleNamespace(round=7, kind=Kind.STEP)
    site = SimpleNamespace(plan=None, due=due, take=lambda *_: None, say=lambda: b"contribution")
    with pytest.raises(RefusedError):
        drive(cast(Any, site), cast(Any, client), "alpha")
    assert client.given_up == given_up


@pytest.mark.parametrize(
    ("number", "comes_back", "final"),
    [(ENOSPC, True, False), (EROFS, True, False), (ENOSPC, False, True)],
)
def test_a_site_with_a_full_disk_is_waited_for_if_it_can_come_back(number: int, comes_back: bool, final: bool) -> None:
    def take(*update: object) -> None:
        if update:
            raise OSError(number, "the disk")

    client = Refusing("")
    client.exchange = lambda *_: b"update"  # type: ignore[method-assign]
    due, observer = SimpleNamespace(round=7, kind=Kind.HELLO, exchange=0), SimpleNamespace(lap=lambda _: None)
    site = SimpleNamespace(plan=SimpleNamespace(exchanges=()), due=due, take=take, say=lambda: b"", observer=observer)
    with pytest.raises(UserError) as caught:
        drive(cast(Any, site), cast(Any, client), "alpha", comes_back=comes_back)
    said = msgpack.unpackb(client.said)["d"]
    assert (caught.value.code, said["code"], said["final"]) == ("cannot-write", "cannot-write", final)
