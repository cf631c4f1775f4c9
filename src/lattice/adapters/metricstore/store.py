"""`HttpMetricStore`: the port `MetricStore` over Prometheus' HTTP API.

`Circuit` limits who waits for a store that hangs: one caller at a time. It does no I/O.
"""

from __future__ import annotations

import asyncio
import base64
import ssl
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import httpx2

from lattice.adapters.metricstore.answers import (
    check_about_us,
    check_written,
    error_text,
    points_of,
    series_of,
)
from lattice.adapters.metricstore.remotewrite import HEADERS, WriteEncoder
from lattice.base.clock import Clock, SystemClock
from lattice.base.errors import ConfigurationError
from lattice.domain.metricstore import BadQuery, SeriesPoints, StoreSilent

PAUSE_S = 3.0
"""How long no call is tried after a failed one."""


class Circuit:
    """Passes calls while the store answers; after `patience` failures in a row, one at a time.

    A failure is `StoreSilent` from the call; any other result counts as an answer.
    """

    def __init__(self, clock: Clock, *, patience: int = 1, pause_s: float = PAUSE_S) -> None:
        self._clock = clock
        self._patience = patience
        self._pause_s = pause_s
        self._silences = 0
        self._reason = ""
        self._rests_until_s = 0.0
        self._trying = False

    @contextmanager
    def passing(self) -> Iterator[None]:
        """Wraps one call. Raises `StoreSilent` at once if the store is known not to answer."""
        tries = self._silences >= self._patience
        if tries:
            if self._trying or self._clock.monotonic() < self._rests_until_s:
                raise StoreSilent(self._reason)
            self._trying = True
        try:
            yield
        except StoreSilent as silence:
            self._note(str(silence))
            raise
        except Exception:
            self._silences = 0
            raise
        else:
            self._silences = 0
        finally:
            if tries:
                self._trying = False

    def _note(self, reason: str) -> None:
        self._silences += 1
        self._reason = reason
        self._rests_until_s = self._clock.monotonic() + self._pause_s


T = TypeVar("T")

WRITE_S = 15.0
LARGEST_ANSWER_BYTES = 64 * 1024 * 1024
_LARGE_BYTES = 256 * 1024
"""Larger answers are decoded in a thread, so that they don't block the event loop."""
_MANY_SERIES = 500
_CONNECT_S = 3.0
_CONNECTIONS = 32


@dataclass(frozen=True, slots=True, kw_only=True)
class StoreAddress:
    """The store's address and credentials. Secrets are read from their files for each call."""

    endpoint: str
    username: str = ""
    password_file: Path | None = None
    bearer_file: Path | None = None
    ca: Path | None = None


