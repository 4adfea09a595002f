"""Files and folders on the disk."""

from __future__ import annotations

import errno
import fcntl
import json
import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from rankdad.common.errors import DataError, UserError, visible

LOCK = "lock"  # in a folder that one process at a time writes to: the owner's name


def is_within(path: Path, folder: Path) -> bool:
    """Return whether a path is in a folder, after following links; False if that fails."""
    try:
        return path.resolve().is_relative_to(folder.resolve())
    except (OSError, ValueError, RuntimeError):  # a name too long, a NUL, a loop of links
        return False


def check_file(path: Path, *, missing_ok: bool = False) -> None:
    """Check that a path is a file.

    Args:
        path: of the file.
        missing_ok: whether it may be missing.

    Raises:
        DataError: it is missing, or something else, such as a folder or a pipe, which would block.
    """
    try:
        found, is_file = path.exists(), path.is_file()
    except OSError as error:
        raise DataError(path, f"cannot be read: {error.strerror or error}", code="cannot-read") from None
    if not is_file and (found or not missing_ok):
        problem = "is not a file but a folder" if path.is_dir() else "is not a file"
        raise DataError(path, problem if found else "does not exist", code="file-missing")


def write_json(path: Path, document: object, *, private: bool = False) -> None:
    """Write a JSON file atomically; see `write_whole`."""
    write_whole(path, json.dumps(document, indent=2) + "\n", private=private)


def write_whole(path: Path, text: str, *, private: bool = False) -> None:
    """Write a file atomically: readers find the old or the new contents, also after a crash or a power failure.

    Args:
        path: its folder is created if missing.
        text: contents.
        private: whether only its owner can read it.

    Raises:
        UserError: it cannot be written.
    """
    temporary = path.with_suffix(".tmp")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        temporary.unlink(missing_ok=True)
        temporary.touch(0o600 if private else 0o666, exist_ok=False)
        temporary.write_text(text, encoding="utf-8")
        sync_path(temporary)
        os.replace(temporary, path)  # noqa: PTH105
    except OSError as error:
        raise UserError(f"{path}: cannot be written: {error.strerror}", code="cannot-write") from None


def make_folder(path: Path, *, private: bool = False) -> Path:
    """Create a folder if it is missing, and return it.

    Args:
        path: of the folder.
        private: whether only its owner can enter it.

    Raises:
        UserError: it cannot be created.
    """
    try:
        path.mkdir(mode=0o700 if private else 0o777, parents=True, exist_ok=True)
    except OSError as error:
        raise UserError(f"{path}: cannot be made: {error.strerror}", code="cannot-write") from None
    return path


def check_writable(folder: Path, field: str) -> None:
    """Check that a folder can be written to or created, without doing so.

    Raises:
        UserError: it cannot.
    """
    there = next(one for one in (folder, *folder.absolute().parents) if one.exists())
    if not there.is_dir() or not os.access(there, os.W_OK | os.X_OK):
        raise UserError(
            f"{field}: {folder} cannot be written: {there} is read-only, or no folder; name another one in {field}",
            code="cannot-write",
            field=field,
        )


@contextmanager
def owned(folder: Path, owner: str, field: str = "output") -> Iterator[None]:
    """Lock a folder for this process within a `with`, and mark it as its owner's.

    Args:
        folder: existing.
        owner: a site's name, or another writer's.
        field: that names the folder, for errors.

    Raises:
        UserError: another process uses the folder, it belongs to another owner, or it cannot be written.
    """
    path = folder / LOCK
    try:
        file = os.open(path, os.O_RDWR | os.O_CREAT, 0o600)
    except OSError as error:
        raise UserError(
            f"{path}: cannot be written: {error.strerror}", code="cannot-write", field=field, file=path
        ) from None
    try:
        before = visible(os.pread(file, 1 << 10, 0).decode(errors="replace").strip(), 63)
        try:
            fcntl.lockf(file, fcntl.LOCK_EX | fcntl.LOCK_NB)  # unlike flock, not inherited by child processes
        except OSError as error:
            held = error.errno in (errno.EACCES, errno.EAGAIN)
            raise UserError(
                f"{field}: {folder} is in use by {before or 'another process'}: stop that first, or choose another "
                "folder"
                if held
                else f"{field}: {folder} cannot be locked ({error.strerror}): choose a folder on another disk",
                code="folder-in-use" if held else "cannot-lock",
                field=field,
                site=before,
                file=path,
            ) from None
        if before not in ("", owner):
            raise UserError(
                f"{field}: {folder} is {before}'s, and this is {owner}: choose another folder, or remove that one",
                code="folder-of-another",
                field=field,
                site=before,
                file=path,
            )
        os.pwrite(file, f"{owner}\n".encode(), 0)
        try:
            yield
        finally:
            with suppress(OSError):
                if [one.name for one in folder.iterdir()] == [LOCK]:  # without results, the folder has no owner
                    os.ftruncate(file, 0)
    finally:
        os.close(file)


def sync_path(path: Path) -> None:
    """Sync a file, or a folder's list of files, to the disk."""
    file = os.open(path, os.O_RDONLY)
    try:
        os.fsync(file)
    finally:
        os.close(file)
