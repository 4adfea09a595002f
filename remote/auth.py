"""Authentication of sites by token, certificate, or both."""

from __future__ import annotations

import hashlib
import logging
import re
import secrets
import ssl
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

from pydantic import Field, RootModel

from rankdad.common.documents import load_json, validate
from rankdad.common.errors import ProtocolError, UserError
from rankdad.common.sites import SiteName

_log = logging.getLogger(__name__)
NAME = re.compile(r"[a-z0-9][a-z0-9._-]{0,62}")


class Tokens(RootModel[dict[SiteName, Annotated[str, Field(pattern=r"^sha256:[0-9a-f]{64}$")]]]):
    """The aggregator's token file: the hash of each site's token."""


def hashed(token: str) -> str:
    """Hash a token. Tokens are 256 random bits, so a hash without salt or stretching suffices."""
    return f"sha256:{hashlib.sha256(token.encode()).hexdigest()}"


def read_tokens(path: Path) -> dict[str, str]:
    """Read a file of hashed tokens.

    Raises:
        UserError: it is unreadable or invalid.
    """
    return validate(Tokens, load_json(path), file=path).root


class TokenFile(Mapping[str, str]):
    """The hashed tokens of a file, reloaded when it changes.

    Raises:
        UserError: the file is unreadable or invalid at the start.
    """

    def __init__(self, path: Path) -> None:
        self._path, self._stamp = path, _stamp(path)
        self._tokens = read_tokens(path)

    def __getitem__(self, name: str) -> str:
        return self._now()[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._now())

    def __len__(self) -> int:
        return len(self._now())

    def _now(self) -> dict[str, str]:
        stamp = _stamp(self._path)
        if stamp != self._stamp:
            try:
                self._tokens = read_tokens(self._path)
            except UserError as error:  # it may be half copied
                _log.warning("%s; the previous tokens remain valid", error)
            self._stamp = stamp
        return self._tokens


def _stamp(path: Path) -> tuple[int, ...]:
    try:
        known = path.stat()
    except OSError:
        return ()
    return known.st_mtime_ns, known.st_size, known.st_ino


@dataclass(frozen=True)
class Identity:
    """Authentication of callers as sites.

    Args:
        sites: the run's.
        tokens: hashed token of each site; None requires none.
        certificates: whether callers must show a certificate of the consortium.
    """

    sites: tuple[str, ...]
    tokens: Mapping[str, str] | None = None
    certificates: bool = False

    @property
    def required(self) -> bool:
        """Whether authentication is required."""
        return self.tokens is not None or self.certificates

    def check(self, site: str | None, authorization: str, names: Iterable[str]) -> str | None:
        """Return the authenticated site; None if no authentication is required.

        Args:
            site: name in the request; None if it has none.
            authorization: header of the request.
            names: names in the caller's certificate.

        Raises:
            ProtocolError: 401 without proof, 403 for another site, 422 or 404 for an invalid or unknown name.
        """
        proven: set[str] | None = None
        if self.certificates:
            proven = set(names) & set(self.sites)
            if not proven:
                raise ProtocolError(403, "the certificate names no site of this run", code="certificate-of-no-site")
        if self.tokens is not None:
            owner = self._owner(authorization)
            if proven is not None and owner not in proven:
                raise ProtocolError(
                    403, "the token and the certificate are not the same site's", code="certificate-and-token-differ"
                )
            proven = {owner}
        if proven is not None:
            if site is not None and site not in proven:
                whose = "token" if self.tokens is not None else "certificate"
                raise ProtocolError(403, f"the {whose} is another site's", code="certificate-of-another-site")
            return site or min(proven)
        if site is not None and not NAME.fullmatch(site):
            raise ProtocolError(
                422, "a site's name has 1 to 63 of a-z, 0-9, '.', '_' and '-'", code="site-name-malformed"
            )
        if site is not None and site not in self.sites:
            raise ProtocolError(404, "no such site in this run", code="site-unknown")
        return site

    def _owner(self, authorization: str) -> str:
        assert self.tokens is not None
        kind, _, token = authorization.partition(" ")
        if kind.lower() != "bearer" or not token:
            raise ProtocolError(401, "no token; expected the header 'authorization: Bearer ...'", code="token-missing")
        given, tokens = hashed(token), dict(self.tokens)
        for name in self.sites:
            if secrets.compare_digest(tokens.get(name, ""), given):
                return name
        raise ProtocolError(
            401,
            "the token is not known here: ask the aggregator's host for the one in token_file",
            code="token-unknown",
        )


class Context(ssl.SSLContext):
    """TLS settings of one connection, and the error of its handshake."""

    failure: ssl.SSLError | None = None


class _Alerting(ssl.SSLObject):
    """Sends the TLS alert for a failed handshake; event loops would close the connection before."""

    def do_handshake(self) -> None:
        context = self.context
        assert isinstance(context, Context)
        if context.failure is not None:
            raise context.failure
        try:
            super().do_handshake()
        except (ssl.SSLWantReadError, ssl.SSLWantWriteError):
            raise
        except ssl.SSLError as error:
            context.failure = error
            raise ssl.SSLWantReadError from None  # flushes the alert; the next call raises


def server_context(certificate: Path, key: Path, client_ca: Path | None) -> Context:
    """Create the TLS context of one connection; `client_ca` requires client certificates.

    Raises:
        UserError: a file is unreadable, or key and certificate do not match.
    """
    context = Context(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    context.sslobject_class = _Alerting
    try:
        context.load_cert_chain(certificate, key, password=lambda: "")  # never asks at a terminal
    except OSError as error:
        raise UserError(
            f"--tls-cert {certificate}, --tls-key {key}: {_words(error)}",
            code="certificate-unusable",
            field="--tls-cert",
        ) from None
    if client_ca is not None:
        context.verify_mode = ssl.CERT_REQUIRED
        _load_authority(context, client_ca)
    return context


def check_authority(client_ca: Path) -> None:
    """Check that a file of an authority's certificate is usable.

    Raises:
        UserError: it is unreadable or invalid.
    """
    _load_authority(ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER), client_ca)


def _load_authority(context: ssl.SSLContext, client_ca: Path) -> None:
    try:
        context.load_verify_locations(client_ca)
    except OSError as error:
        raise UserError(
            f"--client-ca {client_ca}: {_words(error)}", code="certificate-unusable", field="--client-ca"
        ) from None


def _words(error: OSError) -> str:
    if isinstance(error, ssl.SSLError):
        if error.reason == "KEY_VALUES_MISMATCH":
            return "the key belongs to another certificate"
        return f"not a certificate and its key in PEM, without a passphrase ({error.reason})"
    return f"cannot be read: {error.strerror}"


def names_of(certificate: Mapping[str, Any] | None) -> tuple[str, ...]:
    """Return the names in a verified certificate: DNS and URI alternative names, else the common name."""
    if not certificate:
        return ()
    alternative = tuple(name for kind, name in certificate.get("subjectAltName", ()) if kind in ("DNS", "URI"))
    if alternative:
        return alternative
    return tuple(value for part in certificate.get("subject", ()) for key, value in part if key == "commonName")
