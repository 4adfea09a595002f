"""Checkpoints: the state that a process needs to resume a run, in one file that is written atomically.

The last two are kept. A file is safetensors: tensors by name, and a JSON object as metadata. Nothing in it names code.
Its name has the round and a digest of its bytes; a damaged file is skipped and renamed.

    000000000057-9f86d081884c7d65.safetensors

Ranks that divide a replica write its parts into a folder beside the file, `….parts`. The file has their digests, and
comes last: a folder without it is removed.
"""

from __future__ import annotations

import hashlib
import json
import logging
import os
import re
import shutil
import struct
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple

import safetensors.torch
from safetensors import SafetensorError
from torch import Tensor

from rankdad.common.errors import DataError, ProtocolError, UserError, one_line
from rankdad.common.files import AGAIN, open_file, sync_path
from rankdad.common.lowrank.reduction.feedback import Residuals
from rankdad.common.protocol.plan import Plan
from rankdad.common.run.snapshot import Progress
from rankdad.common.run.state import RunState
from rankdad.common.run.state_format import SHARED, Loaded, StateFormat
from rankdad.common.tensors import read_tensors

KEPT = 2
EVERY = 50  # steps between two checkpoints
DIGITS = 12  # of a round in a name
_NAME = re.compile(rf"(\d{{{DIGITS}}})(?:-([0-9a-f]{{16}}))?\.safetensors")  # earlier versions have no digest
_SIZE = struct.Struct("<I")
_HEAD = struct.Struct("<Q")  # size of a safetensors file's head
PARTS = "parts"  # suffix of folders with parts, and key of their digests in a file's metadata
_log = logging.getLogger(__name__)


class Found(NamedTuple):
    """A checkpoint that was read, but not yet restored.

    Args:
        path: of its file.
        document: its JSON object.
        tensors: by name.
        parts: digests of the files beside it, by name.
    """

    path: Path
    document: dict[str, Any]
    tensors: dict[str, Tensor]
    parts: dict[str, str]

    @property
    def round(self) -> int:
        """The next round after it.

        Raises:
            UserError: its document has none.
        """
        try:
            return int(self.document["progress"]["round"])
        except (KeyError, TypeError, ValueError) as error:
            problem = f"{self.path}: is no checkpoint of this run: {one_line(error)}"
            raise UserError(problem, code="checkpoint-of-another-run") from None


