"""A reverse proxy's headers about its callers, trusted only on a Unix socket, which only the proxy can open.

The proxy verifies that a caller owns its certificate. The issuer is verified here again, in case the proxy accepts any.
"""

from __future__ import annotations

import ipaddress
from collections.abc import Iterable
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import lru_cache
from pathlib import Path
from urllib.parse import unquote_to_bytes

from cryptography import x509
from cryptography.exceptions import InvalidSignature
from cryptography.x509 import DuplicateExtension, InvalidVersion, UnsupportedGeneralNameType
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from rankdad.common.errors import ProtocolError

CERTIFICATE = b"x-client-certificate"  # nginx's $ssl_client_escaped_cert: PEM, with its special characters as %XX
ADDRESS = b"x-real-ip"  # its $remote_addr
Headers = Iterable[tuple[bytes, bytes]]  # names in lower case
MALFORMED = (ValueError, InvalidVersion, DuplicateExtension, UnsupportedGeneralNameType)


@dataclass(frozen=True)
class Proxy:
    """The proxy in front of a Unix socket.

    Args:
        client_ca: authority of the callers' certificates; None requires none.
    """

    client_ca: Path | None = None

    def address(self, headers: Headers) -> str:
        """Return a caller's address; "" without a valid header."""
        try:
            (value,) = _of(headers, ADDRESS)
            return str(ipaddress.ip_address(value.decode("ascii")))
        except ValueError:
            return ""

    def names(self, headers: Headers) -> tuple[str, ...]:
        """Return the names in a caller's certificate; none without one, or if none is required.

        Raises:
            ProtocolError: 403 for an invalid certificate, another issuer, or an expired one.
        """
        given = _of(headers, CERTIFICATE)
        if self.client_ca is None or not given:
            return ()
        try:
            (escaped,) = given
            names, begins, ends = _checked(escaped, self.client_ca.read_bytes())
        except (*MALFORMED, OSError) as error:
            raise _refused("is not a single certificate of this authority for a member") from error
        if not begins <= datetime.now(UTC) <= ends:
            raise _refused(f"is valid from {begins:%Y-%m-%d} to {ends:%Y-%m-%d}")
        return names


def _of(headers: Headers, wanted: bytes) -> list[bytes]:
    return [value for name, value in headers if name == wanted]


def _refused(what: str) -> ProtocolError:
    return ProtocolError(403, f"the certificate {what}", code="certificate-refused", field=CERTIFICATE.decode())


@lru_cache(1024)
def _checked(escaped: bytes, authority: bytes) -> tuple[tuple[str, ...], datetime, datetime]:
    """Verify a certificate and return its names and period of validity.

    Raises:
        ValueError: it is invalid, of another authority, or for other purposes.
    """
    certificate = x509.load_pem_x509_certificate(unquote_to_bytes(escaped))
    for maker in x509.load_pem_x509_certificates(authority):
        try:
            certificate.verify_directly_issued_by(maker)
            break
        except (ValueError, TypeError, InvalidSignature):
            continue
    else:
        raise ValueError("of another authority")
    try:
        purposes = certificate.extensions.get_extension_for_class(x509.ExtendedKeyUsage).value
        if not {ExtendedKeyUsageOID.CLIENT_AUTH, ExtendedKeyUsageOID.ANY_EXTENDED_KEY_USAGE} & set(purposes):
            raise ValueError("for other purposes")
    except x509.ExtensionNotFound:
        pass
    return _names_in(certificate), certificate.not_valid_before_utc, certificate.not_valid_after_utc


def _names_in(certificate: x509.Certificate) -> tuple[str, ...]:
    """Return the names in a certificate, as `auth.names_of` does for a connection's."""
    try:
        found = certificate.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    except x509.ExtensionNotFound:
        alternative: tuple[str, ...] = ()
    else:
        kinds = (x509.DNSName, x509.UniformResourceIdentifier)
        alternative = tuple(name.value for name in found if isinstance(name, kinds))
    common = certificate.subject.get_attributes_for_oid(NameOID.COMMON_NAME)
    return alternative or tuple(str(one.value) for one in common)
