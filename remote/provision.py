"""Creates the certificates and tokens of a consortium, and a start kit for each member.

DIR/ca/           ca.pem and its key, which signs the certificates of new members; keep it secret
DIR/aggregator/   server.pem, server.key, ca.pem, tokens.json (hashes only), consortium.json, README.txt
DIR/sites/NAME/   SITE.json, policy.json, ca.pem, certificate.pem and its key, token, README.txt, empty data and result
DIR/owners/NAME/  OWNER.json, ca.pem, certificate.pem and its key, token, README.txt; also DIR/viewers/NAME/
"""

from __future__ import annotations

import ipaddress
import json
import secrets
import shutil
from datetime import UTC, datetime, timedelta
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from rankdad.common.errors import UserError
from rankdad.common.files import make_folder, write_json, write_whole
from rankdad.common.policy import FILE, Policy
from rankdad.remote.auth import hashed, read_tokens
from rankdad.remote.consortium import AGGREGATOR, CA_DAYS, Consortium

DATA, RESULT, PRIVACY = "data", "result", "privacy"  # folders of a site's kit
OWNER_FILE = "OWNER.json"
CONSORTIUM_FILE = "consortium.json"  # read by `rankdad serve`
EARLIER = timedelta(hours=1)  # certificates are valid from an hour ago, because clocks differ


