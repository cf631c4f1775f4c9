"""A followed stream: records one by one, and the cursor to continue from. For both clients."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Generator
from types import TracebackType
from typing import Generic, Self, TypeVar

from lattice.client.reconnect import StreamReconnect

T = TypeVar("T")


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

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
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

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        await self.close()
