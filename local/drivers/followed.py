"""Records the updates that a site has applied in a run, so that a restarted site accepts only the same ones.

A restarted site continues from its checkpoint and repeats the later steps with the same batches. At other weights,
these batches would reveal their patients.
"""

from __future__ import annotations

import hashlib
import os
from pathlib import Path

from rankdad.common.errors import ProtocolError, UserError
from rankdad.common.files import cannot_write

SIZE = 32  # bytes of a digest
FILE = "followed"


class Followed:
    """Digests of updates by round, in a file.

    Args:
        folder: of the run's checkpoints; created if missing.

    Attributes:
        again: whether the site has applied an update of this run before.

    Raises:
        UserError: the file cannot be written.
    """

    def __init__(self, folder: Path) -> None:
        self._path = folder / FILE
        try:
            folder.mkdir(parents=True, exist_ok=True, mode=0o700)
            self._file = os.open(self._path, os.O_RDWR | os.O_CREAT, 0o600)
        except OSError as error:
            raise self._unwritten(error) from None
        self.again = os.fstat(self._file).st_size > 0

    def close(self) -> None:
        """Close the file."""
        os.close(self._file)

    def note(self, round_: int, update: bytes) -> None:
        """Record the update of a round, or compare it with the recorded one.

        Raises:
            ProtocolError: it differs.
            UserError: the file cannot be written.
        """
        digest = hashlib.sha256(update).digest()
        try:
            known = os.pread(self._file, SIZE, round_ * SIZE)
            if not known.strip(b"\0"):
                os.pwrite(self._file, digest, round_ * SIZE)
                return
        except OSError as error:
            raise self._unwritten(error) from None
        if known != digest:
            raise ProtocolError(
                502,
                f"r: the aggregator's update of round {round_} differs from the one that this site applied before: its "
                "batches would be disclosed at other weights",
                code="update-differs",
                field="r",
            )

    def _unwritten(self, error: OSError) -> UserError:
        return cannot_write(self._path, error, "output")