class Checkpoints:
    """A process's checkpoints in a folder.

    Args:
        folder: created with the first checkpoint.
        plan: of the run.
        owner: of the checkpoints.
        data_sha256: digest of the owner's data; None to not compare it.
        sync: whether to sync a checkpoint to the disk before an older one is removed.
    """

    def __init__(
        self, folder: Path, plan: Plan, owner: str, *, data_sha256: str | None = None, sync: bool = False
    ) -> None:
        self.folder = folder
        self.damaged: set[Path] = set()  # not yet renamed
        self._format = StateFormat(plan, owner, data_sha256)
        self._sync = sync
        self._whole: list[Path] = []  # read or written by this process

    def save(
        self,
        state: RunState,
        residuals: Residuals,
        document: Mapping[str, Any] | None = None,
        moments: Mapping[str, Tensor] | None = None,
        changes: Sequence[Residuals] = (),
    ) -> None:
        """Write a checkpoint between two steps, and remove all but the last two complete ones.

        Args:
            state: of the run.
            residuals: of the process.
            document: further state, as JSON.
            moments: of a site's own optimizer.
            changes: of the residuals by late contributions, for each entry of `sent` in the document.

        Raises:
            UserError: the disk is full or broken; the last checkpoint stays.
        """
        self._write(state.round, *self._format.of(state, residuals, document, moments, changes))

    def _write(
        self, round_: int, tensors: dict[str, Tensor], metadata: dict[str, str], parts: Path | None = None
    ) -> None:
        """Write a checkpoint's file; a folder with the parts that it lists becomes the one beside it."""
        temporary = self.folder / "new.tmp"
        try:
            self.folder.mkdir(parents=True, exist_ok=True, mode=0o700)
            while self.damaged:
                damaged = self.damaged.pop()
                damaged.replace(damaged.with_suffix(".damaged"))
            safetensors.torch.save_file(tensors, temporary, metadata)
            temporary.chmod(0o600)
            if self._sync:
                sync_path(temporary)
            path = self.folder / f"{round_:012d}-{digest_of(temporary)}.safetensors"
            if parts is not None and path not in self._whole:  # else they are there
                shutil.rmtree(_beside(path), ignore_errors=True)
                parts.rename(_beside(path))
            os.replace(temporary, path)  # noqa: PTH105
            if self._sync:
                sync_path(self.folder)
        except (OSError, SafetensorError) as error:
            with suppress(OSError):  # the disk may be full or broken
                temporary.unlink(missing_ok=True)
            raise self._not_written(temporary, error) from None
        before = [old for old in self._whole if _round(old) != round_]
        self._whole = [*before, path][-KEPT:]
        for old in self._paths():
            if old not in self._whole:
                old.unlink(missing_ok=True)
        for folder in self.folder.glob(f"*.{PARTS}"):
            if folder not in map(_beside, self._whole):
                shutil.rmtree(folder, ignore_errors=True)

    def _not_written(self, path: Path, error: Exception) -> UserError:
        problem = f"the checkpoint cannot be written: {error}"
        return DataError(path, problem, code="cannot-write", hint=f"; {AGAIN}")

    def load(self, state: RunState, most_steps: int | None = None) -> Loaded | None:
        """Restore the newest readable checkpoint; see `find` and `restore`. Return None if there is none."""
        found = self.find(most_steps)
        return None if found is None else self.restore(state, found)

    def find(self, most_steps: int | None = None) -> Found | None:
        """Return the newest readable checkpoint; None if there is none.

        Args:
            most_steps: skip checkpoints with more steps.

        Raises:
            UserError: the checkpoint is of another run, plan, version or owner, or the owner has other data.
        """
        for path in reversed(self._paths()):
            found = self._read(path)
            if found is None or (most_steps is not None and found.document["progress"]["steps"] > most_steps):
                continue
            self._whole = [path]
            return found
        return None

    def restore(self, state: RunState, found: Found) -> Loaded:
        """Restore a checkpoint; return its further contents.

        Args:
            state: of the run; changed in place.
            found: the checkpoint.

        Raises:
            UserError: the checkpoint is not of this run, or its parts cannot be read.
        """
        tensors = found.tensors
        if found.parts:
            tensors = tensors | self._parts(state, _beside(found.path))
        return self._format.restore(state, found.document, tensors, str(found.path))

    def _parts(self, state: RunState, folder: Path) -> dict[str, Tensor]:
        """Return the parts of a replica that this process needs."""
        from rankdad.common import shards

        try:
            known, filled = shards.sizes(folder), dict[str, Tensor]()
            for key in sorted(known):
                filled[key] = state.replica.blank(key.partition("/")[2], known[key].size, known[key].properties.dtype)
            shards.read(folder, {key: value for key, value in filled.items() if not value.is_meta}, alone=True)
        except (DataError, *shards.UNREADABLE) as error:
            problem = f"its parts cannot be read ({one_line(error)}): all ranks need the folder {self.folder}"
            raise DataError(folder, problem, code="checkpoint-unreadable") from None
        return filled

    def packed(self) -> bytes | None:
        """Return the bytes of the last read or written checkpoint, for `receive`; None if there is none.

        Raises:
            UserError: the disk is broken.
        """
        if not self._whole:
            return None
        path = self._whole[-1]
        try:
            with open_file(path) as file:
                return path.name.encode() + b"\n" + file.read()
        except OSError as error:
            raise DataError(path, f"cannot be read: {error.strerror}", code="cannot-read") from None

    def receive(self, newest: bytes) -> Found:
        """Return the checkpoint whose bytes another process of the same owner has returned from `packed`."""
        name, _, content = newest.partition(b"\n")
        (size,) = _HEAD.unpack_from(content)
        metadata = json.loads(content[_HEAD.size : _HEAD.size + size])["__metadata__"]
        return _found(self.folder / name.decode(), metadata, safetensors.torch.load(content))

    def oldest(self) -> int | None:
        """Return the round of the older of two complete checkpoints: no earlier one is needed."""
        return _round(self._whole[0]) if len(self._whole) == KEPT else None

    def snapshot(self) -> bytes | None:
        """Return the newest readable checkpoint for a site that has lost its own, or None; see `take_over`."""
        for path in reversed(self._paths()):
            if (found := self._read(path)) is not None:
                shared = {name: value for name, value in found.tensors.items() if name.startswith(SHARED)}
                return _packed(found.document["progress"], shared)
        return None

    def _paths(self) -> list[Path]:
        return sorted(path for path in self.folder.glob("*.safetensors") if _NAME.fullmatch(path.name))

    def _read(self, path: Path) -> Found | None:
        """Return a checkpoint; None if it is damaged.

        Raises:
            UserError: it is complete, but of another owner or version, or with other data.
        """
        match = _NAME.fullmatch(path.name)
        if match is None or match[2] is None:
            raise UserError(
                f"{path}: is a checkpoint of an earlier rankdad: finish the run with its own version",
                code="checkpoint-of-earlier-version",
            )
        found = None
        if is_whole(path):
            try:
                found = _found(path, *read_tensors(path))
            except (SafetensorError, ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
                raise UserError(
                    f"{path}: is no checkpoint of rankdad: {one_line(error)}", code="checkpoint-unreadable"
                ) from None
        if found is None or not all(_has_digest(_beside(path) / name, own) for name, own in found.parts.items()):
            self.damaged.add(path)
            self._whole = [known for known in self._whole if known != path]
            _log.warning("%s: the checkpoint is damaged and skipped: is the disk failing?", path)
            return None
        self._format.check(found.document, str(path), f"choose another output, or remove {self.folder}")
        return found


def _found(path: Path, metadata: Mapping[str, str], tensors: dict[str, Tensor]) -> Found:
    document, parts = json.loads(metadata[""]), json.loads(metadata.get(PARTS, "{}"))
    if not isinstance(document, dict):
        raise ValueError("its document is no object")
    return Found(path, document, tensors, parts)


def newest(folder: Path) -> Path | None:
    """Return the newest checkpoint in a folder or its subfolders; None if there is none."""
    found = [path for path in (*folder.glob("*.safetensors"), *folder.glob("*/*.safetensors")) if is_checkpoint(path)]
    return max(found, key=lambda path: (path.stat().st_mtime, path.name), default=None)


def is_checkpoint(path: Path) -> bool:
    """Return whether a file's name is that of a checkpoint."""
    return _NAME.fullmatch(path.name) is not None


def round_of(path: Path) -> int:
    """Return the first round after a checkpoint, from its name."""
    return int(path.name[:DIGITS])


def is_whole(path: Path) -> bool:
    """Return whether a checkpoint's bytes match the digest in its name."""
    match = _NAME.fullmatch(path.name)
    return match is not None and _has_digest(path, match[2])


def _has_digest(path: Path, digest: str | None) -> bool:
    try:
        return digest_of(path) == digest
    except OSError:  # missing, no file, or on a failing disk
        return False


def _packed(progress: Mapping[str, Any], tensors: dict[str, Tensor]) -> bytes:
    document = json.dumps(progress).encode()
    return _SIZE.pack(len(document)) + document + safetensors.torch.save(tensors)


def take_over(state: RunState, snapshot: bytes) -> None:
    """Set a run's state to another process's snapshot.

    Raises:
        ProtocolError: it does not fit this run.
    """
    try:
        (size,) = _SIZE.unpack_from(snapshot)
        progress = Progress.model_validate_json(snapshot[_SIZE.size : _SIZE.size + size])
        state.load(progress, safetensors.torch.load(snapshot[_SIZE.size + size :]))
    except (struct.error, ValueError, KeyError, RuntimeError, SafetensorError) as error:
        raise ProtocolError(
            502, f"the aggregator's snapshot cannot be used: {one_line(error)}", code="snapshot-unusable"
        ) from None


def _beside(path: Path) -> Path:
    """Return the folder with the parts of a checkpoint."""
    return path.with_suffix(f".{PARTS}")


def _round(path: Path) -> int:
    return int(path.name[:12])


def digest_of(path: Path) -> str:
    """Return the start of the sha256 of a file."""
    with open_file(path) as file:
        return hashlib.file_digest(file, "sha256").hexdigest()[:16]


def between(state: RunState, every: int) -> int:
    """Return the number of steps between two checkpoints of a site: fewer if a step has many batches."""
    return max(1, every // state.batches_per_step)
