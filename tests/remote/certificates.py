"""Certificates for tests: of any authority, for any name, valid at any time."""

from __future__ import annotations

import ipaddress
from datetime import UTC, datetime, timedelta
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID


class Authority:
    """Makes certificates in a folder."""

    def __init__(self, folder: Path, name: str = "authority") -> None:
        folder.mkdir(exist_ok=True)
        self.folder, self.name = folder, name
        self.key = ec.generate_private_key(ec.SECP256R1())
        self.pem, _ = self.issue(name, [], authority=True)

    def issue(
        self, name: str, alternative: list[str], *, days: tuple[int, int] = (-1, 1), authority: bool = False
    ) -> tuple[Path, Path]:
        """Return the files of a certificate and its key; `alternative` are addresses, DNS names and URIs."""
        key = self.key if authority else ec.generate_private_key(ec.SECP256R1())
        now, subject = datetime.now(UTC), x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])
        builder = (
            x509.CertificateBuilder()
            .subject_name(subject)
            .issuer_name(x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, self.name)]))
            .public_key(key.public_key())
            .serial_number(x509.random_serial_number())
            .not_valid_before(now + timedelta(days=days[0]))
            .not_valid_after(now + timedelta(days=days[1]))
            .add_extension(x509.BasicConstraints(authority, None), critical=True)
        )
        if alternative:
            builder = builder.add_extension(x509.SubjectAlternativeName([*map(_general, alternative)]), critical=False)
        certificate, private = self.folder / f"{name}.pem", self.folder / f"{name}.key"
        certificate.write_bytes(builder.sign(self.key, hashes.SHA256()).public_bytes(serialization.Encoding.PEM))
        plain = serialization.NoEncryption()
        private.write_bytes(key.private_bytes(serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, plain))
        return certificate, private


def _general(name: str) -> x509.GeneralName:
    if "://" in name:
        return x509.UniformResourceIdentifier(name)
    try:
        return x509.IPAddress(ipaddress.ip_address(name))
    except ValueError:
        return x509.DNSName(name)
