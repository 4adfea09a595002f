"""What is believed of a proxy: on the Unix socket alone, and of certificates only the consortium's."""

from __future__ import annotations

import socket
import ssl
import stat
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.x509.oid import ExtendedKeyUsageOID
from hypothesis import given
from hypothesis import strategies as st

from rankdad.common.errors import ProtocolError, UserError
from rankdad.remote.auth import Identity, hashed, names_of, server_context
from rankdad.remote.config import Access
from rankdad.remote.proxies import ADDRESS, CERTIFICATE, Proxy
from rankdad.remote.server import listen_behind, opened
from tests.conftest import SITES
from tests.remote.certificates import Authority
from tests.remote.serving import Served, serving
from tests.remote.test_web import all_of

TOKENS = {site: site[0] * 64 for site in SITES}
REFUSED = (403, "certificate-refused", "x-client-certificate")


def escaped(path: Path) -> bytes:
    """A certificate as nginx's $ssl_client_escaped_cert writes it."""
    return quote(path.read_bytes(), safe="").encode()


@pytest.fixture(scope="module")
def authority(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    return Authority(tmp_path_factory.mktemp("ca"))


@pytest.fixture
def served(tmp_path: Path, authority: Authority) -> Iterator[Served]:
    identity = Identity(SITES, {site: hashed(token) for site, token in TOKENS.items()}, certificates=True)
    with serving(tmp_path / "run", identity, proxy=Proxy(authority.pem)) as running:
        yield running


def answer(served: Served, headers: dict[str, str], path: str = "/run") -> tuple[int, bytes]:
    lines = "".join(f"{name}: {value}\r\n" for name, value in headers.items())
    with served.connect() as caller:
        caller.sendall(f"GET {path} HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n{lines}\r\n".encode())
        found = all_of(caller)
    return int(found.split()[1]), found.partition(b"\r\n\r\n")[2]


def names_by_tls(authority: Authority, certificate: Path, key: Path) -> tuple[str, ...]:
    """The names that a connection with this certificate has."""
    own, own_key = authority.issue("server", ["127.0.0.1"])
    server = server_context(own, own_key, authority.pem)
    client = ssl.create_default_context(cafile=str(authority.pem))
    client.load_cert_chain(certificate, key)
    here, there = socket.socketpair()
    calling = client.wrap_socket(there, server_hostname="127.0.0.1", do_handshake_on_connect=False)
    with here, calling, ThreadPoolExecutor(1) as pool:
        shaken = pool.submit(calling.do_handshake)
        with server.wrap_socket(here, server_side=True) as secured:
            shaken.result(5)
            return names_of(secured.getpeercert())


@pytest.mark.parametrize("names", [["alpha"], ["alpha", "beta"], ["spiffe://x/alpha"], ["10.0.0.1"], []])
def test_a_certificate_has_the_names_that_it_has_on_a_connection(authority: Authority, names: list[str]) -> None:
    certificate, key = authority.issue("alpha", names)
    found = Proxy(authority.pem).names([(CERTIFICATE, escaped(certificate))])
    assert found == names_by_tls(authority, certificate, key)
    assert found


def purposed(authority: Authority, purpose: x509.ObjectIdentifier) -> bytes:
    """A certificate for one purpose alone."""
    plain = x509.load_pem_x509_certificate(authority.issue("alpha", ["alpha"])[0].read_bytes())
    now = datetime.now(UTC)
    made = (
        x509.CertificateBuilder(plain.issuer, plain.subject, plain.public_key(), 1, now, now + timedelta(1))
        .add_extension(x509.ExtendedKeyUsage([purpose]), critical=False)
        .sign(authority.key, hashes.SHA256())
    )
    return quote(made.public_bytes(serialization.Encoding.PEM), safe="").encode()


def outcome(proxy: Proxy, *certificates: bytes) -> tuple[str | int, ...]:
    """The names, or with what they are refused."""
    try:
        return proxy.names([(CERTIFICATE, one) for one in certificates])
    except ProtocolError as error:
        return error.status, error.code, error.field


def test_a_certificate_that_is_not_the_consortiums_or_not_valid_is_refused(tmp_path: Path) -> None:
    authority = Authority(tmp_path / "ca")
    proxy = Proxy(authority.pem)
    good = escaped(authority.issue("alpha", ["alpha"])[0])
    assert outcome(proxy, good) == ("alpha",)
    assert outcome(proxy, escaped(Authority(tmp_path / "other", "authority").issue("alpha", ["alpha"])[0])) == REFUSED
    assert outcome(proxy, escaped(authority.issue("late", ["alpha"], days=(-2, -1))[0])) == REFUSED
    assert outcome(proxy, escaped(authority.issue("early", ["alpha"], days=(1, 2))[0])) == REFUSED
    assert outcome(proxy, purposed(authority, ExtendedKeyUsageOID.SERVER_AUTH)) == REFUSED
    assert outcome(proxy, purposed(authority, ExtendedKeyUsageOID.CLIENT_AUTH)) == ("alpha",)
    assert outcome(proxy, good, good) == REFUSED, "one, not several"
    assert outcome(proxy, b"") == REFUSED
    assert outcome(Proxy(tmp_path / "nowhere"), good) == REFUSED
    assert outcome(Proxy(), good) == (), "nobody asks for certificates"


@given(st.binary(max_size=300), st.integers(0, 900))
def test_hostile_bytes_for_a_certificate_are_refused_and_a_changed_one_is_nobody_elses(
    authority: Authority, noise: bytes, place: int
) -> None:
    good = authority.issue("alpha", ["alpha"])[0].read_bytes()
    for given_ in (noise, good[:place] + noise, good[:place] + noise + good[place + len(noise) :]):
        assert outcome(Proxy(authority.pem), quote(given_, safe="").encode()) in (REFUSED, ("alpha",))


@pytest.mark.parametrize(
    ("values", "address"),
    [([b"10.1.2.3"], "10.1.2.3"), ([b"::1"], "::1"), ([b"x"], ""), ([], ""), ([b"10.1.2.3"] * 2, ""), ([b"\xff"], "")],
)
def test_an_address_is_one_or_none(values: list[bytes], address: str) -> None:
    assert Proxy().address([(ADDRESS, value) for value in values]) == address


def test_token_and_certificate_have_to_be_the_same_sites(served: Served, authority: Authority) -> None:
    alpha, beta = (escaped(authority.issue(site, [site])[0]).decode() for site in ("alpha", "beta"))
    own = {"authorization": f"Bearer {TOKENS['alpha']}", "x-real-ip": "10.9.8.7"}
    assert answer(served, own | {"x-client-certificate": alpha})[0] == 200
    assert served.audited()[-1]["what"] == "identified"
    assert (served.audited()[-1]["address"], served.audited()[-1]["site"]) == ("10.9.8.7", "alpha")
    for headers, code in (
        (own | {"x-client-certificate": beta}, "certificate-and-token-differ"),
        (own, "certificate-of-no-site"),
        (own | {"x-client-certificate": "x"}, "certificate-refused"),
    ):
        status, body = answer(served, headers)
        assert (status, f'"code":"{code}"' in body.decode().replace(" ", "")) == (403, True), body
        assert (served.audited()[-1]["status"], served.audited()[-1]["address"]) == (403, "10.9.8.7")


def test_on_a_network_nobody_is_believed(tmp_path: Path, authority: Authority) -> None:
    certificate = escaped(authority.issue("alpha", ["alpha"])[0]).decode()
    identity = Identity(SITES, certificates=True)
    with serving(tmp_path / "run", identity) as served:
        status, body = answer(served, {"x-client-certificate": certificate, "x-real-ip": "10.9.8.7"})
        assert (status, b"certificate-of-no-site" in body) == (403, True)
        assert served.audited()[-1]["address"] == "127.0.0.1"


def test_a_socket_is_for_its_user_and_group_and_one_that_a_killed_process_has_left_is_replaced(tmp_path: Path) -> None:
    path = tmp_path / "socket"
    with opened(Access(behind=path), 1) as (_, address):
        assert address == f"unix:{path}"
        assert stat.S_IMODE(path.stat().st_mode) == 0o660
        with pytest.raises(UserError) as error:
            listen_behind(path)
        assert (error.value.code, error.value.field) == ("cannot-listen", "--socket")
    assert not path.exists()
    listen_behind(path).close()
    assert path.is_socket(), "left"
    listen_behind(path).close()
    path.unlink()
    path.write_text("mine")
    for wrong in (path, tmp_path / "nowhere" / "socket", tmp_path / ("x" * 200)):
        with pytest.raises(UserError) as error:
            listen_behind(wrong)
        assert error.value.code == "cannot-listen"
    assert path.read_text() == "mine"


def test_what_a_proxy_does_is_refused_and_who_takes_part_is_asked_for(tmp_path: Path) -> None:
    authority, behind = Authority(tmp_path / "ca"), tmp_path / "socket"
    certificate, key = authority.issue("server", [])
    Access(behind=behind, client_ca=authority.pem).check(SITES)
    Access(behind=behind, allow_anyone=True).check(SITES)
    refused: tuple[tuple[dict[str, Any], str, str], ...] = (
        ({"tls_cert": certificate, "tls_key": key}, "options-exclude", "--tls-cert"),
        ({}, "anyone-could-take-part", "--socket"),
        ({"client_ca": key}, "certificate-unusable", "--client-ca"),
    )
    for options, code, field in refused:
        with pytest.raises(UserError) as error:
            Access(behind=behind, **options).check(SITES)
        assert (error.value.code, error.value.field) == (code, field)
