"""Files and folders on the disk."""

from __future__ import annotations

import errno
import fcntl
import json
import logging
import os
import shlex
import stat
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from io import BufferedReader
from pathlib import Path
from typing import BinaryIO

from rankdad.common.errors import DataError, UserError, visible

OF_THE_DISK = {  # what of a disk a person can mend, by the number of the error
    errno.ENOSPC: "make space there",
    errno.EDQUOT: "make space there, or raise the quota",
    errno.EFBIG: "choose a disk that holds larger files",
    errno.EROFS: "make the disk writable",
    errno.EACCES: "let this user write there",
    errno.EPERM: "let this user write there",
    errno.EIO: "look whether the disk is failing",
}
DESCRIPTORS = (Path("/proc/self/fd"), Path("/dev/fd"))  # of Linux, of macOS: links to this process's open files
AGAIN = "make space there, or let this user write there, and start the same command again"
READABLE = "secret-readable"  # the code of a warning
LOCK = "lock"  # in a folder that one process at a time writes into: whose it is

_log = logging.getLogger(__name__)


def warn_if_readable(path: str | Path | None, field: str) -> None:
    """Warn of a secret's file that others than its owner can read or write, and name the command that mends it.

    Args:
        path: of the file; nothing is said where there is none.
        field: that names it.
    """
    try:
        mode = 0 if path is None else Path(path).stat().st_mode
    except OSError:
        return
    if mode & 0o066:
        text = "%s holds a secret, and others than its owner can read it (mode %o): chmod 600 %s"
        about = {"event": {"code": READABLE, "field": field}}
        _log.warning(text, path, mode & 0o777, shlex.quote(str(path)), extra=about)


def keep_private() -> None:
    """Let no other user read what this process writes from now on: it holds patients' rows, names and secrets."""
    os.umask(0o077)


def open_private(path: Path) -> BinaryIO:
    """Open a file to write anew, which its owner alone can read, under any umask."""
    file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
    os.fchmod(file, 0o600)
    return os.fdopen(file, "wb")


def give_to_owner(path: Path) -> None:
    """Give what root has written, such as by `docker exec`, to the owner of its folder, whose processes read it.

    Raises:
        OSError: root may not do so here.
    """
    folder = path.absolute().parent.stat()
    if os.geteuid() == 0 and folder.st_uid != 0 and path.lstat().st_uid == 0:  # over NFS, root may be another user
        os.chown(path, folder.st_uid, folder.st_gid, follow_symlinks=False)


def cannot_write(path: str | Path, error: OSError, field: str = "") -> UserError:
    """Return the error of what could not be written, with a remedy.

    Args:
        path: of the file or folder.
        error: as the system raised it.
        field: that names the path.
    """
    begin = f"{field}: {path}" if field.startswith("-") else f"{path}:"
    remedy = OF_THE_DISK.get(error.errno or 0, "choose another place")
    return UserError(
        f"{begin} cannot be written: {error.strerror or error}; {remedy}, and start the same command again",
        code="cannot-write",
        field=field,
        file=path,
    )


@contextmanager
def naming_the_disk() -> Iterator[None]:
    """Turn what a disk refuses within a `with` into a sentence with a remedy.

    Raises:
        UserError: the disk is full or broken.
    """
    try:
        yield
    except OSError as error:
        if error.errno not in OF_THE_DISK:
            raise
        raise cannot_write(error.filename or "the output", error) from None


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


def open_file(path: Path) -> BufferedReader:
    """Open a file for reading, but no pipe or device: these block, and may take a file's place after `check_file`.

    Raises:
        OSError: it cannot be read, or is no file.
    """
    file = open(path, "rb", opener=None if os.name == "nt" else _at_once)  # noqa: SIM115  # the caller closes it
    if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
        file.close()
        raise OSError(errno.EINVAL, "not a file", str(path))
    return file


def _at_once(path: str, flags: int) -> int:
    return os.open(path, flags | os.O_NONBLOCK)


def link_to(file: BinaryIO) -> Path:
    """Return a path of an open file, for libraries that open a path: its own where a system has no other."""
    folder = next((folder for folder in DESCRIPTORS if folder.is_dir()), None)
    return Path(file.name) if folder is None else folder / str(file.fileno())


def write_json(path: Path, document: object, *, private: bool = False) -> None:
    """Write a JSON file atomically; see `write_whole`."""
    write_whole(path, json.dumps(document, indent=2) + "\n", private=private)


def write_whole(path: Path, text: str, *, private: bool = False, field: str = "") -> None:
    """Write a file so that readers, also after a crash or a power failure, find the old one or the new one.

    Args:
        path: its folder is made if it is missing.
        text: what it is to hold.
        private: whether its owner alone can read it.
        field: that names the file.

    Raises:
        UserError: it cannot be written.
    """
    temporary = path.with_suffix(".tmp")
    make_folder(path.parent, field=field)
    try:
        temporary.unlink(missing_ok=True)
        temporary.touch(0o600 if private else 0o666, exist_ok=False)
        give_to_owner(temporary)
        temporary.write_text(text, encoding="utf-8")
        sync_path(temporary)
        os.replace(temporary, path)  # noqa: PTH105
    except OSError as error:
        raise cannot_write(path, error, field) from None


def make_folder(path: Path, *, private: bool = False, field: str = "") -> Path:
    """Make a folder if it is missing, and return it.

    Args:
        path: of the folder.
        private: whether its owner alone can enter it.
        field: that names the folder.

    Raises:
        UserError: it cannot be created.
    """
    try:
        missing = [one for one in (path, *path.parents) if not one.exists()]
        path.mkdir(mode=0o700 if private else 0o777, parents=True, exist_ok=True)
        for one in reversed(missing):
            give_to_owner(one)
    except OSError as error:
        raise cannot_write(path, error, field) from None
    return path


def check_writable(folder: Path, field: str) -> None:
    """Check that a folder can be written to or created, without doing so.

    Raises:
        UserError: it cannot.
    """
    there = next(one for one in (folder, *folder.absolute().parents) if one.exists())
    if not there.is_dir() or not os.access(there, os.W_OK | os.X_OK):
        why = "this user may not write there: chown or chmod it"
        if not there.is_dir():
            why = f"{there} is no folder: remove it"
        elif os.statvfs(there).f_flag & os.ST_RDONLY:
            why = f"{there} is read-only: mount it writable"
        raise UserError(
            f"{field}: {folder} cannot be written: {why}, or name another one in {field}",
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
        raise cannot_write(path, error, field) from None
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
        try:
            os.pwrite(file, f"{owner}\n".encode(), 0)
        except OSError as error:
            raise cannot_write(path, error, field) from None
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
