"""Start kits: what is in them, who may read it, and that a site's is the one that the aggregator knows."""

from __future__ import annotations

import json
import stat
from pathlib import Path
from tempfile import mkdtemp
from typing import Any

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import ec
from typer.testing import CliRunner

from rankdad.__main__ import app
from rankdad.common.documents import load_json, validate
from rankdad.common.errors import UserError
from rankdad.common.policy import Policy
from rankdad.local.config import SiteConfig
from rankdad.local.drivers.http import AggregatorClient
from rankdad.remote.auth import hashed
from rankdad.remote.config import Access
from rankdad.remote.consortium import Consortium
from rankdad.remote.provision import Kits
from tests.conftest import SITES
from tests.remote.serving import serving


def consortium(**changes: Any) -> Consortium:
    document = {"name": "study", "aggregator": "https://127.0.0.1:8765", "sites": list(SITES)}
    return validate(Consortium, document | changes, file="consortium.json")


@pytest.fixture
def made(tmp_path: Path) -> Path:
    Kits(consortium(), tmp_path / "kits").make()
    return tmp_path / "kits"


def access(made: Path) -> Access:
    own = made / "aggregator"
    return Access("0.0.0.0", own / "server.pem", own / "server.key", own / "ca.pem", own / "tokens.json", exposed=True)


def meet(made: Path, site: str, config: SiteConfig | None = None) -> None:
    """Let a site ask for the run, with what is in its kit."""
    settings = access(made)
    settings.check(SITES)
    config = config or SiteConfig.read(made / "sites" / site / "SITE.json")
    with serving(Path(mkdtemp(dir=made.parent)) / "run", settings.identity(SITES), settings.secure) as served:
        address = {"aggregator": f"https://127.0.0.1:{served.port}", "patience": 1.0}
        with AggregatorClient(config.model_copy(update=address)) as client:
            client.run()
            assert client.recorded(0) is None


@pytest.mark.slow
def test_a_kit_has_all_that_a_site_needs_and_only_its_owner_reads_it(made: Path) -> None:
    kit = made / "sites" / "beta"
    assert sorted(path.name for path in kit.iterdir()) == [
        *(
            "README.txt",
            "SITE.json",
            "ca.pem",
            "certificate.key",
            "certificate.pem",
            "data",
            "policy.json",
            "privacy",
            "result",
            "token",
        ),
    ]
    words = (kit / "README.txt").read_text()
    for command in ("check", "site", "disclosures", "purge", "privacy export"):
        assert f"rankdad {command} SITE.json" in words, command
    for secret in ("token", "certificate.key", "../../ca/ca.key", "../../aggregator/server.key"):
        assert stat.S_IMODE((kit / secret).stat().st_mode) == 0o600, secret
    for folder in (kit, made / "ca", made / "aggregator"):
        assert stat.S_IMODE(folder.stat().st_mode) == 0o700
    token = (kit / "token").read_text().strip()
    tokens = (made / "aggregator" / "tokens.json").read_text()
    assert len(token) == 64
    assert json.loads(tokens)["beta"] == hashed(token)
    assert token not in tokens
    assert not (made / "aggregator" / "ca.key").exists()
    own = made / "aggregator" / "consortium.json"
    assert validate(Consortium, load_json(own)) == consortium()
    assert "rankdad serve consortium.json --output DIR --host 0.0.0.0 --port 8765 --exposed" in (
        (made / "aggregator" / "README.txt").read_text()
    )
    certificate = x509.load_pem_x509_certificate((kit / "certificate.pem").read_bytes())
    assert 364 <= (certificate.not_valid_after_utc - certificate.not_valid_before_utc).days <= 366
    key = serialization.load_pem_private_key((kit / "certificate.key").read_bytes(), None)
    assert isinstance(key, ec.EllipticCurvePrivateKey)
    assert key.public_key() == certificate.public_key()
    meet(made, "beta")


def test_a_kits_policy_is_the_default_and_stays_when_it_was_changed(made: Path) -> None:
    policy = made / "sites" / "beta" / "policy.json"
    assert policy.read_text() == Policy().text()
    assert SiteConfig.read(policy.parent / "SITE.json").policy == str(policy)
    policy.write_text(Policy().text().replace("8", "20"))
    Kits(consortium(), made).change(None, "beta")
    assert Policy.read(str(policy)).min_rows == 20


@pytest.mark.slow
def test_two_sites_cannot_take_each_others_place(made: Path) -> None:
    alpha, beta = (SiteConfig.read(made / "sites" / site / "SITE.json") for site in SITES[:2])
    for own, names in ((beta, ("token_file",)), (beta, ("certificate", "key"))):
        mixed = alpha.model_copy(update={name: getattr(own, name) for name in names})
        with pytest.raises(Exception, match="are not the same site's"):
            meet(made, "alpha", mixed)


