"""Fetches the bytes of one thing, piece by piece, and resumes after a disconnect."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Iterator

from lattice.base.call import BytesCall
from lattice.base.clock import Clock, SystemClock
from lattice.base.errors import RateLimited, Unavailable
from lattice.client.answers import unreachable

_PAUSE_S = 1.0

Open = Callable[[BytesCall], Iterator[tuple[int | None, bytes]]]
AsyncOpen = Callable[[BytesCall], AsyncIterator[tuple[int | None, bytes]]]


class _Progress:
    """The offset, and how long nothing has come. No I/O."""

    def __init__(self, call: BytesCall, clock: Clock) -> None:
        self._call = call
        self._clock = clock
        self._alive_at = clock.monotonic()
        self.offset = int(dict(call.params).get("offset", "0"))
        self.end: int | None = None

    @property
    def request(self) -> BytesCall:
        return self._call.from_offset(self.offset)

    def came(self, end: int | None, piece: bytes) -> None:
        self.end = end
        self.offset += len(piece)
        self._alive_at = self._clock.monotonic()

    def failed(self, error: OSError | Unavailable | RateLimited) -> float:
        """How long to wait; raises when it is time to give up."""
        after_s = error.retry_after_s if isinstance(error, RateLimited) else 0
        if after_s is None or self._clock.monotonic() - self._alive_at > self._call.patience_s:
            if isinstance(error, OSError):
                raise unreachable("the server", error.strerror or str(error)) from None
            raise error
        return max(_PAUSE_S, float(after_s))


class ByteStream:
    """Iterate over it for the bytes; `end` is their end as far as the server has it."""

    def __init__(
        self,
        call: BytesCall,
        pieces: Open,
        *,
        sleep: Callable[[float], None],
        clock: Clock | None = None,
    ) -> None:
        self._progress = _Progress(call, clock or SystemClock())
        self._pieces = pieces
        self._sleep = sleep

    @property
    def end(self) -> int | None:
        """The offset of the end, known once something has come."""
        return self._progress.end

    def __iter__(self) -> Iterator[bytes]:
        while True:
            try:
                for end, piece in self._pieces(self._progress.request):
                    self._progress.came(end, piece)
                    if piece:
                        yield piece
            except (OSError, Unavailable, RateLimited) as error:
                pause_s = self._progress.failed(error)
            else:
                return
            self._sleep(pause_s)


class AsyncByteStream:
    """The same for `async for`."""

    def __init__(
        self,
        call: BytesCall,
        pieces: AsyncOpen,
        *,
        sleep: Callable[[float], Awaitable[None]],
        clock: Clock | None = None,
    ) -> None:
        self._progress = _Progress(call, clock or SystemClock())
        self._pieces = pieces
        self._sleep = sleep

    @property
    def end(self) -> int | None:
        """The offset of the end, known once something has come."""
        return self._progress.end

    async def __aiter__(self) -> AsyncIterator[bytes]:
        while True:
            try:
                async for end, piece in self._pieces(self._progress.request):
                    self._progress.came(end, piece)
                    if piece:
                        yield piece
            except (OSError, Unavailable, RateLimited) as error:
                pause_s = self._progress.failed(error)
            else:
                return
            await self._sleep(pause_s)
