"""Who is let in: tokens, certificates, both, and the sentences in which either side refuses the other."""

from __future__ import annotations

import json
import ssl
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from unittest import TestCase

import pytest

from rankdad.common.errors import ProtocolError, RankdadError, UserError
from rankdad.local.config import SiteConfig
from rankdad.local.drivers.http import AggregatorClient
from rankdad.remote.auth import Context, Identity, hashed, names_of, server_context
from rankdad.remote.config import Access
from rankdad.remote.connections import Timeouts
from tests.conftest import SITES
from tests.remote.certificates import Authority
from tests.remote.serving import Served, serving

TOKENS = {site: f"{index}" * 64 for index, site in enumerate(SITES)}
HASHED = {site: hashed(token) for site, token in TOKENS.items()}


@pytest.mark.parametrize(
    ("identity", "site", "authorization", "names", "outcome"),
    [
        (Identity(SITES), "alpha", "", (), "alpha"),
        (Identity(SITES), None, "", (), None),
        (Identity(SITES), "delta", "", (), 404),
        (Identity(SITES), "../x", "", (), 422),
        (Identity(SITES, HASHED), "alpha", f"Bearer {TOKENS['alpha']}", (), "alpha"),
        (Identity(SITES, HASHED), None, f"bearer {TOKENS['beta']}", (), "beta"),
        (Identity(SITES, HASHED), "alpha", f"Bearer {TOKENS['beta']}", (), 403),
        (Identity(SITES, HASHED), "../x", f"Bearer {TOKENS['beta']}", (), 403),
        (Identity(SITES, HASHED), "alpha", f"Bearer {TOKENS['alpha']}x", (), 401),
        (Identity(SITES, HASHED), "alpha", f"Basic {TOKENS['alpha']}", (), 401),
        (Identity(SITES, HASHED), "alpha", HASHED["alpha"], (), 401),
        (Identity(SITES, HASHED), "../x", "", (), 401),
        (Identity(SITES, HASHED), None, "", (), 401),
        (Identity(SITES, HASHED | {"delta": hashed("d" * 64)}), None, f"Bearer {'d' * 64}", (), 401),
        (Identity(SITES, certificates=True), "alpha", "", ("alpha",), "alpha"),
        (Identity(SITES, certificates=True), None, "", ("x", "beta"), "beta"),
        (Identity(SITES, certificates=True), "alpha", "", ("beta",), 403),
        (Identity(SITES, certificates=True), "alpha", "", (), 403),
        (Identity(SITES, certificates=True), None, "", ("delta",), 403),
        (Identity(SITES, HASHED, True), "alpha", f"Bearer {TOKENS['alpha']}", ("alpha",), "alpha"),
        (Identity(SITES, HASHED, True), "alpha", f"Bearer {TOKENS['alpha']}", ("beta",), 403),
        (Identity(SITES, HASHED, True), "alpha", "", ("alpha",), 401),
    ],
)
def test_who_is_let_in(
    identity: Identity, site: str | None, authorization: str, names: tuple[str, ...], outcome: str | int | None
) -> None:
    try:
        found: str | int | None = identity.check(site, authorization, names)
    except ProtocolError as error:
        found = error.status
    assert found == outcome


def test_a_certificate_names_its_site_by_alternative_name_or_else_by_common_name() -> None:
    subject = ((("commonName", "alpha"),),)
    assert names_of({"subject": subject}) == ("alpha",)
    both = {"subject": subject, "subjectAltName": (("DNS", "beta"), ("URI", "gamma"), ("email", "alpha"))}
    assert names_of(both) == ("beta", "gamma")
    assert names_of(None) == names_of({}) == ()


@pytest.fixture
def guarded(tmp_path: Path) -> Iterator[Served]:
    with serving(tmp_path / "run", Identity(SITES, HASHED)) as running:
        yield running


def config_of(port: int, scheme: str = "http", **changes: Any) -> SiteConfig:
    fields = {"name": "alpha", "aggregator": f"{scheme}://127.0.0.1:{port}", "data": "data", "output": "out"}
    return SiteConfig.model_validate(fields | {"patience": 1.0} | changes)


