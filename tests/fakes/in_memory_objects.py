"""An object store in memory, for tests of what stands on the port. Passes its contract suite.

What is read is counted, so that a test can tell what an answer cost.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from datetime import datetime

from lattice.base.clock import Clock
from lattice.base.errors import Unavailable
from lattice.domain.objects import NoObject, ObjectInfo, check_key, check_prefix


class InMemoryObjectStore:
    """`away`: nothing answers. `lost_answers`: that many puts happen, and nobody hears of them."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._objects: dict[str, tuple[bytes, datetime]] = {}
        self.away = False
        self.lost_answers = 0
        self.reads = 0
        self.read_bytes = 0
        self.puts = 0

    async def put_new(self, key: str, body: bytes) -> bool:
        check_key(key)
        self._answer()
        if key in self._objects:
            return False
        self._write(key, body)
        return True

    async def put(self, key: str, body: bytes) -> None:
        check_key(key)
        self._answer()
        self._write(key, body)

    async def read(self, key: str, begin: int = 0, end: int | None = None) -> bytes:
        body = self._body(key)
        return self._count(body[begin : len(body) if end is None else max(begin, end)])

    async def read_end(self, key: str, most_bytes: int) -> tuple[bytes, int]:
        body = self._body(key)
        return self._count(body[max(0, len(body) - max(0, most_bytes)) :]), len(body)

    async def listing(self, prefix: str, *, after: str = "") -> AsyncIterator[ObjectInfo]:
        check_prefix(prefix)
        check_prefix(after)
        self._answer()
        for key in sorted(self._objects):
            if key.startswith(prefix) and key > after and key in self._objects:
                body, modified = self._objects[key]
                yield ObjectInfo(key, len(body), modified)

    async def folders(self, prefix: str) -> tuple[str, ...]:
        check_prefix(prefix)
        self._answer()
        below = (key[len(prefix) :] for key in self._objects if key.startswith(prefix))
        return tuple(sorted({f"{prefix}{key.split('/')[0]}/" for key in below if "/" in key}))

    async def delete(self, key: str) -> None:
        check_key(key)
        self._answer()
        self._objects.pop(key, None)

    def _body(self, key: str) -> bytes:
        check_key(key)
        self._answer()
        if key not in self._objects:
            raise NoObject(key)
        self.reads += 1
        return self._objects[key][0]

    def _count(self, read: bytes) -> bytes:
        self.read_bytes += len(read)
        return read

    def _write(self, key: str, body: bytes) -> None:
        self._objects[key] = (bytes(body), self._clock.now())
        self.puts += 1
        if self.lost_answers:
            self.lost_answers -= 1
            self._lose()

    def _answer(self) -> None:
        if self.away:
            self._lose()

    def _lose(self) -> None:
        raise Unavailable("The object store did not answer within 10 s.", hint="Look at it.")
