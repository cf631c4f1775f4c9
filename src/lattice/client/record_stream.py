"""A followed stream: records one by one, and the cursor to continue from. For both clients."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Generator, Iterable, Iterator
from typing import Generic, Self, TypeVar, cast

from lattice.base.call import StreamCall
from lattice.base.clock import Clock, SystemClock
from lattice.base.errors import InternalError, LatticeError, RateLimited, Unavailable
from lattice.base.events import BadEvents, Event, EventReader, StreamReader
from lattice.base.fast_start.decode import BadAnswer, reader
from lattice.client.answers import refusal, unreachable

T = TypeVar("T")

_PAUSES_S = (0.0, 0.2, 0.5, 1.0, 2.0, 3.0)
_STEADY_S = 5.0
"""After so long a connection counts as good, and the next failure begins a new series."""


class StreamReconnect(Generic[T]):
    """One stream over all its connections: where to continue, what to report, when to give up.

    It does no I/O. Both clients drive it: they connect, read and wait as it directs. `request` is
    the next request; `pause_s` is how long to wait before it.

    A failure before anything came is raised, unless `answered` is set for the call. Once the stream
    runs, a lost connection is made again from the last cursor, for the call's `patience_s`.
    """

    def __init__(
        self, call: StreamCall[T], *, replicas: int = 1, clock: Clock | None = None
    ) -> None:
        self.cursor = ""
        self.ended = False
        self.error: LatticeError | None = None
        """The server's error, instead of a stream or inside it."""
        self._call = call
        self._clock = clock or SystemClock()
        self._reading = call.reading()
        self._readers = {name: reader(kind) for name, kind in call.kinds.items()}
        self._events: StreamReader = EventReader()
        self._first_tries = max(replicas, 2)
        self._tries = 0
        self._running = False
        self._opened_at = 0.0
        self._lost_at: float | None = None
        self.pause_s = 0.0

    @property
    def request(self) -> StreamCall[T]:
        """The call, from the end of the last connection."""
        return self._call.from_cursor(self.cursor) if self.cursor else self._call

    def opened(self, media_type: str = "") -> None:
        """A connection has answered 200, and the stream begins or continues."""
        binary = self._call.binary
        is_binary = binary is not None and media_type.partition(";")[0] == binary.media_type
        self._events = binary.reader() if binary and is_binary else EventReader()
        self.error = None
        self._running = True
        self._opened_at = self._clock.monotonic()

    def feed(self, piece: bytes, url: str) -> Iterator[T]:
        """The records in these bytes; the cursor follows the records that were taken."""
        for event in self._read_events(piece):
            yield from self._back()
            if event.name == "":
                yield from self._reading.alive(self._clock.now())
            elif event.name == "end":
                self.ended = True
                return
            elif event.name == "error":
                self.error = refusal(url, 200, {}, event.data, "")
                return
            elif event.record is not None:
                yield from self._reading.record(cast("T", event.record))
            elif event.name in self._readers:
                yield from self._reading.record(self._read(event.name, event.data, url))
            if event.id:
                self.cursor = event.id

    def _read_events(self, piece: bytes) -> Iterator[Event]:
        """The events in these bytes. A form that can't be read is not asked for again."""
        try:
            yield from self._events.feed(piece)
        except BadEvents:
            binary = self._call.binary
            self._call = self._call._replace(binary=binary.simpler if binary else None)
            raise

    def _back(self) -> Iterable[T]:
        now = self._clock.monotonic()
        if now - self._opened_at > _STEADY_S:
            self._tries = 0
        if self._lost_at is None:
            return ()
        away_s, self._lost_at = now - self._lost_at, None
        return self._reading.back(away_s, self._clock.now())

    def _read(self, name: str, data: bytes, url: str) -> T:
        try:
            return self._readers[name](data)
        except BadAnswer as error:
            raise InternalError(
                f"{url} sent something this version can't read: {error}",
                hint="Client and server may be of different versions; compare `lattice --version`.",
            ) from None

    def lost(self, why: str, url: str) -> Iterable[T]:
        """The connection failed or broke; raises when it is time to give up."""
        return self._again(unreachable(url, why), why)

    def refused(self, error: LatticeError) -> Iterable[T]:
        """The server refused; raises its error unless a retry may help."""
        if not self._running or not isinstance(error, (Unavailable, RateLimited)):
            raise error
        return self._again(error, error.message)

    def _again(self, error: LatticeError, why: str) -> Iterable[T]:
        now = self._clock.monotonic()
        self._tries += 1
        self.pause_s = _PAUSES_S[min(self._tries, len(_PAUSES_S)) - 1]
        if isinstance(error, RateLimited) and error.retry_after_s is not None:
            self.pause_s = max(self.pause_s, float(error.retry_after_s))
        if not self._running and not self._call.answered:
            if self._tries >= self._first_tries:
                raise error
            return ()
        if self._lost_at is None:
            self._lost_at = now
            return self._reading.lost(why, self._clock.now())
        if now - self._lost_at > self._call.patience_s:
            raise error
        return ()


class RecordStream(Generic[T]):
    """Iterate over it; used with `with`, it closes the connection at the end of the block."""

    def __init__(self, course: StreamReconnect[T], records: Generator[T, None, None]) -> None:
        self._course = course
        self._records = records

    @property
    def cursor(self) -> str:
        """Where to continue after the records that were taken; empty at the beginning."""
        return self._course.cursor

    def close(self) -> None:
        """Close the connection."""
        self._records.close()

    def __iter__(self) -> Self:
        return self

    def __next__(self) -> T:
        return next(self._records)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


class AsyncRecordStream(Generic[T]):
    """The same for `async for` and `async with`."""

    def __init__(self, course: StreamReconnect[T], records: AsyncGenerator[T, None]) -> None:
        self._course = course
        self._records = records

    @property
    def cursor(self) -> str:
        """Where to continue after the records that were taken; empty at the beginning."""
        return self._course.cursor

    async def close(self) -> None:
        """Close the connection."""
        await self._records.aclose()

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> T:
        return await anext(self._records)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()
