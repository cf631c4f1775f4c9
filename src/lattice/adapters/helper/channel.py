"""One question to the helper on its unix socket, and its answer. Asynchronous, bounded in time.

A connection serves one question; there is nothing to keep. Descriptors go both ways. A grant that
is not valid by the helper's clock is brought once more after the helper was told the time.
"""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Protocol

from lattice.base import packet
from lattice.base.errors import Unavailable, UsageError
from lattice.domain.privileged import (
    Answer,
    BadQuestion,
    Outcome,
    Question,
    read_answer,
    write_request,
)

_CONNECT_S = 3.0


class Telling(Protocol):
    """Tells a helper the servers' time."""

    async def tell(self) -> str:
        """Have a server sign and the helper believe; why that can't be, or an empty text."""

    def words(self, why: str) -> str:
        """What a caller hears whose grant the helper's clock refuses, if it can't be told."""


class HelperChannel:
    """Reaches one helper. `timeout_s` is longer than the helper's own patience."""

    def __init__(
        self, path: Path, *, timeout_s: float = 45.0, telling: Telling | None = None
    ) -> None:
        self._path = path
        self._timeout_s = timeout_s
        self._telling = telling

    async def ask(
        self,
        grant: str,
        question: Question,
        descriptors: Sequence[int] = (),
        *,
        most_descriptors: int = packet.MOST_DESCRIPTORS,
    ) -> tuple[Answer, list[int]]:
        """The answer and what came with it, which is the caller's to close.

        As `ask_written` in all else.
        """
        body = write_request(grant, question)
        return await self.ask_written(body, descriptors, most_descriptors=most_descriptors)

    async def ask_written(
        self,
        body: bytes,
        descriptors: Sequence[int] = (),
        *,
        most_descriptors: int = packet.MOST_DESCRIPTORS,
    ) -> tuple[Answer, list[int]]:
        """The same for a question that another has written, with its grant in it.

        No more than `most_descriptors` may come; with more, all are closed and it is an `OSError`.

        Raises `Unavailable` before the question was sent, and `TimeoutError` or `OSError` after.
        """
        answer, passed = await self._asked_once(body, descriptors, most_descriptors)
        if answer.outcome is not Outcome.UNTIMELY or self._telling is None:
            return answer, passed
        if why := await self._telling.tell():
            return replace(answer, message=self._telling.words(why)), passed
        packet.close_all(passed)
        return await self._asked_once(body, descriptors, most_descriptors)

    async def _asked_once(
        self, body: bytes, descriptors: Sequence[int], most_descriptors: int
    ) -> tuple[Answer, list[int]]:
        with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as connection:
            connection.setblocking(False)
            try:
                await self._send(connection, body, descriptors)
            except packet.BadPacket:
                raise UsageError(
                    "All words together are too long.", hint="Put some of them into the script."
                ) from None
            except (OSError, TimeoutError) as error:
                reason = getattr(error, "strerror", None) or "no answer"
                raise Unavailable(
                    f"lattice-helper does not answer: {reason}.",
                    hint="An administrator starts it again.",
                ) from None
            async with asyncio.timeout(self._timeout_s):
                await _readable(connection)
            try:
                raw, passed = packet.receive(connection, most_descriptors=most_descriptors)
            except packet.BadPacket:
                raise OSError("the answer is too large") from None
        if not raw:
            packet.close_all(passed)
            raise OSError("it ended without an answer")
        try:
            return read_answer(raw), passed
        except BadQuestion as error:
            packet.close_all(passed)
            raise OSError(f"the answer can't be read: {error}") from None

    async def _send(
        self, connection: socket.socket, body: bytes, descriptors: Sequence[int]
    ) -> None:
        loop = asyncio.get_running_loop()
        async with asyncio.timeout(_CONNECT_S):
            await loop.sock_connect(connection, str(self._path))
        # An empty socket takes one bounded packet at once.
        packet.send(connection, body, descriptors)


async def _readable(connection: socket.socket) -> None:
    loop = asyncio.get_running_loop()
    ready = loop.create_future()

    def arrived() -> None:
        if not ready.done():
            ready.set_result(None)

    loop.add_reader(connection, arrived)
    try:
        await ready
    finally:
        loop.remove_reader(connection)
