"""A run's results as a stream: a tar archive that ends with a list of digests."""

from __future__ import annotations

import hashlib
import tarfile
from collections.abc import Iterator
from pathlib import Path

from rankdad.remote.audit import AUDIT
from rankdad.remote.persistence import CHECKPOINTS
from rankdad.remote.run_file import names_of
from rankdad.remote.run_reader import FILE

SUMS = "SHA256SUMS"
PIECE = 1 << 18  # bytes read at once
LEFT_OUT = {*names_of(FILE), CHECKPOINTS, AUDIT}  # data and addresses of single sites


def archive(directory: Path) -> Iterator[bytes]:
    """Yield the archive of a run's directory, without contributions of single sites."""
    sums = []
    for path in sorted(directory.rglob("*")):
        name = path.relative_to(directory)
        if name.parts[0] in LEFT_OUT or path.is_symlink() or not path.is_file() or path.suffix == ".tmp":
            continue
        digest = hashlib.sha256()
        with path.open("rb") as file:
            size = path.stat().st_size
            yield _head(name.as_posix(), size)
            left = size
            while left:
                piece = file.read(min(PIECE, left)) or b"\0" * min(PIECE, left)  # truncated meanwhile
                left -= len(piece)
                digest.update(piece)
                yield piece
        yield b"\0" * (-size % tarfile.BLOCKSIZE)
        sums.append(f"{digest.hexdigest()}  {name.as_posix()}\n")
    listed = "".join(sums).encode()
    yield _head(SUMS, len(listed)) + listed + b"\0" * (-len(listed) % tarfile.BLOCKSIZE) + b"\0" * tarfile.BLOCKSIZE * 2


def _head(name: str, size: int) -> bytes:
    member = tarfile.TarInfo(name)
    member.size, member.mode = size, 0o600
    return member.tobuf(tarfile.PAX_FORMAT)