@pytest.mark.slow
def test_a_renewed_site_leaves_its_old_token_worthless(made: Path) -> None:
    kit = made / "sites" / "alpha"
    (kit / "SITE.json").write_text((kit / "SITE.json").read_text().replace('"data": "data"', '"data": "/data/study"'))
    old = (kit / "token").read_text()
    others = (made / "sites" / "beta" / "token").read_text()
    (made / "old").write_text(old)
    assert Kits(consortium(), made).change(None, "alpha") == [kit]
    assert (kit / "token").read_text() != old
    assert (made / "sites" / "beta" / "token").read_text() == others
    config = SiteConfig.read(kit / "SITE.json")
    assert config.data == "/data/study", "what the site has written stays"
    meet(made, "alpha")
    with pytest.raises(Exception, match="the token is not known here"):
        meet(made, "alpha", config.model_copy(update={"token_file": str(made / "old")}))


@pytest.mark.slow
def test_a_site_is_added_by_the_same_authority_and_the_aggregator_renewed(made: Path) -> None:
    larger = Kits(consortium(sites=[*SITES, "delta"]), made)
    larger.change("delta", None)
    tokens = json.loads((made / "aggregator" / "tokens.json").read_text())
    assert list(tokens) == [*SITES, "delta"]
    assert load_json(made / "aggregator" / "consortium.json")["sites"] == [*SITES, "delta"]
    old = (made / "aggregator" / "server.pem").read_bytes()
    larger.change(None, "aggregator")
    assert (made / "aggregator" / "server.pem").read_bytes() != old
    assert json.loads((made / "aggregator" / "tokens.json").read_text()) == tokens
    meet(made, "alpha")


@pytest.mark.parametrize(
    ("add", "renew", "said"),
    [
        ("alpha", None, "is there already; --renew alpha makes it anew"),
        ("delta", None, "delta: is not among the file's sites, owners and viewers; add it there first"),
        (None, "../x", "../x: is not among the file's sites"),
        ("alpha", "beta", "give one of them"),
        ("aggregator", None, "aggregator: is not among the file's sites"),
    ],
)
def test_nothing_is_overwritten_unasked(made: Path, add: str | None, renew: str | None, said: str) -> None:
    def contents() -> dict[str, bytes]:
        return {str(path): path.read_bytes() for path in made.rglob("*") if path.is_file()}

    before = contents()
    with pytest.raises(UserError, match="is not empty; --add or --renew changes one site"):
        Kits(consortium(), made).make()
    with pytest.raises(UserError) as error:
        Kits(consortium(), made).change(add, renew)
    assert said in str(error.value)
    assert contents() == before


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"aggregator": "http://a.example"}, "expected an address such as https://aggregator.example:8765"),
        ({"sites": ["a", "a"]}, "names must differ"),
        ({"sites": ["../x"]}, "sites[0]"),
        ({"sites": ["aggregator"]}, "none may be aggregator"),
        ({"days": 0}, "days: got 0"),
    ],
)
def test_a_consortium_that_cannot_be_is_said(changes: dict[str, Any], said: str) -> None:
    with pytest.raises(UserError) as error:
        consortium(**changes)
    assert said in str(error.value)


def test_the_command_makes_kits_without_certificates_for_a_proxy_that_ends_tls(tmp_path: Path) -> None:
    file = tmp_path / "consortium.json"
    document = {"name": "study", "aggregator": "https://[2001:db8::1]", "sites": ["a"], "mutual_tls": False}
    file.write_text(json.dumps(document | {"addresses": ["inside.example"], "owners": ["o"]}))
    done = CliRunner().invoke(app, ["provision", str(file), "--output", str(tmp_path / "kits")])
    assert done.exit_code == 0, done.output
    found = sorted(path.name for path in (tmp_path / "kits" / "sites" / "a").iterdir())
    assert found == ["README.txt", "SITE.json", "ca.pem", "data", "policy.json", "privacy", "result", "token"]
    server = x509.load_pem_x509_certificate((tmp_path / "kits" / "aggregator" / "server.pem").read_bytes())
    names = server.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    assert names.get_values_for_type(x509.DNSName) == ["inside.example"]
    assert [str(address) for address in names.get_values_for_type(x509.IPAddress)] == ["2001:db8::1"]
    assert "--client-ca" not in (tmp_path / "kits" / "aggregator" / "README.txt").read_text()
    for kit in ("sites/a", "owners/o"):
        assert "certificate" not in (tmp_path / "kits" / kit / "README.txt").read_text(), "there is none"