class Kits:
    """The folders of one consortium.

    Args:
        consortium: who takes part.
        output: folder of all.
    """

    def __init__(self, consortium: Consortium, output: Path) -> None:
        self._consortium, self._output = consortium, output
        self._tokens = output / AGGREGATOR / "tokens.json"

    def make(self) -> list[Path]:
        """Make everything, and return the folders.

        Raises:
            UserError: the folder is there already, or cannot be made.
        """
        if self._output.exists() and any(self._output.iterdir()):
            raise UserError(
                f"{self._output}: is not empty; --add or --renew changes one site, or choose another --output",
                code="already-there",
                field="--output",
            )
        self._authority()
        self._tell_aggregator()
        return [self._aggregator(), *map(self._kit, self._consortium.members)]

    def change(self, add: str | None, renew: str | None) -> list[Path]:
        """Make the folder of one new site, or make a site's or the aggregator's anew.

        Raises:
            UserError: the name is not in the file, or its folder is there though it is new, or not though it is not.
        """
        name = add or renew
        if name is None or (add and renew):
            raise UserError("--add and --renew: give one of them", code="options-exclude", field="--add")
        if name not in (*self._consortium.members, AGGREGATOR) or name == add == AGGREGATOR:
            raise UserError(
                f"{name}: is not among the file's sites, owners and viewers; add it there first", code="name-unknown"
            )
        if not (self._output / "ca" / "ca.key").exists():
            raise UserError(
                f"{self._output}: holds no authority; run without --add and --renew first",
                code="authority-missing",
                field="--output",
            )
        folder = self._output / AGGREGATOR if name == AGGREGATOR else self._folder(name)
        if add and folder.exists():
            raise UserError(
                f"{folder}: is there already; --renew {name} makes it anew", code="already-there", field="--add"
            )
        if renew and not folder.exists():
            raise UserError(f"{folder}: is not there; --add {name} makes it", code="file-missing", field="--renew")
        self._tell_aggregator()
        return [self._aggregator() if name == AGGREGATOR else self._kit(name)]

    def _folder(self, name: str) -> Path:
        kinds = {"owners": self._consortium.owners, "viewers": self._consortium.viewers}
        return self._output / next((kind for kind, names in kinds.items() if name in names), "sites") / name

    def _kit(self, name: str) -> Path:
        return self._site(name) if name in self._consortium.sites else self._person(name)

    def _authority(self) -> None:
        key = ec.generate_private_key(ec.SECP256R1())
        name = _named(f"{self._consortium.name} authority")
        usage = x509.KeyUsage(False, False, False, False, False, True, True, False, False)
        builder = (
            _builder(name, name, key, CA_DAYS)
            .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
            .add_extension(usage, critical=True)
            .add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False)
        )
        folder = make_folder(self._output / "ca", private=True)
        _write(folder / "ca.key", _pem(key))
        _write(folder / "ca.pem", _signed(builder, key))

    def _issue(self, folder: Path, stem: str, name: str, alternative: list[x509.GeneralName], *, server: bool) -> None:
        """Write a certificate and its key."""
        authority = x509.load_pem_x509_certificate((self._output / "ca" / "ca.pem").read_bytes())
        signer = serialization.load_pem_private_key((self._output / "ca" / "ca.key").read_bytes(), None)
        assert isinstance(signer, ec.EllipticCurvePrivateKey)
        key = ec.generate_private_key(ec.SECP256R1())
        purpose = ExtendedKeyUsageOID.SERVER_AUTH if server else ExtendedKeyUsageOID.CLIENT_AUTH
        builder = (
            _builder(_named(name), authority.subject, key, self._consortium.days)
            .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
            .add_extension(x509.ExtendedKeyUsage([purpose]), critical=False)
            .add_extension(x509.SubjectAlternativeName(alternative), critical=False)
            .add_extension(x509.AuthorityKeyIdentifier.from_issuer_public_key(signer.public_key()), critical=False)
        )
        _write(folder / f"{stem}.key", _pem(key))
        _write(folder / f"{stem}.pem", _signed(builder, signer))

    def _tell_aggregator(self) -> None:
        folder = make_folder(self._output / AGGREGATOR, private=True)
        document = self._consortium.model_dump(mode="json", exclude_defaults=True)
        write_json(folder / CONSORTIUM_FILE, document, private=True)

    def _aggregator(self) -> Path:
        consortium, folder = self._consortium, make_folder(self._output / AGGREGATOR, private=True)
        host = consortium.address.hostname or ""
        names = [_general_name(name) for name in dict.fromkeys((host, *consortium.addresses))]
        self._issue(folder, "server", host[:64], names, server=True)
        shutil.copy(self._output / "ca" / "ca.pem", folder / "ca.pem")
        if not self._tokens.exists():
            write_json(self._tokens, {}, private=True)
        _write(folder / "README.txt", self._aggregator_words())
        return folder

    def _aggregator_words(self) -> str:
        port = self._consortium.address.port or 443
        mutual = " --client-ca ca.pem" if self._consortium.mutual_tls else ""
        options = (
            f"--output DIR --host 0.0.0.0 --port {port} --exposed \\\n"
            f"        --tls-cert server.pem --tls-key server.key{mutual} --tokens tokens.json\n\n"
        )
        return (
            f"The aggregator of {self._consortium.name}\n\nTo run one study, in this folder:\n\n"
            f"    rankdad aggregator RUN.json {options}"
            "To run a service for studies that owners submit:\n\n"
            f"    rankdad serve {CONSORTIUM_FILE} {options}"
            "Behind nginx on this machine (docker/nginx/rankdad.conf), use these options instead:\n\n"
            f"        --output DIR --socket PATH{mutual} --tokens tokens.json\n\n"
            "Behind another proxy that terminates TLS, at an address that only the proxy can reach, replace the last\n"
            "line by:\n\n"
            "        --host ADDRESS --allow-plain-http --exposed --tokens tokens.json\n\n"
            "Changes of tokens.json take effect at once: remove a line to exclude a member. Restart a service after a\n"
            f"change of {CONSORTIUM_FILE}, such as a new member.\n"
            "tokens.json holds only hashes. Keep server.key secret.\n"
        )

    def _site(self, name: str) -> Path:
        folder = make_folder(self._folder(name), private=True)
        config = self._proof(folder, name, {"data": DATA, "output": RESULT, "privacy": PRIVACY, "policy": FILE})
        for place in (DATA, RESULT, PRIVACY):  # mount points, for containers with a read-only kit
            make_folder(folder / place, private=True)
        for file, text in (("SITE.json", config), (FILE, Policy().text())):
            if not (folder / file).exists():  # a renewed site may have edited its files
                _write(folder / file, text)
        _write(folder / "README.txt", _site_words(name, self._consortium))
        return folder

    def _person(self, name: str) -> Path:
        folder = make_folder(self._folder(name), private=True)
        config = self._proof(folder, name, {})
        if not (folder / OWNER_FILE).exists():
            _write(folder / OWNER_FILE, config)
        _write(folder / "README.txt", _person_words(name, self._consortium))
        return folder

    def _proof(self, folder: Path, name: str, own: dict[str, object]) -> str:
        """Write a member's credentials, and return the text of its configuration file."""
        consortium = self._consortium
        config: dict[str, object] = {"name": name, "aggregator": consortium.aggregator, "token_file": "token"}
        config |= own | {"ca": "ca.pem"}
        if consortium.mutual_tls:
            self._issue(folder, "certificate", name, [x509.DNSName(name)], server=False)
            config |= {"certificate": "certificate.pem", "key": "certificate.key"}
        shutil.copy(self._output / "ca" / "ca.pem", folder / "ca.pem")
        token = secrets.token_hex(32)
        _write(folder / "token", f"{token}\n")
        write_json(self._tokens, read_tokens(self._tokens) | {name: hashed(token)}, private=True)
        return json.dumps(config, indent=2) + "\n"


