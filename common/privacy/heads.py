"""Keyed digests of how far a site's log has come, by which other members recognise an outdated copy.

Every logged run makes a head from the one before. Without the site's secret, heads reveal nothing.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable
from dataclasses import dataclass

from rankdad.common.privacy.parts import Secret

MOST = 100  # heads that are sent; for members that last saw an older one, only the length is compared
DIGEST = 16  # bytes
BEGINNING = struct.Struct(f"<{DIGEST}sQ")


@dataclass(frozen=True)
class Heads:
    """Public state of a site's log.

    Args:
        id: of the log, 32 hexadecimal digits, like heads.
        length: number of logged runs.
        heads: after each of the newest runs, last one last.
    """

    id: str
    length: int
    heads: tuple[str, ...]

    def at(self, length: int) -> str | None:
        """Return the head after this many runs; None if it is not included."""
        place = length - 1 - (self.length - len(self.heads))
        return self.heads[place] if 0 <= place < len(self.heads) else None


def chained(secret: Secret, runs: Iterable[tuple[str, ...]]) -> Heads:
    """Return the heads of a log.

    Args:
        secret: of the site.
        runs: their logged fields, in order.
    """
    heads, head = list[str](), ""
    for noted in runs:
        head = secret.name("head", head, *noted)
        heads.append(head)
    return Heads(secret.name("log"), len(heads), tuple(heads[-MOST:]))


def problem(known: Heads | None, current: Heads | None) -> str:
    """Return the code of a problem with a log, if a newer or another one was seen; "" if there is none.

    Args:
        known: last state that the site sent; None if it never did.
        current: current state; None without a log.
    """
    if known is None:
        return ""
    if current is None:
        return "log-missing"
    if current.id != known.id:
        return "log-replaced"
    if current.length < known.length:
        return "log-too-old"
    return "log-forked" if current.at(known.length) not in (None, known.heads[-1]) else ""


def pack(heads: Heads | None) -> bytes:
    """Encode heads; empty for a site without a log."""
    if heads is None:
        return b""
    return BEGINNING.pack(bytes.fromhex(heads.id), heads.length) + bytes.fromhex("".join(heads.heads))


def unpack(data: bytes) -> Heads | None:
    """Decode heads.

    Raises:
        ValueError: they are invalid.
    """
    if not data:
        return None
    count, rest = divmod(len(data) - BEGINNING.size, DIGEST)
    if rest or not 0 < count <= MOST:
        raise ValueError(f"got {len(data)} bytes, expected 1 to {MOST} heads of {DIGEST}")
    id_, length = BEGINNING.unpack_from(data)
    if count != min(length, MOST) or length >= 2**53:
        raise ValueError(f"got {count} heads of {length} runs, expected the newest {MOST}, or all")
    digits = data[BEGINNING.size :].hex()
    heads = tuple(digits[at : at + 2 * DIGEST] for at in range(0, len(digits), 2 * DIGEST))
    return Heads(id_.hex(), length, heads)
