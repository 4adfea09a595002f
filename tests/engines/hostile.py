"""What a node may send in place of a site's call."""

from __future__ import annotations

import random

import msgpack

FIRST = {"what": "run", "number": 1, "site": "hospital-a"}


def payload(number: int) -> bytes:
    """Return bytes that are no call of hospital-a's; the fiftieth are one, since a hundred in a row end a site."""
    if number == 50:
        return bytes(msgpack.packb(FIRST))
    rng = random.Random(number)
    return rng.choice(
        (
            b"",
            b"\xc1",
            bytes(1000),
            b"\x81" * 4000,
            rng.randbytes(200),
            msgpack.packb(FIRST)[: rng.randrange(20)],
            msgpack.packb(FIRST | {"site": "hospital-b", "what": "send", "body": rng.randbytes(99)}),
            msgpack.packb(FIRST | {"what": "os.system"}),
            msgpack.packb(FIRST | {"number": -1}),
            msgpack.packb(FIRST | {"what": "send", "round": 2**53, "body": rng.randbytes(99)}),
            bytes(1 << 22),
        )
    )
