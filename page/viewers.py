"""The token of a run's page without a file of viewers."""

from __future__ import annotations

import secrets
from pathlib import Path

from rankdad.common.errors import UserError
from rankdad.common.files import warn_if_readable, write_whole

VIEWER_TOKEN = "viewer-token"  # the file's name


def own_token(path: Path) -> str:
    """Read the token in a private file; create it if missing.

    Raises:
        UserError: it cannot be read or written.
    """
    warn_if_readable(path, path.name)
    if not path.exists():
        write_whole(path, f"{secrets.token_hex(32)}\n", private=True)
    try:
        token = path.read_text(encoding="ascii").strip()
    except (OSError, ValueError) as error:
        raise UserError(f"{path}: cannot be read: {error}", code="cannot-read") from None
    if len(token) < 20:
        raise UserError(
            f"{path}: has no token, expected one line of 20 or more letters and digits", code="token-malformed"
        )
    return token
