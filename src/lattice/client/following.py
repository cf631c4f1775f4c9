"""A stream that is followed: records one by one, and the place to go on from. For both doors."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Generator
from types import TracebackType
from typing import Generic, Self, TypeVar

from lattice.client.course import Course

T = TypeVar("T")


class Following(Generic[T]):
    """Iterate over it; used with `with`, it hangs up at the end of the block."""

    def __init__(self, course: Course[T], records: Generator[T, None, None]) -> None:
        self._course = course
        self._records = records

    @property
    def cursor(self) -> str:
        """Where to go on after the records that were taken; empty if that is the beginning."""
        return self._course.cursor

    def close(self) -> None:
        """Hang up."""
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


class AsyncFollowing(Generic[T]):
    """The same for `async for` and `async with`."""

    def __init__(self, course: Course[T], records: AsyncGenerator[T, None]) -> None:
        self._course = course
        self._records = records

    @property
    def cursor(self) -> str:
        """Where to go on after the records that were taken; empty if that is the beginning."""
        return self._course.cursor

    async def close(self) -> None:
        """Hang up."""
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
