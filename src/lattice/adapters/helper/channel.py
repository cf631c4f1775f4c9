"""Sends one request to the helper's unix socket and reads its answer. Asynchronous, with timeouts.

A connection serves one request and is then closed. Descriptors go both ways. If a grant is not
valid by the helper's clock, the helper gets the servers' time and the request is sent once more.
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


class HelperReply(Protocol):
    """Gives a helper the servers' time."""

    async def send_time(self) -> str:
        """Set the helper's clock with a server's signature; return why that failed, or ""."""

    def message(self, why: str) -> str:
        """The message for a caller with a grant that the helper's clock refuses."""


class HelperChannel:
    """Reaches one helper. `timeout_s` must exceed the helper's own timeout."""

    def __init__(
        self, path: Path, *, timeout_s: float = 45.0, telling: HelperReply | None = None
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
        """The answer and its descriptors, which the caller must close.

        Otherwise as `ask_written`.
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
        """The same for an already encoded request that includes its grant.

        At most `most_descriptors` may come; with more, all are closed and `OSError` is raised.

        Raises `Unavailable` before the request was sent, and `TimeoutError` or `OSError` after.
        """
        answer, passed = await self._asked_once(body, descriptors, most_descriptors)
        if answer.outcome is not Outcome.UNTIMELY or self._telling is None:
            return answer, passed
        if why := await self._telling.send_time():
            return replace(answer, message=self._telling.message(why)), passed
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
        # An empty socket accepts one limited packet at once.
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
