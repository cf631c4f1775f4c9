"""`HttpStore` asks one of the site's HTTP servers, with a secret from a file and with limits."""

from __future__ import annotations

import asyncio
import base64
import ssl
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import httpx2

from lattice.base.errors import ConfigurationError

T = TypeVar("T")

_LARGE_BYTES = 256 * 1024
"""Larger answers are decoded in a thread, so that they don't block the event loop."""


class HttpFailure(Exception):
    """The server did not answer, or not in a way that can be used. The text is for people."""


class AnswerTooLarge(HttpFailure):
    """The answer was larger than allowed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class HttpAddress:
    """Where a server is, and what proves to it who asks. Secrets are read for each call."""

    url: str
    username: str = ""
    password_file: Path | None = None
    bearer_file: Path | None = None
    ca: Path | None = None
    """Authorities besides those of the system."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StoreBounds:
    """What one server may cost."""

    connect_s: float
    connections: int
    answer_bytes: int


class HttpStore:
    """Follows no redirect, and uses no proxy that the environment names."""

    def __init__(
        self,
        address: HttpAddress,
        path: str,
        bounds: StoreBounds,
        trusted: ssl.SSLContext,
        transport: httpx2.AsyncBaseTransport | None = None,
    ) -> None:
        """Opens no connection. All calls go below `path`."""
        self._address = address
        self._base = address.url.rstrip("/") + path
        self._bounds = bounds
        self._http = httpx2.AsyncClient(
            verify=trusted,
            # Each call has a limit for its whole time.
            timeout=httpx2.Timeout(None, connect=bounds.connect_s),
            limits=httpx2.Limits(
                max_connections=bounds.connections, max_keepalive_connections=bounds.connections
            ),
            follow_redirects=False,
            trust_env=False,
            transport=transport,
        )

    async def aclose(self) -> None:
        """Close the connections."""
        await self._http.aclose()

    async def exchange(
        self,
        method: str,
        path: str,
        within_s: float,
        *,
        headers: Mapping[str, str] | None = None,
        **content: Any,
    ) -> tuple[int, bytes]:
        """Return status and body. Raises `HttpFailure` and `AnswerTooLarge`."""
        # Compression is declined: a small answer could expand to any size.
        sent = {"Accept-Encoding": "identity", **(headers or {}), **self._authorization()}
        try:
            async with (
                asyncio.timeout(within_s),
                self._http.stream(method, self._base + path, headers=sent, **content) as answer,
            ):
                return answer.status_code, await self._body(answer)
        except TimeoutError:
            raise HttpFailure(f"it did not answer within {within_s:g} s") from None
        except httpx2.ConnectTimeout:
            raise HttpFailure(f"no connection within {self._bounds.connect_s:g} s") from None
        except (httpx2.HTTPError, OSError) as error:
            raise HttpFailure(str(error)[:200] or type(error).__name__) from None

    async def _body(self, answer: httpx2.Response) -> bytes:
        if answer.headers.get("Content-Encoding", "identity") != "identity":
            raise HttpFailure("it answered in an encoding that was not asked for")
        most = self._bounds.answer_bytes
        found = bytearray()
        async for part in answer.aiter_raw():
            found += part
            if len(found) > most:
                raise AnswerTooLarge(f"it answered more than {most // 2**20} MB")
        return bytes(found)

    def _authorization(self) -> dict[str, str]:
        address = self._address
        try:
            if address.bearer_file is not None:
                return {"Authorization": f"Bearer {address.bearer_file.read_text().strip()}"}
            if address.password_file is None:
                return {}
            basic = f"{address.username}:{address.password_file.read_text().strip()}".encode()
        except (OSError, UnicodeDecodeError) as error:
            raise HttpFailure(f"the secret to ask it with can't be read: {error}") from None
        return {"Authorization": f"Basic {base64.b64encode(basic).decode()}"}


def trusted_authorities(ca: Path | None, *, server: str, setting: str) -> ssl.SSLContext:
    """The system's authorities and those in `ca`. Raises `ConfigurationError`."""
    try:
        context = ssl.create_default_context()
        if ca is not None:
            context.load_verify_locations(cafile=ca)
    except (ssl.SSLError, OSError) as error:
        raise ConfigurationError(
            f"The authorities of {server} can't be read from {ca}: {error}",
            hint=f"Correct {setting} in the configuration.",
        ) from None
    return context


async def decoded(decode: Callable[[bytes], T], body: bytes) -> T:
    """`decode(body)`, in a thread if the body is large."""
    return await asyncio.to_thread(decode, body) if len(body) > _LARGE_BYTES else decode(body)
