"""`HttpMetricStore`: the port `MetricStore` over Prometheus' HTTP API.

`Circuit` limits who waits for a store that hangs: one caller at a time. It does no I/O.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import httpx2

from lattice.adapters.http_store import (
    AnswerTooLarge,
    HttpAddress,
    HttpFailure,
    HttpStore,
    StoreBounds,
    decoded,
    trusted_authorities,
)
from lattice.adapters.metricstore.answers import (
    check_about_us,
    check_written,
    error_text,
    points_of,
    series_of,
)
from lattice.base.clock import Clock, SystemClock
from lattice.domain.metricstore import BadQuery, SeriesPoints, StoreSilent
from lattice.wire.remotewrite import HEADERS, WriteEncoder, as_snappy

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


WRITE_S = 15.0
LARGEST_ANSWER_BYTES = 64 * 1024 * 1024
_BOUNDS = StoreBounds(connect_s=3.0, connections=32, answer_bytes=LARGEST_ANSWER_BYTES)


class HttpMetricStore:
    """VictoriaMetrics, or a Prometheus with `--web.enable-remote-write-receiver`."""

    def __init__(
        self,
        address: HttpAddress,
        clock: Clock | None = None,
        *,
        write_s: float = WRITE_S,
        transport: httpx2.AsyncBaseTransport | None = None,
    ) -> None:
        """Opens no connection. Raises `ConfigurationError`."""
        clock = clock or SystemClock()
        self._write_s = write_s
        self._encoder = WriteEncoder()
        self._writes = Circuit(clock)
        # One expensive query that times out does not mean that the store is down.
        self._queries = Circuit(clock, patience=2)
        self._http = HttpStore(
            address,
            "/api/v1/",
            _BOUNDS,
            trusted_authorities(address.ca, server="the metric store", setting="telemetry.tsdb_ca"),
            transport,
        )

    async def aclose(self) -> None:
        """Close the connections."""
        await self._http.aclose()

    async def write(self, series: Sequence[SeriesPoints]) -> None:
        """Return when it is stored. Raises `StoreSilent` and `WriteRefused`."""
        await self.write_encoded(self._encoder.encode(series))

    async def write_encoded(self, request: bytes) -> None:
        """Return when it is stored. Raises `StoreSilent` and `WriteRefused`."""
        if not request:
            return
        with self._writes.passing():
            content = as_snappy(request)
            check_written(*await self._exchange("write", self._write_s, content=content))

    async def query(
        self, promql: str, *, at: float, within_s: float = 10.0
    ) -> tuple[SeriesPoints, ...]:
        """An instant vector. Raises `StoreSilent` and `BadQuery`."""
        form = {"query": promql, "time": _moment(at)}
        return await decoded(points_of, await self._ask("query", form, within_s))

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
        return await decoded(points_of, await self._ask("query_range", form, within_s))

    async def series(
        self, match: str, *, start: float, end: float, within_s: float = 10.0
    ) -> tuple[Mapping[str, str], ...]:
        """The label sets that a selector matches. Raises `StoreSilent` and `BadQuery`."""
        form = {"match[]": match, "start": _moment(start), "end": _moment(end)}
        return await decoded(series_of, await self._ask("series", form, within_s))

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
        headers = HEADERS if call == "write" else None
        try:
            return await self._http.exchange("POST", call, within_s, headers=headers, **content)
        except AnswerTooLarge as error:
            raise BadQuery(f"{error}; ask for less") from None
        except HttpFailure as error:
            raise StoreSilent(str(error)) from None


def _moment(seconds: float) -> str:
    return f"{seconds:.3f}"