class HttpMetricStore:
    """VictoriaMetrics, or a Prometheus with `--web.enable-remote-write-receiver`."""

    def __init__(
        self,
        address: StoreAddress,
        clock: Clock | None = None,
        *,
        write_s: float = WRITE_S,
        transport: httpx2.AsyncBaseTransport | None = None,
    ) -> None:
        """Opens no connection. Raises `ConfigurationError`."""
        clock = clock or SystemClock()
        self._address = address
        self._base = address.endpoint.rstrip("/") + "/api/v1/"
        self._write_s = write_s
        self._encoder = WriteEncoder()
        self._writes = Circuit(clock)
        # One expensive query that times out does not mean that the store is down.
        self._queries = Circuit(clock, patience=2)
        self._http = httpx2.AsyncClient(
            verify=_trusted(address.ca),
            # Each call has a limit for its whole time.
            timeout=httpx2.Timeout(None, connect=_CONNECT_S),
            limits=httpx2.Limits(
                max_connections=_CONNECTIONS, max_keepalive_connections=_CONNECTIONS
            ),
            follow_redirects=False,
            trust_env=False,
            transport=transport,
        )

    async def aclose(self) -> None:
        """Close the connections."""
        await self._http.aclose()

    async def write(self, series: Sequence[SeriesPoints]) -> None:
        """Return when it is stored. Raises `StoreSilent` and `WriteRefused`."""
        if not series:
            return
        with self._writes.passing():
            body = await self._encoded(series)
            check_written(*await self._exchange("write", self._write_s, content=body))

    async def _encoded(self, series: Sequence[SeriesPoints]) -> bytes:
        if len(series) <= _MANY_SERIES:
            return self._encoder.encode(series)
        return await asyncio.to_thread(self._encoder.encode, series)

    async def query(
        self, promql: str, *, at: float, within_s: float = 10.0
    ) -> tuple[SeriesPoints, ...]:
        """An instant vector. Raises `StoreSilent` and `BadQuery`."""
        form = {"query": promql, "time": _moment(at)}
        return await _decoded(points_of, await self._ask("query", form, within_s))

    async def query_range(
        self, promql: str, *, start: float, end: float, step_s: float, within_s: float = 10.0
    ) -> tuple[SeriesPoints, ...]:
        """A matrix. Raises `StoreSilent` and `BadQuery`."""
        form = {
            "query": promql,
            "start": _moment(start),
            "end": _moment(end),
            "step": _moment(step_s),
        }
        return await _decoded(points_of, await self._ask("query_range", form, within_s))

    async def series(
        self, match: str, *, start: float, end: float, within_s: float = 10.0
    ) -> tuple[Mapping[str, str], ...]:
        """The label sets that a selector matches. Raises `StoreSilent` and `BadQuery`."""
        form = {"match[]": match, "start": _moment(start), "end": _moment(end)}
        return await _decoded(series_of, await self._ask("series", form, within_s))

    async def _ask(self, call: str, form: Mapping[str, str], within_s: float) -> bytes:
        with self._queries.passing():
            # With the timeout the store stops when the caller has given up. Without `nocache`
            # VictoriaMetrics answers as of half a minute ago; other stores ignore it.
            limit = {"timeout": _moment(within_s), "nocache": "1"} if call != "series" else {}
            status, body = await self._exchange(call, within_s, data={**form, **limit})
            if status >= 300:
                check_about_us(status, body)
                raise BadQuery(error_text(body))
            return body

    async def _exchange(self, call: str, within_s: float, **content: Any) -> tuple[int, bytes]:
        headers = dict(HEADERS) if call == "write" else {}
        headers |= self._credential()
        try:
            async with (
                asyncio.timeout(within_s),
                self._http.stream("POST", self._base + call, headers=headers, **content) as answer,
            ):
                return answer.status_code, await _bounded(answer)
        except TimeoutError:
            raise StoreSilent(f"it did not answer within {within_s:g} s") from None
        except (httpx2.HTTPError, OSError) as error:
            raise StoreSilent(_cause(error)) from None

    def _credential(self) -> dict[str, str]:
        address = self._address
        try:
            if address.bearer_file is not None:
                return {"Authorization": f"Bearer {_secret(address.bearer_file)}"}
            if address.password_file is None:
                return {}
            basic = f"{address.username}:{_secret(address.password_file)}".encode()
        except (OSError, UnicodeDecodeError) as error:
            raise StoreSilent(f"the secret to ask it with can't be read: {error}") from None
        return {"Authorization": f"Basic {base64.b64encode(basic).decode()}"}


def _trusted(ca: Path | None) -> ssl.SSLContext:
    try:
        context = ssl.create_default_context()
        if ca is not None:
            context.load_verify_locations(cafile=ca)
    except (ssl.SSLError, OSError) as error:
        raise ConfigurationError(
            f"The metric store's authorities can't be read from {ca}: {error}",
            hint="Correct telemetry.tsdb_ca in the configuration.",
        ) from None
    return context


async def _bounded(answer: httpx2.Response) -> bytes:
    found = bytearray()
    async for part in answer.aiter_bytes():
        found += part
        if len(found) > LARGEST_ANSWER_BYTES:
            raise BadQuery(
                f"the answer has more than {LARGEST_ANSWER_BYTES // 2**20} MB; ask for less"
            )
    return bytes(found)


async def _decoded(decode: Callable[[bytes], T], body: bytes) -> T:
    return await asyncio.to_thread(decode, body) if len(body) > _LARGE_BYTES else decode(body)


def _secret(file: Path) -> str:
    return file.read_text().strip()


def _moment(seconds: float) -> str:
    return f"{seconds:.3f}"


def _cause(error: BaseException) -> str:
    if isinstance(error, httpx2.ConnectTimeout):
        return f"no connection within {_CONNECT_S:g} s"
    return str(error)[:200] or type(error).__name__
