"""What viewers are told when a stream ends, and how many there may be."""

from __future__ import annotations

import asyncio
from collections import Counter
from typing import Any

import pytest

from rankdad.page import stream as streams
from rankdad.page.history import History
from rankdad.page.stream import Stream


def made(said: dict[str, Any], **options: Any) -> Stream:
    return Stream(lambda: dict(said), History((), (), ()), period=0.01, **options)


def test_a_viewer_who_is_behind_hears_the_last_of_it_and_the_end() -> None:
    async def look_on() -> list[bytes]:
        said = {"step": 1}
        stream = made(said)
        events = stream.events()
        told = [await anext(events)]
        said["step"] = 2
        await asyncio.sleep(0.05)
        said["step"] = 3
        stream.close()
        return told + [event async for event in events]

    told = b"".join(asyncio.run(look_on())).replace(b": nothing\n\n", b"")
    kinds = [line for line in told.splitlines() if line.startswith(b"event")]
    assert kinds == [b"event: whole", b"event: change", b"event: change", b"event: end"]
    assert told.index(b'{"step":2}') < told.index(b'{"step":3}')


def test_who_comes_when_all_is_over_hears_everything_and_the_end() -> None:
    async def look_on() -> list[bytes]:
        stream = made({"step": 1})
        stream.close()
        return [event async for event in stream.events()]

    whole, end = asyncio.run(look_on())
    assert b'"step":1' in whole
    assert end.startswith(b"event: end")


def test_streams_that_belong_together_have_one_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(streams, "MAX_VIEWERS", 2)

    async def look_on() -> list[bool]:
        everybody = Counter[str]()
        one, other = (made({}, everybody=everybody) for _ in range(2))
        viewers, late = [one.events("vera"), other.events("vera")], one.events("vera")
        found = [one.is_full("vera")]
        for viewer in viewers:
            await anext(viewer)
        found += [one.is_full("vera"), other.is_full("vera"), other.is_full("anna")]
        assert [event async for event in late] == [], "who was let in before it was full is told nothing either"
        await viewers[0].aclose()
        return [*found, one.is_full("vera"), other.is_full("vera")]

    assert asyncio.run(look_on()) == [False, True, True, False, False, False]
