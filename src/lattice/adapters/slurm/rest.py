"""One bounded question at a time to slurmrestd, over a unix socket or TCP.

Knows HTTP, the token and the bounds; nothing about jobs. Redirects are not followed: an answer
from elsewhere is not Slurm's. The token is read again whenever its file changes, since Slurm's
tokens are short-lived and something else renews them.
"""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import quote, urlencode

import httpx2

from lattice.base.errors import ConfigurationError, Unavailable

_UNIX = "unix:"
_TOKEN_LIMIT_BYTES = 16_384
_MEBIBYTE = 1024 * 1024
_TIMED = ("connect", "read", "write", "pool")


@dataclass(frozen=True, slots=True)
class RestReply:
    """Status and body, as they came."""

    status: int
    body: bytes


class SlurmRest:
    """A client of one slurmrestd: `unix:/run/slurmrestd.sock` or `https://host:6820`."""

    def __init__(
        self,
        address: str,
        *,
        user: str = "",
        token_file: Path | None = None,
        ca_file: Path | None = None,
        transport: httpx2.AsyncBaseTransport | None = None,
    ) -> None:
        self.address = address
        self._user = user
        self._token = _TokenFile(token_file) if token_file else None
        self._base_url, uds = _split(address)
        # The transport alone: an idle poll is short, and a whole client would add a fifth to it.
        self._transport = transport or _transport(uds, ca_file)

    async def get(
        self,
        path: str,
        params: Mapping[str, str] | None = None,
        *,
        timeout_s: float,
        limit_bytes: int = 64 * _MEBIBYTE,
    ) -> RestReply:
        """Ask, within `timeout_s` for the whole exchange. Raises `Unavailable`."""
        # slurmrestd parses the query itself and takes neither a bare comma nor a bare colon.
        query = "?" + urlencode(params, quote_via=quote, safe="") if params else ""
        try:
            async with asyncio.timeout(timeout_s):
                return await self._exchange(path + query, path, timeout_s, limit_bytes)
        except (TimeoutError, httpx2.TimeoutException):
            raise Unavailable(
                f"slurmrestd gave no answer to {path} within {timeout_s:g} s",
                hint="slurmctld or slurmdbd may be down, or busy.",
            ) from None
        except (httpx2.HTTPError, httpx2.StreamError, OSError) as error:
            raise Unavailable(
                f"slurmrestd can't be reached at {self.address}: {_short(error)}",
                hint="Is slurmrestd running, and may the server open that address?",
            ) from None

    async def _exchange(
        self, target: str, path: str, timeout_s: float, limit_bytes: int
    ) -> RestReply:
        request = httpx2.Request(
            "GET",
            self._base_url + target,
            headers=self._headers(),
            extensions={"timeout": dict.fromkeys(_TIMED, timeout_s)},
        )
        response = await self._transport.handle_async_request(request)
        try:
            body = await _bounded(response, path, limit_bytes)
        finally:
            await response.aclose()
        if response.has_redirect_location:
            raise Unavailable(
                f"slurmrestd answered {path} with a redirect, which is not followed",
                hint="Give slurmrestd's own address.",
            )
        return RestReply(response.status_code, body)

    def _headers(self) -> dict[str, str]:
        # A compressed answer could unfold beyond the bound before it is counted.
        headers = {"accept": "application/json", "accept-encoding": "identity"}
        if self._user:
            headers["X-SLURM-USER-NAME"] = self._user
        if self._token:
            headers["X-SLURM-USER-TOKEN"] = self._token.read()
        return headers

    async def aclose(self) -> None:
        """Close the connections."""
        await self._transport.aclose()


async def _bounded(response: httpx2.Response, path: str, limit_bytes: int) -> bytes:
    assert isinstance(response.stream, httpx2.AsyncByteStream)
    body = bytearray()
    async for piece in response.stream:
        body += piece
        if len(body) > limit_bytes:
            raise Unavailable(
                f"the answer to {path} is larger than {limit_bytes // _MEBIBYTE} MiB",
                hint="Ask for a shorter stretch of time.",
            )
    return bytes(body)


class _TokenFile:
    """The token in a file, read again when the file is another or a newer one."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._seen: tuple[int, int, int] | None = None
        self._token = ""

    def read(self) -> str:
        status = self._path.stat()
        seen = (status.st_ino, status.st_mtime_ns, status.st_size)
        if seen != self._seen:
            with self._path.open("rb") as file:
                text = file.read(_TOKEN_LIMIT_BYTES).decode("ascii", "replace").strip()
            # `scontrol token` prints SLURM_JWT=…; a file made by redirecting it is taken too.
            self._token = text.removeprefix("SLURM_JWT=")
            self._seen = seen
        return self._token


def _split(address: str) -> tuple[str, str | None]:
    if address.startswith(_UNIX):
        path = address.removeprefix(_UNIX)
        if not path.startswith("/"):
            raise ConfigurationError(f"slurmrestd's address {address!r} needs an absolute path")
        return "http://slurmrestd", path
    if address.startswith(("http://", "https://")):
        return address.rstrip("/"), None
    raise ConfigurationError(
        f"slurmrestd's address {address!r} is neither unix:/path nor http(s)://host:port"
    )


def _transport(uds: str | None, ca_file: Path | None) -> httpx2.AsyncHTTPTransport:
    verify = ssl.create_default_context(cafile=str(ca_file)) if ca_file else True
    limits = httpx2.Limits(max_connections=8, max_keepalive_connections=4, keepalive_expiry=30.0)
    return httpx2.AsyncHTTPTransport(uds=uds, verify=verify, trust_env=False, limits=limits)


def _short(error: Exception) -> str:
    return (str(error) or type(error).__name__)[:200]
