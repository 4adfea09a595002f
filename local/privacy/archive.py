"""A site's secret, log and policy as one encrypted file."""

from __future__ import annotations

import base64
import json
import secrets
from pathlib import Path

from cryptography.fernet import Fernet, InvalidToken
from cryptography.hazmat.primitives.kdf.scrypt import Scrypt

from rankdad.common.errors import UserError, visible

MAGIC, SALT = b"rankdad-privacy-1\n", 16
COST = 2**15  # of scrypt: a tenth of a second and 32 MB for every guess


def sealed(site: str, log: bytes, policy: str, passphrase: str) -> bytes:
    """Return a log and its policy, encrypted and authenticated by a passphrase (scrypt, Fernet)."""
    salt = secrets.token_bytes(SALT)
    document = {"site": site, "log": base64.b64encode(log).decode(), "policy": policy}
    return MAGIC + salt + _cipher(passphrase, salt).encrypt(json.dumps(document).encode())


def opened(path: Path, site: str, passphrase: str) -> tuple[bytes, object]:
    """Return the log, and the policy's JSON, in a file.

    Raises:
        UserError: it cannot be read, the passphrase is another one, or it is another site's.
    """
    try:
        content = path.read_bytes()
    except OSError as error:
        raise UserError(
            f"{path}: cannot be read: {error.strerror}", code="cannot-read", field="FILE", file=path
        ) from None
    if not content.startswith(MAGIC):
        raise UserError(
            f"{path}: is nothing that `rankdad privacy export` has written", code="not-an-export", file=path
        )
    salt, token = content[len(MAGIC) : len(MAGIC) + SALT], content[len(MAGIC) + SALT :]
    try:
        document = json.loads(_cipher(passphrase, salt).decrypt(token))
    except (InvalidToken, ValueError):
        raise UserError(
            f"{path}: cannot be opened: the passphrase is another one, or the file is damaged",
            code="passphrase-wrong",
            file=path,
        ) from None
    if document["site"] != site:
        raise UserError(
            f"{path}: is the log of {visible(str(document['site']), 63)}, and this is {site}",
            code="log-of-another-site",
            file=path,
        )
    return base64.b64decode(document["log"]), json.loads(document["policy"])


def _cipher(passphrase: str, salt: bytes) -> Fernet:
    key = Scrypt(salt=salt, length=32, n=COST, r=8, p=1).derive(passphrase.encode())
    return Fernet(base64.urlsafe_b64encode(key))
