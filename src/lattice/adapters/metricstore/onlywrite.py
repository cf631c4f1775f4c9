"""`OnlyWrite`: writes for nodes, with little more than the standard library.

An agent writes rarely. The HTTP client of the servers would take more memory than everything else
in an agent.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from lattice.adapters.metricstore.answers import check_written
from lattice.adapters.metricstore.writeurl import checked_write_url
from lattice.base.fast_start.http1 import HttpTarget, tls_context
from lattice.domain.metricstore import SeriesPoints, StoreSilent
from lattice.wire.remotewrite import HEADERS, WriteEncoder, as_snappy

WRITE_S = 10.0
_LARGEST_ANSWER_BYTES = 64 * 1024
_MOST_CACHED = 4_096
"""Of one node: it has few series."""


class OnlyWrite:
    """A vmagent, VictoriaMetrics, or a Prometheus with remote write."""

    def __init__(self, url: str, *, write_s: float = WRITE_S) -> None:
        """Opens no connection. Raises `BadWriteUrl`."""
        self._url = checked_write_url(url)
        self._encoder = WriteEncoder(_MOST_CACHED)
        context = tls_context() if self._url.startswith("https:") else None
        self._target = HttpTarget(context=context, timeout_s=write_s)
        self._write_s = write_s

    async def write(self, series: Sequence[SeriesPoints]) -> None:
        """Return when it is stored. Raises `StoreSilent` and `WriteRefused`. Not concurrently."""
        if series:
            await asyncio.to_thread(self._write, series)

    def _write(self, series: Sequence[SeriesPoints]) -> None:
        body = as_snappy(self._encoder.encode(series))
        try:
            reply = self._target.exchange(
                "POST", self._url, HEADERS, body, most_bytes=_LARGEST_ANSWER_BYTES
            )
        except TimeoutError:
            raise StoreSilent(f"it did not answer within {self._write_s:g} s") from None
        except OSError as error:
            raise StoreSilent(str(error)[:200] or type(error).__name__) from None
        check_written(reply.status, reply.body)