def refusal(config: SiteConfig) -> str:
    """What a site says that cannot take part, without a second try."""
    silent, fails = TestCase().assertNoLogs("rankdad.local"), pytest.raises(RankdadError)
    with silent, fails as error, AggregatorClient(config) as client:
        client.run()
    return str(error.value)


def test_nothing_is_learnt_without_the_right_token(guarded: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("RANKDAD_TOKEN", raising=False)
    assert "refused (401): no token; expected" in refusal(config_of(guarded.port))
    monkeypatch.setenv("RANKDAD_TOKEN", "w" * 64)
    assert "refused (401): the token is not known here" in refusal(config_of(guarded.port))
    monkeypatch.setenv("RANKDAD_TOKEN", TOKENS["beta"])
    with AggregatorClient(config_of(guarded.port)) as client:
        client.run()
        with pytest.raises(RankdadError) as error:
            client.recorded(0)
    assert "refused (403): the token is another site's" in str(error.value)
    monkeypatch.setenv("RANKDAD_TOKEN", TOKENS["alpha"])
    with AggregatorClient(config_of(guarded.port)) as client:
        assert client.run()["id"] == guarded.aggregator.run_id
        assert client.recorded(0) is None
    lines = [(line["what"], line.get("site"), line.get("status"), line["address"]) for line in guarded.audited()]
    assert lines == [
        ("refused", None, 401, "127.0.0.1"),
        ("refused", None, 401, "127.0.0.1"),
        ("identified", "beta", None, "127.0.0.1"),
        ("refused", "alpha", 403, "127.0.0.1"),
        ("identified", "alpha", None, "127.0.0.1"),
    ]
    log = (guarded.directory / "audit.jsonl").read_text()
    assert not any(token in log for token in (*TOKENS.values(), "w" * 64))


@pytest.mark.slow
def test_a_refused_body_is_answered_before_it_is_all_there(guarded: Served) -> None:
    with guarded.connect() as caller:
        caller.sendall(b"POST /rounds/alpha HTTP/1.1\r\nhost: localhost\r\ncontent-length: 9000\r\n\r\nbeginning")
        answer = caller.recv(4096)
        assert answer.startswith(b"HTTP/1.1 401")
        assert b"connection: close" in answer


@pytest.fixture(params=["TLSv1_2", "TLSv1_3"])
def mutual(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[tuple[Served, Authority]]:
    authority = Authority(tmp_path / "ca")
    pair = authority.issue("aggregator", ["127.0.0.1"])

    def secure() -> Context:
        context = server_context(*pair, authority.pem)
        context.maximum_version = ssl.TLSVersion[request.param]
        return context

    with serving(
        tmp_path / "run", Identity(SITES, certificates=True), secure, timeouts=Timeouts(handshake=1)
    ) as running:
        yield running, authority


def shown(served: Served, authority: Authority, pair: tuple[Path, Path] | None) -> SiteConfig:
    own = {} if pair is None else {"certificate": str(pair[0]), "key": str(pair[1])}
    return config_of(served.port, "https", ca=str(authority.pem), **own)


@pytest.mark.slow
def test_mutual_tls_lets_in_whom_the_certificate_names(mutual: tuple[Served, Authority], tmp_path: Path) -> None:
    served, authority = mutual
    for name, names in (("alpha", ["alpha"]), ("alpha", []), ("anything", ["rankdad://x", "alpha"])):
        with AggregatorClient(shown(served, authority, authority.issue(name, names))) as client:
            assert client.run()["id"] == served.aggregator.run_id
            assert client.recorded(0) is None
    with (
        pytest.raises(RankdadError, match=r"refused \(403\): the certificate is another site's"),
        AggregatorClient(shown(served, authority, authority.issue("beta", ["beta"]))) as client,
    ):
        client.recorded(0)
    assert "refused (403): the certificate names no site" in refusal(
        shown(served, authority, authority.issue("server", ["127.0.0.1"]))
    )
    expired = authority.issue("alpha", ["alpha"], days=(-9, -5))
    said = refusal(shown(served, authority, expired))
    assert said.endswith(f"refuses this site's certificate {expired[0]}: it has expired")
    foreign = Authority(tmp_path / "other", "other").issue("alpha", ["alpha"])
    assert "it was signed by another authority than the aggregator's" in refusal(shown(served, authority, foreign))
    assert "asks for a certificate" in refusal(shown(served, authority, None))
    served.until(lambda: len(served.audited()) >= 7)
    tls = [line["reason"] for line in served.audited() if line["what"] == "refused" and line["status"] == 0]
    assert tls[0] == "TLS: certificate has expired"
    assert len(tls) == 3
    assert {line["address"] for line in served.audited()} == {"127.0.0.1"}


@pytest.mark.slow
def test_a_handshake_does_not_take_for_ever(mutual: tuple[Served, Authority]) -> None:
    served, _ = mutual
    with served.connect() as silent, served.connect() as babbling:
        babbling.sendall(b"GET /run HTTP/1.1\r\n\r\n")
        babbling.recv(4096)
        assert silent.recv(4096) == b""
    served.until(lambda: len(served.audited()) == 2)
    assert {(line["what"], line["address"], line["reason"][:5]) for line in served.audited()} == {
        ("refused", "127.0.0.1", "TLS: ")
    }


@pytest.mark.slow
@pytest.mark.parametrize(
    ("names", "days", "foreign", "said"),
    [
        (["127.0.0.1"], (-9, -5), False, "the aggregator's certificate has expired"),
        (["127.0.0.1"], (5, 9), False, "the aggregator's certificate is not valid yet"),
        (["127.0.0.2"], (-1, 1), False, "the aggregator's certificate is for another name: IP address mismatch"),
        (["elsewhere.example"], (-1, 1), False, "the aggregator's certificate is for another name"),
        (["127.0.0.1"], (-1, 1), True, "the aggregator's certificate was not signed by the authority in"),
    ],
)
def test_a_site_says_why_it_does_not_trust_an_aggregator(
    tmp_path: Path, names: list[str], days: tuple[int, int], foreign: bool, said: str
) -> None:
    authority = Authority(tmp_path / "ca")
    maker = Authority(tmp_path / "other", "other") if foreign else authority
    certificate, key = maker.issue("server", names, days=days)
    with serving(tmp_path / "run", secure=lambda: server_context(certificate, key, None)) as served:
        assert said in refusal(config_of(served.port, "https", ca=str(authority.pem)))


def test_tls_where_there_is_none_is_said(guarded: Served) -> None:
    assert "does not speak TLS" in refusal(config_of(guarded.port, "https"))


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"host": "0.0.0.0"}, "without encryption; give --tls-cert and --tls-key"),
        ({"host": "10.0.0.1", "allow_plain_http": True}, "anyone who reaches it could take part; give --tokens"),
        ({"host": "::", "allow_anyone": True}, "without encryption"),
        ({"tls_cert": Path("a")}, "give both or none"),
        ({"client_ca": Path("a")}, "only through TLS"),
        ({"tls_cert": Path("nowhere"), "tls_key": Path("nowhere")}, "cannot be read: No such file"),
        ({"tokens": Path("nowhere")}, "nowhere: cannot be read"),
        ({"host": "0.0.0.0", "allow_plain_http": True, "allow_anyone": True}, "or accept that with --exposed"),
        ({"host": "0.0.0.0", "allow_plain_http": True, "allow_anyone": True, "exposed": True}, None),
        ({"behind": Path("socket"), "allow_anyone": True}, None),
        ({"host": "127.0.0.9"}, None),
        ({"host": "::1"}, None),
        ({"host": "localhost"}, None),
    ],
)
def test_an_aggregator_that_would_be_open_to_all_is_refused(options: dict[str, Any], said: str | None) -> None:
    if said is None:
        Access(**options).check(SITES)
        return
    with pytest.raises(UserError) as error:
        Access(**options).check(SITES)
    assert said in str(error.value)


@pytest.mark.parametrize(
    ("document", "said"),
    [
        ({"alpha": HASHED["alpha"]}, "has no token of beta, gamma"),
        ({"alpha": TOKENS["alpha"]}, "alpha: got"),
        ([], "the whole file"),
    ],
)
def test_a_file_of_tokens_must_hold_hashes_of_all_sites(tmp_path: Path, document: Any, said: str) -> None:
    path = tmp_path / "tokens.json"
    path.write_text(json.dumps(document))
    with pytest.raises(UserError) as error:
        Access(tokens=path).check(SITES)
    assert said in str(error.value)
