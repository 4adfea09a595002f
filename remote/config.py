"""Access options of the aggregator, checked before it listens."""

from __future__ import annotations

import ipaddress
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from rankdad.common.errors import UserError
from rankdad.common.files import warn_if_readable
from rankdad.page.viewers import VIEWER_TOKEN, own_token
from rankdad.remote.auth import Context, Identity, TokenFile, check_authority, hashed, read_tokens, server_context
from rankdad.remote.proxies import Proxy


@dataclass(frozen=True)
class Access:
    """The aggregator's network options.

    Args:
        host: address to listen on.
        tls_cert: the aggregator's certificate.
        tls_key: its key.
        client_ca: certificate of the authority of the sites' certificates.
        tokens: file of the sites' hashed tokens.
        allow_plain_http: whether other machines may connect without TLS, as behind a proxy that ends it.
        allow_anyone: whether other machines may connect without authentication.
        viewers: file of hashed tokens for the live page.
        behind: Unix socket to listen on instead, for a proxy on this machine.
        exposed: whether other machines may connect without a proxy.
    """

    host: str = "127.0.0.1"
    tls_cert: Path | None = None
    tls_key: Path | None = None
    client_ca: Path | None = None
    tokens: Path | None = None
    allow_plain_http: bool = False
    allow_anyone: bool = False
    viewers: Path | None = None
    behind: Path | None = None
    exposed: bool = False

    def check(self, sites: Sequence[str]) -> None:
        """Refuse unsafe or impossible combinations.

        Raises:
            UserError: names the option and a remedy.
        """
        if (self.tls_cert is None) != (self.tls_key is None):
            raise UserError(
                "--tls-cert and --tls-key: give both or none", code="options-belong-together", field="--tls-cert"
            )
        if self.client_ca is not None and self.tls_cert is None and self.behind is None:
            raise UserError(
                "--client-ca: sites can show a certificate only through TLS: give --tls-cert and --tls-key, "
                "or --socket for a proxy that ends TLS",
                code="options-belong-together",
                field="--client-ca",
            )
        if self.behind is not None:
            self._check_behind()
        warn_if_readable(self.tls_key, "--tls-key")
        if self.secure is not None:
            self.secure()
        identity = self.identity(sites)
        missing = [site for site in sites if identity.tokens is not None and site not in identity.tokens]
        if missing:
            raise UserError(
                f"--tokens {self.tokens}: has no token of {', '.join(missing)}", code="token-missing", field="--tokens"
            )
        both = set((identity.tokens or {}).values()) & set(self.viewers_in().values())
        if both:
            raise UserError(
                f"--viewers {self.viewers}: has the token of a site; give viewers tokens of their own",
                code="token-of-a-site",
                field="--viewers",
            )
        if self.behind is None and is_loopback(self.host):
            return
        if self.behind is None and self.tls_cert is None and not self.allow_plain_http:
            raise UserError(
                f"--host {self.host}: can be reached from outside without encryption; give --tls-cert and --tls-key, "
                "or, behind a proxy that ends TLS or in a network that you trust, --allow-plain-http",
                code="not-encrypted",
                field="--host",
            )
        if not identity.required and not self.allow_anyone:
            where = f"--host {self.host}" if self.behind is None else f"--socket {self.behind}"
            raise UserError(
                f"{where}: anyone who reaches it could take part; give --tokens or --client-ca, which "
                "`rankdad provision` makes, or --allow-anyone in a network that you trust",
                code="anyone-could-take-part",
                field=where.partition(" ")[0],
            )
        if self.behind is None and not self.exposed:
            raise UserError(
                f"--host {self.host}: without a proxy nothing limits how slow and long headers are, what follows a "
                "refused request, and how many connections an address has: use --socket behind nginx "
                "(docker/nginx/rankdad.conf), or accept that with --exposed",
                code="exposed",
                field="--host",
            )

    def _check_behind(self) -> None:
        """Refuse options that belong to the proxy."""
        if self.tls_cert is not None:
            raise UserError(
                "--socket: the proxy ends TLS: give --tls-cert and --tls-key to it",
                code="options-exclude",
                field="--tls-cert",
            )
        if self.client_ca is not None:
            check_authority(self.client_ca)

    def viewers_in(self, directory: Path | None = None) -> dict[str, str]:
        """Return viewers' hashed tokens by name: the file's, else the one in a run's directory.

        Raises:
            UserError: a file cannot be read or written, or is invalid.
        """
        if self.viewers is not None:
            return read_tokens(self.viewers)
        return {} if directory is None else {"viewer": hashed(own_token(directory / VIEWER_TOKEN))}

    @property
    def proxy(self) -> Proxy | None:
        """The proxy in front of the Unix socket; None without one."""
        return None if self.behind is None else Proxy(self.client_ca)

    @property
    def scheme(self) -> str:
        """Scheme of the aggregator's address."""
        return "http" if self.tls_cert is None else "https"

    def identity(self, sites: Sequence[str]) -> Identity:
        """Create the authentication of callers."""
        tokens = None if self.tokens is None else TokenFile(self.tokens)
        return Identity(tuple(sites), tokens, certificates=self.client_ca is not None)

    @property
    def secure(self) -> Callable[[], Context] | None:
        """Factory of TLS contexts, which reloads renewed files; None without TLS."""
        if self.tls_cert is None or self.tls_key is None:
            return None
        return partial(server_context, self.tls_cert, self.tls_key, self.client_ca)


def is_loopback(host: str) -> bool:
    """Return whether an address is a loopback address."""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"