def _person_words(name: str, consortium: Consortium) -> str:
    submits = (
        f"    rankdad ask RUN.json --to {OWNER_FILE}        # ask whether the sites would take part\n"
        f"    rankdad submit RUN.json --to {OWNER_FILE}     # later: logs RUN, cancel RUN, fetch RUN --output DIR\n"
        if name in consortium.owners
        else ""
    )
    certificate = (
        "Import ca.pem into the browser as a trusted authority, and the certificate as one file:\n\n"
        "    openssl pkcs12 -export -in certificate.pem -inkey certificate.key -out own.p12\n\n"
    )
    return (
        f"{name} in {consortium.name}\n\nIn this folder:\n\n{submits}"
        f"    rankdad runs --to {OWNER_FILE}\n\n"
        f"In a browser, open {consortium.aggregator.rstrip('/')}/runs/ and enter the contents of the file `token`.\n\n"
        f"{certificate if consortium.mutual_tls else ''}{_proofs(name, consortium)}\n"
    )


def _site_words(name: str, consortium: Consortium) -> str:
    valid = f" The certificate is\nvalid for {consortium.days} days." if consortium.mutual_tls else ""
    return (
        f"{name} in {consortium.name}\n\n"
        f"1. Put the data file into the folder data, or enter another folder in SITE.json, under `data`. The trained\n"
        f"   model will be in the folder under `output`. Relative paths start from SITE.json.\n"
        f"   The only connection to the outside is TCP to {consortium.aggregator}.\n"
        f'   If it needs a proxy, add "proxy": "http://proxy.example:3128" to SITE.json.\n'
        f"2. Read {FILE}: it limits what a study may learn. To propose a stricter one from your data:\n"
        f"       rankdad policy init data --output proposed.json\n"
        f"3. Check data, policy and connection:\n"
        f"       rankdad check SITE.json\n"
        f"4. Take part in one run:\n"
        f"       rankdad site SITE.json\n"
        f"   Take part in each run of a service that the policy allows:\n"
        f"       rankdad site SITE.json --stay\n"
        f'   With "approval": "manual" in SITE.json, each run first waits for:\n'
        f"       rankdad approve RUN SITE.json\n"
        f"5. Report to the data protection officer what has left the hospital:\n"
        f"       rankdad disclosures SITE.json --report FILE.html\n"
        f"   Withdraw a patient:\n"
        f"       rankdad purge SITE.json PATIENT\n"
        f"   Back up the folder {PRIVACY} after every run, and restore it on another machine:\n"
        f"       rankdad privacy export SITE.json FILE\n"
        f"       rankdad privacy import SITE.json FILE\n\n"
        f"{_proofs(name, consortium)}{valid}\n"
    )


def _proofs(name: str, consortium: Consortium) -> str:
    if consortium.mutual_tls:
        return f"`token` and `certificate.key` prove that you are {name}: keep them secret."
    return f"`token` proves that you are {name}: keep it secret."


def _named(name: str) -> x509.Name:
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])


def _general_name(name: str) -> x509.GeneralName:
    try:
        return x509.IPAddress(ipaddress.ip_address(name))
    except ValueError:
        return x509.DNSName(name)


def _builder(
    subject: x509.Name, issuer: x509.Name, key: ec.EllipticCurvePrivateKey, days: int
) -> x509.CertificateBuilder:
    now = datetime.now(UTC)
    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - EARLIER)
        .not_valid_after(now + timedelta(days=days))
    )


def _pem(key: ec.EllipticCurvePrivateKey) -> str:
    format_, open_ = serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    return key.private_bytes(serialization.Encoding.PEM, format_, open_).decode()


def _signed(builder: x509.CertificateBuilder, signer: ec.EllipticCurvePrivateKey) -> str:
    return builder.sign(signer, hashes.SHA256()).public_bytes(serialization.Encoding.PEM).decode()


def _write(path: Path, text: str) -> None:
    write_whole(path, text, private=True)
