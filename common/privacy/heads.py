"""How far a site's log has come, in a few keyed digests: whoever has seen a newer one knows an older one by it.

Every run that a log notes makes a head from the one before. Without the site's secret nothing can be guessed from it.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable
from dataclasses import dataclass

from rankdad.common.privacy.parts import Secret

MOST = 100  # heads that are told: of a log that somebody has last seen before these, only the length is compared
DIGEST = 16  # bytes
BEGINNING = struct.Struct(f"<{DIGEST}sQ")


@dataclass(frozen=True)
class Heads:
    """What a site tells of its log.

    Args:
        id: of the log, 32 hexadecimal digits, as heads are.
        length: runs that it has noted.
        heads: after each of the newest of them, the last one last.
    """

    id: str
    length: int
    heads: tuple[str, ...]

    def at(self, length: int) -> str | None:
        """Return the head of that many runs; None where it is not told."""
        place = length - 1 - (self.length - len(self.heads))
        return self.heads[place] if 0 <= place < len(self.heads) else None


def chained(secret: Secret, runs: Iterable[tuple[str, ...]]) -> Heads:
    """Return the heads of a log.

    Args:
        secret: of the site.
        runs: what the log has noted of each, in its order.
    """
    heads, head = list[str](), ""
    for noted in runs:
        head = secret.name("head", head, *noted)
        heads.append(head)
    return Heads(secret.name("log"), len(heads), tuple(heads[-MOST:]))


def problem(known: Heads | None, told: Heads | None) -> str:
    """Return the code of what is wrong with a log, where a newer one or another was seen; "" if nothing is.

    Args:
        known: what its site told last; None where it never told of one.
        told: what it tells now; None where it has none.
    """
    if known is None:
        return ""
    if told is None:
        return "log-missing"
    if told.id != known.id:
        return "log-replaced"
    if told.length < known.length:
        return "log-too-old"
    return "log-forked" if told.at(known.length) not in (None, known.heads[-1]) else ""


def pack(heads: Heads | None) -> bytes:
    """Return heads as they travel; nothing of a site without a log."""
    if heads is None:
        return b""
    return BEGINNING.pack(bytes.fromhex(heads.id), heads.length) + bytes.fromhex("".join(heads.heads))


def unpack(data: bytes) -> Heads | None:
    """Return the heads in bytes.

    Raises:
        ValueError: they are none.
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
