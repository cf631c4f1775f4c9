"""Fetches the identity provider's keys: only from configured addresses, with limits, no redirects.

The provider's answers are untrusted. Redirects are not followed. The document must be the
configured issuer's own. Keys come from the issuer's origin, or from the one address in the
configuration. So no answer can send the server anywhere else.
"""

from __future__ import annotations

import asyncio
import ssl
from pathlib import Path
from urllib.parse import urlsplit

import httpx2

from lattice.adapters.oidc.strict import json_object

_LARGEST_ANSWER_BYTES = 256 << 10
_TIMEOUT_S = 5.0


class ProviderFault(Exception):
    """The provider did not answer, or its answer can't be used. For the log."""


def provider_client(authorities: Path | None = None) -> httpx2.AsyncClient:
    """The HTTP client for the provider; the caller closes it."""
    verify: ssl.SSLContext | bool = True
    if authorities is not None:
        verify = ssl.create_default_context(cafile=authorities)
    return httpx2.AsyncClient(verify=verify, follow_redirects=False, timeout=_TIMEOUT_S)


class DiscoveredProvider:
    """One issuer. With `jwks_uri` its keys come from there and nothing is discovered."""

    def __init__(
        self,
        client: httpx2.AsyncClient,
        issuer: str,
        *,
        jwks_uri: str | None = None,
        timeout_s: float = _TIMEOUT_S,
    ) -> None:
        self._client = client
        self._issuer = issuer
        self._jwks_uri = jwks_uri
        self._timeout_s = timeout_s

    async def key_set(self) -> bytes:
        """The key set as it was sent. Raises `ProviderFault`."""
        return await self._get(self._jwks_uri or await self._discover())

    async def _discover(self) -> str:
        url = f"{self._issuer.rstrip('/')}/.well-known/openid-configuration"
        try:
            document = json_object(await self._get(url))
        except ValueError as error:
            raise ProviderFault(f"{url}: {error}") from None
        named, keys = document.get("issuer"), document.get("jwks_uri")
        if named != self._issuer:
            raise ProviderFault(f"{url} is of issuer {_shown(named)}, not {self._issuer!r}")
        if not isinstance(keys, str) or _origin(keys) != _origin(self._issuer):
            raise ProviderFault(
                f"{url}: jwks_uri {_shown(keys)} is not on the issuer's origin; "
                "if it is right, set api.oidc_jwks_uri to it"
            )
        return keys

    async def _get(self, url: str) -> bytes:
        try:
            async with asyncio.timeout(self._timeout_s):
                return await self._read(url)
        except TimeoutError:
            raise ProviderFault(f"{url}: no answer within {self._timeout_s:g} s") from None
        except (httpx2.HTTPError, httpx2.InvalidURL, ssl.SSLError, OSError) as error:
            raise ProviderFault(f"{url}: {type(error).__name__}: {error}"[:300]) from None

    async def _read(self, url: str) -> bytes:
        # Compression is declined and refused: a small answer could expand to any size.
        headers = {"Accept": "application/json", "Accept-Encoding": "identity"}
        async with self._client.stream("GET", url, headers=headers) as answer:
            if answer.status_code != 200:
                raise ProviderFault(f"{url} answered {answer.status_code}")
            if answer.headers.get("Content-Encoding", "identity") != "identity":
                raise ProviderFault(f"{url} answered in an encoding that was not asked for")
            data = b""
            async for chunk in answer.aiter_raw():
                data += chunk
                if len(data) > _LARGEST_ANSWER_BYTES:
                    raise ProviderFault(f"{url} answered more than {_LARGEST_ANSWER_BYTES} bytes")
            return data


def _origin(url: str) -> tuple[str, str, int | None] | None:
    try:
        parts = urlsplit(url)
        port = parts.port or {"https": 443, "http": 80}.get(parts.scheme)
    except ValueError:
        return None
    if not parts.hostname or "@" in parts.netloc or "\\" in url:
        return None
    return parts.scheme, parts.hostname, port


def _shown(value: object) -> str:
    return ascii(value)[:200]
