"""Turns texts into tokens: bytes, or those of a `tokenizers` file that the spec pins by its digest."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from pathlib import Path

import numpy as np

from rankdad.common.data.reading import Array
from rankdad.common.errors import DataError, UserError, one_line
from rankdad.common.files import open_file
from rankdad.common.spec.text import BEGIN, END, SPECIAL, TextData, Tokenizer

Encoder = Callable[[str], tuple[Array, Array]]  # tokens of a text with begin and end, and the number of bytes of each


def encoder_of(data: TextData, folder: Path) -> Encoder:
    """Return the encoder of a schema.

    Args:
        data: the schema.
        folder: with the tokenizer's file.

    Raises:
        DataError: the file is missing, or another one.
        UserError: tokenizers is not installed.
    """
    return _bytes if data.tokenizer is None else _tokenizer(data.tokenizer, folder / data.tokenizer.file)


def _bytes(text: str) -> tuple[Array, Array]:
    own = np.frombuffer(text.encode(), np.uint8).astype(np.int64) + SPECIAL
    return _whole(own, np.ones(len(own), np.int64))


def _whole(tokens: Array, sizes: Array) -> tuple[Array, Array]:
    return np.concatenate([[BEGIN], tokens, [END]]), np.concatenate([[0], sizes, [0]])


def _tokenizer(spec: Tokenizer, path: Path) -> Encoder:
    try:
        with open_file(path) as file:
            content = file.read()
    except OSError as error:
        raise DataError(path, f"cannot be read: {error.strerror}", code="cannot-read") from None
    if (digest := hashlib.sha256(content).hexdigest()) != spec.sha256:
        problem = f"is another tokenizer: it has the sha256 {digest}, expected {spec.sha256} (data.tokenizer.sha256)"
        raise DataError(path, problem, code="digest-differs", field="data.tokenizer.sha256")
    try:
        import tokenizers
    except ImportError:
        raise UserError(
            "data.tokenizer: needs tokenizers, which is not installed: pip install 'rankdad[text]'",
            code="not-installed",
            field="data.tokenizer",
        ) from None
    try:
        made = tokenizers.Tokenizer.from_str(content.decode())
    except Exception as error:  # the library raises Exception itself
        raise DataError(path, f"is no tokenizer: {one_line(error)}", code="not-a-tokenizer") from None
    made.no_truncation()
    made.no_padding()
    largest = max(made.get_vocab(with_added_tokens=True).values(), default=0)
    if largest >= spec.tokens:
        problem = f"has a token of number {largest}, expected numbers below {spec.tokens} (data.tokenizer.tokens)"
        raise DataError(path, problem, code="token-beyond-table", field="data.tokenizer.tokens")

    def encode(text: str) -> tuple[Array, Array]:
        try:
            found = made.encode(text, add_special_tokens=False)
        except (KeyboardInterrupt, SystemExit, MemoryError):
            raise
        except BaseException as error:  # a panic of the library is no Exception
            problem = f"cannot divide a text into tokens: {one_line(error)}"
            raise DataError(path, problem, code="not-a-tokenizer", field="data.tokenizer.file") from None
        ends = np.maximum.accumulate([0, *(len(text[:end].encode()) for _, end in found.offsets)])
        return _whole(np.array(found.ids, np.int64) + SPECIAL, np.diff(ends))

    return encode
