"""Checks a file's type by its first bytes, and its size against the memory, before it is read."""

from __future__ import annotations

import gzip
import zlib
from pathlib import Path
from typing import IO, cast

from rankdad.common.available_memory import available
from rankdad.common.errors import DataError
from rankdad.common.files import check_file

UNKNOWN = 1 << 40  # bytes of memory, if the system does not say
HEAD = 1 << 12  # bytes used to detect the type
SIGNATURES = (
    (b"PK\x03\x04", "a workbook (.xlsx, .ods) or another zip archive"),
    (b"\xd0\xcf\x11\xe0", "an old workbook (.xls) or another Office document"),
    (b"%PDF", "a PDF"),
    (b"{\\rtf", "a text document (.rtf)"),
    (b"\x1f\x8b", "compressed with gzip"),
    (b"BZh", "compressed with bzip2"),
    (b"\xfd7zXZ", "compressed with xz"),
    (b"7z\xbc\xaf", "a 7z archive"),
    (b"Rar!", "a rar archive"),
    (b"PAR1", "a Parquet file"),
    (b"ARROW1", "a Feather file"),
    (b"\x93NUMPY", "a npy file of one array"),
    (b"\x89HDF", "an HDF5 file"),
    (b"SQLite format 3", "a SQLite database"),
    (b"$FL2", "an SPSS file"),
    (b"<stata_dta>", "a Stata file"),
    (b"\x89PNG", "a picture"),
    (b"\xff\xd8\xff", "a picture"),
    (b"\xff\xfe\x00\x00", "text in UTF-32"),
    (b"\x00\x00\xfe\xff", "text in UTF-32"),
    (b"\xff\xfe", "text in UTF-16"),
    (b"\xfe\xff", "text in UTF-16"),
)
MARKUP = ((b"<!doctype html", b"<html", b"<head", b"<meta", b"<table", b"<style", b"<div"), (b"<?xml",))


def format_of(head: bytes) -> str | None:
    """Return a description of a file's type by its first bytes; None if it may be UTF-8 text or is unknown."""
    for signature, meaning in SIGNATURES:
        if head.startswith(signature):
            return meaning
    words = head.removeprefix(b"\xef\xbb\xbf").lstrip().lower()
    pages, xml = (words.startswith(marks) for marks in MARKUP)
    return "a web page (HTML)" if pages else "an XML file" if xml else None


def opened(path: Path) -> IO[bytes]:
    """Open a file for reading; decompress it if its name ends in .gz."""
    return cast(IO[bytes], gzip.open(path)) if path.suffix.lower() == ".gz" else path.open("rb")


def check_text(path: Path, expected: str, factor: int = 1) -> None:
    """Check that a file exists, is text, and fits into memory.

    Args:
        path: of the file, possibly compressed (.gz).
        expected: description of a valid file, with a remedy.
        factor: its size in memory, relative to the file.

    Raises:
        DataError: it has another type, or contains a NUL.
    """
    check_file(path)
    try:
        check_fits(path, "its bytes", path.stat().st_size * (1 if path.suffix.lower() == ".gz" else factor))
        with opened(path) as file:
            chunk, size = file.read(HEAD), 0
            if meaning := format_of(chunk):
                raise DataError(path, f"is {meaning}, expected {expected}", code="format-unexpected")
            while chunk:
                if b"\0" in chunk:
                    file.seek(0)
                    row = file.read(size + chunk.index(b"\0")).count(b"\n") + 1
                    raise DataError(
                        path,
                        f"holds the character NUL, expected {expected}",
                        place=f"row {row}",
                        code="character-nul",
                        row=row,
                    )
                size += len(chunk)
                check_fits(path, "its bytes, unpacked,", size * factor)
                chunk = file.read(1 << 20)
    except (EOFError, zlib.error, gzip.BadGzipFile) as error:
        raise DataError(path, f"is no whole gzip file: {error}", code="gzip-damaged") from None
    except OSError as error:
        raise DataError(path, f"cannot be read: {error.strerror or error}", code="cannot-read") from None


def check_fits(source: str | Path, what: str, needed: int) -> None:
    """Check that this many bytes fit into memory: an allocation that is too large would get the process killed.

    Raises:
        DataError: they do not; names both sizes.
    """
    there = available() or UNKNOWN
    if needed > there:
        raise DataError(
            source,
            f"{what} do not fit into memory: they take {needed / 2**30:,.1f} GiB of {there / 2**30:,.1f} GiB",
            code="out-of-memory",
        )
