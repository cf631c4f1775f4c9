"""The addresses of an issuer's endpoints, only from the issuer itself.

A discovery document is untrusted, and its addresses are called next. So it must be the issuer's
own, every address in it must be https, and redirects are not followed. Only an issuer on this
machine may use http, and then only for addresses on this machine.
"""

from __future__ import annotations

from collections.abc import Mapping
from urllib.parse import urlencode, urlsplit

import msgspec

from lattice.base.errors import ConfigurationError, Unavailable
from lattice.base.fast_start.connector import LOOPBACK
from lattice.base.fast_start.http1 import HttpTarget, Reply


class Endpoints:
    """The addresses of one issuer, read on first use."""

    def __init__(self, target: HttpTarget, issuer: str, address: str) -> None:
        self._target = target
        self._issuer = issuer
        self._address = address
        self._document: Mapping[str, object] | None = None
        self._plain = _is_local(issuer)
        for url in (issuer, address):
            if not self._allowed(url):
                raise ConfigurationError(
                    f"The identity provider's address {url!r} is not an https address",
                    hint="The server names it; its administrator has to correct `oidc_issuer`.",
                )

    def document(self) -> Mapping[str, object]:
        """The issuer's discovery document."""
        if self._document is None:
            url = f"{self._address.rstrip('/')}/.well-known/openid-configuration"
            reply = self._exchange("GET", url)
            found = read_object(reply.body)
            if reply.status != 200 or found is None:
                raise Unavailable(
                    f"{url} does not describe an identity provider (it answered {reply.status})",
                    hint="The server names it; its administrator has to correct `oidc_issuer`.",
                )
            if found.get("issuer") != self._issuer:
                raise ConfigurationError(
                    f"{url} is of the issuer {found.get('issuer')!r}, not {self._issuer!r}",
                    hint="Don't sign in there; tell the server's administrator.",
                )
            self._document = found
        return self._document

    def find(self, name: str) -> str | None:
        """An endpoint's address, or None if the issuer has none of the kind."""
        url = self.document().get(name)
        if url is None:
            return None
        if not isinstance(url, str) or not self._allowed(url):
            raise ConfigurationError(
                f"The identity provider names {url!r} as its {name}, which is not an https address",
                hint="Don't sign in there; tell the server's administrator.",
            )
        return url

    def get(self, name: str) -> str:
        """An endpoint's address; raises `ConfigurationError` if the issuer has none."""
        url = self.find(name)
        if url is None:
            raise ConfigurationError(
                f"The identity provider {self._issuer} offers no {name.replace('_', ' ')}",
                hint="Try another way: `lattice login --flow pkce|device|manual`.",
            )
        return url

    def post(self, url: str, form: Mapping[str, str]) -> Reply:
        """Send a form to an endpoint."""
        headers = {"Content-Type": "application/x-www-form-urlencoded"}
        return self._exchange("POST", url, headers, urlencode(form).encode())

    def _exchange(
        self, method: str, url: str, headers: Mapping[str, str] | None = None, body: bytes = b""
    ) -> Reply:
        try:
            return self._target.exchange(method, url, headers or {}, body)
        except OSError as error:
            reason = error.strerror or str(error) or "no answer"
            raise Unavailable(
                f"Can't reach the identity provider at {self._address}: {reason}",
                hint="Check the network, then try again.",
            ) from None

    def _allowed(self, url: str) -> bool:
        try:
            parts = urlsplit(url)
            host = parts.hostname
        except ValueError:
            return False
        if not host or parts.username is not None or "\\" in url:
            return False
        return parts.scheme == "https" or (self._plain and _is_local(url))


def _is_local(url: str) -> bool:
    parts = urlsplit(url)
    return parts.scheme == "http" and parts.hostname in LOOPBACK


def read_object(body: bytes) -> dict[str, object] | None:
    """A JSON object, or None for anything else."""
    try:
        return msgspec.json.decode(body, type=dict[str, object])
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return None
