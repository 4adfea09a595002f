"""Connects a site to the aggregator: TLS, certificates and proxy, with explanations of TLS errors."""

from __future__ import annotations

import ssl
from collections.abc import Callable
from pathlib import Path
from urllib.parse import urlsplit

from rankdad.common.errors import SpecError, UserError
from rankdad.local.config import ENGINES, Member
from rankdad.local.drivers.bounded import BoundedTransport
from rankdad.local.drivers.http_library import httpx

CERTIFICATE_EXPIRED, NOT_YET_VALID, OTHER_NAME, OTHER_ADDRESS = 10, 9, 62, 64  # OpenSSL's X509_V_ERR_…
ALERTS = {  # of the aggregator about this site's certificate
    "CERTIFICATE_EXPIRED": "it has expired",
    "CERTIFICATE_REVOKED": "it was revoked",
    "UNKNOWN_CA": "it was signed by another authority than the aggregator's",
    "BAD_CERTIFICATE": "it is broken",
    "CERTIFICATE_UNKNOWN": "it is not accepted",
    "UNSUPPORTED_CERTIFICATE": "it is not a client's",
}


def open_transport(config: Member, look: Callable[[], None] = lambda: None) -> BoundedTransport:
    """Create a transport to the aggregator, without opening a connection.

    Args:
        config: of the site or owner.
        look: see `BoundedTransport`.

    Raises:
        UserError: an address, a certificate or a key cannot be used.
    """
    if config.aggregator in ENGINES:
        text = f"{config.aggregator} starts this site itself: submit a job there, or name an address"
        raise SpecError("aggregator", text, code="engine-starts")
    for field, example in (("aggregator", "http://10.0.0.1:8765"), ("proxy", "http://proxy.example:3128")):
        address = getattr(config, field) or example
        try:
            urlsplit(address).port, httpx.URL(address)  # httpx takes any number for a port
        except (ValueError, httpx.InvalidURL):
            shown = "the value" if field == "proxy" else address  # a proxy's may hold a password
            raise SpecError(
                field, f"{shown} is not an address, expected such as {example}", code="address-malformed"
            ) from None
    context = _context(config) if config.aggregator.startswith("https:") else None
    return BoundedTransport(context, httpx.Proxy(config.proxy) if config.proxy else None, look=look)


def _context(config: Member) -> ssl.SSLContext:
    try:
        context = ssl.create_default_context(cafile=config.ca)
    except OSError as error:
        raise UserError(f"ca: {config.ca} {_unusable(error)}", code="certificate-unusable", field="ca") from None
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    if config.certificate and config.key:
        try:
            context.load_cert_chain(config.certificate, config.key, password=lambda: "")  # no prompt
        except OSError as error:
            pair = f"{config.certificate} with {Path(config.key).name}"
            raise UserError(
                f"certificate: {pair} {_unusable(error)}", code="certificate-unusable", field="certificate"
            ) from None
    return context


def _unusable(error: OSError) -> str:
    if isinstance(error, ssl.SSLError):
        if error.reason == "KEY_VALUES_MISMATCH":
            return "cannot be used: the key belongs to another certificate; name both of one kit"
        return f"is not valid PEM without a passphrase ({error.reason or 'no certificate in it'})"
    return f"cannot be read: {error.strerror}"


def said_by_tls(error: BaseException, config: Member) -> str | None:
    """Explain why TLS refuses the connection; None if a retry may help."""
    if isinstance(error, ssl.SSLCertVerificationError):
        if error.verify_code == CERTIFICATE_EXPIRED:
            return "the aggregator's certificate has expired; it needs a new one, or this machine's clock is wrong"
        if error.verify_code == NOT_YET_VALID:
            return "the aggregator's certificate is not valid yet: is this machine's clock right?"
        if error.verify_code in (OTHER_NAME, OTHER_ADDRESS):
            return f"the aggregator's certificate is for another name: {error.verify_message}"
        where = f"the authority in {config.ca}" if config.ca else "an authority that this system trusts"
        return (
            f"the aggregator's certificate was not signed by {where} ({error.verify_message}); "
            "name the right ca, or if a proxy or firewall on the way opens TLS, ask for an exception for this address"
        )
    reason = (error.reason or "") if isinstance(error, ssl.SSLError) else ""
    if reason.endswith(("ALERT_PROTOCOL_VERSION", "UNSUPPORTED_PROTOCOL")):
        return "the server does not speak TLS 1.2 or newer"
    if "ALERT" in reason:
        if not config.certificate:
            where = "name certificate and key in SITE.json or OWNER.json"
            return f"the aggregator asks for a certificate ({reason}): {where}"
        for alert, meaning in ALERTS.items():
            if reason.endswith(alert):
                return f"the aggregator refuses this site's certificate {config.certificate}: {meaning}"
    if reason in ("WRONG_VERSION_NUMBER", "HTTP_REQUEST", "RECORD_LAYER_FAILURE"):
        return "the server does not speak TLS: does its address begin with http://?"
    return None
