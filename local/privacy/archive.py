"""A site's secret, log and policy as one encrypted file."""

from __future__ import annotations

import base64
import json
import secrets
from pathlib import Path

from cryptography.fernet import Fernet, InvalidToken
from cryptography.hazmat.primitives.kdf.scrypt import Scrypt

from rankdad.common.documents import Part, validate
from rankdad.common.errors import UserError, visible
from rankdad.common.policy import Policy

MAGIC, SALT = b"rankdad-privacy-1\n", 16
COST = 2**15  # of scrypt: a tenth of a second and 32 MB per guess


class Exported(Part):
    """Contents of an exported file."""

    site: str
    log: str
    """The log file's bytes, in base64."""
    policy: Policy


def sealed(site: str, log: bytes, policy: Policy, passphrase: str) -> bytes:
    """Encrypt and authenticate a log and its policy with a passphrase (scrypt, Fernet)."""
    salt = secrets.token_bytes(SALT)
    document = Exported(site=site, log=base64.b64encode(log).decode(), policy=policy)
    return MAGIC + salt + _cipher(passphrase, salt).encrypt(document.model_dump_json().encode())


def opened(path: Path, site: str, passphrase: str) -> tuple[bytes, Policy]:
    """Decrypt the log and the policy in a file.

    Raises:
        UserError: the file cannot be read or decrypted, has other contents, or belongs to another site.
    """
    try:
        content = path.read_bytes()
    except OSError as error:
        raise UserError(
            f"{path}: cannot be read: {error.strerror}", code="cannot-read", field="FILE", file=path
        ) from None
    if not content.startswith(MAGIC):
        raise UserError(f"{path}: was not written by `rankdad privacy export`", code="not-an-export", file=path)
    salt, token = content[len(MAGIC) : len(MAGIC) + SALT], content[len(MAGIC) + SALT :]
    try:
        content = _cipher(passphrase, salt).decrypt(token)
    except InvalidToken:
        raise UserError(
            f"{path}: cannot be opened: the passphrase is wrong, or the file is damaged",
            code="passphrase-wrong",
            file=path,
        ) from None
    try:
        document = validate(Exported, json.loads(content), file=path)
        log = base64.b64decode(document.log, validate=True)
    except ValueError:
        raise UserError(f"{path}: holds no disclosure log", code="not-an-export", file=path) from None
    if document.site != site:
        raise UserError(
            f"{path}: is the log of {visible(document.site, 63)}, and this is {site}",
            code="log-of-another-site",
            file=path,
        )
    return log, document.policy


def _cipher(passphrase: str, salt: bytes) -> Fernet:
    key = Scrypt(salt=salt, length=32, n=COST, r=8, p=1).derive(passphrase.encode())
    return Fernet(base64.urlsafe_b64encode(key))
