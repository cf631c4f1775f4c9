"""One request at a time to slurmrestd with limits, over a unix socket or TCP.

It handles HTTP, the token and the limits, and nothing about jobs. Redirects are not followed: an
answer from elsewhere is not Slurm's. The token is read again when its file changes, because Slurm's
tokens are short-lived and another program renews them.
"""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import Mapping, Sequence
from pathlib import Path
from urllib.parse import quote, urlencode, urlsplit

from lattice.adapters.slurm.http_client import Exchange, HttpExchange, RestReply, TooLarge
from lattice.base.errors import ConfigurationError, Unavailable

USER_HEADER = "X-SLURM-USER-NAME"
TOKEN_HEADER = "X-SLURM-USER-TOKEN"  # noqa: S105 - the name of a header
_UNIX = "unix:"
_PORTS = {"http": 80, "https": 443}
_TOKEN_LIMIT_BYTES = 16_384
_MEBIBYTE = 1024 * 1024
_BUFFER_BYTES = _MEBIBYTE
_REDIRECTS = (301, 302, 303, 307, 308)


class SlurmRest:
    """A client of one slurmrestd: `unix:/run/slurmrestd.sock` or `https://host:6820`."""

    def __init__(
        self,
        address: str,
        *,
        user: str = "",
        token: str = "",
        token_file: Path | None = None,
        ca_file: Path | None = None,
        exchange: Exchange | None = None,
    ) -> None:
        """`token` never changes; one in `token_file` may."""
        self.address = address
        self._failures = 0
        self._user = user
        self._fixed_token = token
        self._token = _TokenFile(token_file) if token_file else None
        self._exchange = exchange or _exchange(address, ca_file)

    async def get(
        self,
        path: str,
        params: Mapping[str, str | Sequence[str]] | None = None,
        *,
        timeout_s: float,
        limit_bytes: int = 64 * _MEBIBYTE,
        if_larger: str = "Ask for a shorter stretch of time.",
        caller: Mapping[str, str] | None = None,
    ) -> RestReply:
        """Send a request; `timeout_s` is for the whole exchange. Raises `Unavailable`.

        A parameter with several values is repeated. `caller`: the headers that say who asks, in
        place of the client's own. `if_larger`: the hint for an answer beyond the limit.
        """
        # slurmrestd parses the query itself and accepts neither a bare comma nor a bare colon.
        query = "?" + urlencode(params, doseq=True, quote_via=quote, safe="") if params else ""
        try:
            async with asyncio.timeout(timeout_s):
                reply = await self._exchange.get(path + query, self._headers(caller), limit_bytes)
        except TimeoutError:
            raise Unavailable(
                f"slurmrestd gave no answer to {path} within {timeout_s:g} s",
                hint="slurmctld or slurmdbd may be down, or busy.",
            ) from None
        except TooLarge:
            raise Unavailable(
                f"the answer to {path} is larger than {limit_bytes // _MEBIBYTE} MiB",
                hint=if_larger,
            ) from None
        except OSError as error:
            self._failures += 1
            raise Unavailable(
                f"slurmrestd can't be reached at {self.address}: {_short(error)}",
                hint="Is slurmrestd running, and may the server open that address?",
            ) from None
        if reply.status in _REDIRECTS:
            raise Unavailable(
                f"slurmrestd answered {path} with a redirect, which is not followed",
                hint="Give slurmrestd's own address.",
            )
        return reply

    def _headers(self, caller: Mapping[str, str] | None) -> dict[str, str]:
        headers = {"Accept": "application/json"}
        if caller is not None:
            return headers | dict(caller)
        if self._user:
            headers[USER_HEADER] = self._user
        if token := self._token.read() if self._token else self._fixed_token:
            headers[TOKEN_HEADER] = token
        return headers

    @property
    def losses(self) -> int:
        """How often it could not be reached, or had closed a connection."""
        return self._failures + self._exchange.reconnects

    async def aclose(self) -> None:
        """Close the connections."""
        await self._exchange.aclose()


class _TokenFile:
    """The token in a file, read again when the file was replaced or changed."""

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
            # `scontrol token` prints SLURM_JWT=…; a file with that output is accepted too.
            token = text.removeprefix("SLURM_JWT=")
            if not (token and token.isascii() and token.isprintable()) or " " in token:
                raise OSError(f"{self._path} holds no token")
            self._token, self._seen = token, seen
        return self._token


def _exchange(address: str, ca_file: Path | None) -> HttpExchange:
    if address.startswith(_UNIX):
        path = address.removeprefix(_UNIX)
        if not path.startswith("/"):
            raise ConfigurationError(f"slurmrestd's address {address!r} needs an absolute path")
        return HttpExchange(
            lambda: asyncio.open_unix_connection(path, limit=_BUFFER_BYTES), "slurmrestd"
        )
    try:
        parts = urlsplit(address)
        host, port = parts.hostname, parts.port or _PORTS.get(parts.scheme)
    except ValueError:
        host, port = None, None
    if not host or port is None or parts.path.strip("/") or parts.query or parts.username:
        raise ConfigurationError(
            f"slurmrestd's address {address!r} is neither unix:/path nor http(s)://host:port"
        )
    tls = ssl.create_default_context(cafile=ca_file) if parts.scheme == "https" else None
    return HttpExchange(
        lambda: asyncio.open_connection(host, port, ssl=tls, limit=_BUFFER_BYTES), parts.netloc
    )


def _short(error: OSError) -> str:
    return (str(error) or type(error).__name__)[:200]
