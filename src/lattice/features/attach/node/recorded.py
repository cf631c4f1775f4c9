"""The recorded terminals of a node: each begins with its first connection, and may get others.

While no client is connected, the connection to the holder stays. If the recording stops, that
connection is closed, and the holder ends the program soon after.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator
from contextlib import AbstractAsyncContextManager, asynccontextmanager, suppress
from pathlib import Path
from typing import Protocol

from lattice.base.clock import Clock
from lattice.base.errors import LatticeError, NotFound, PermissionRefused, Unavailable
from lattice.domain.grant import BadGrant, Grant, read_payload, read_written
from lattice.domain.privileged import (
    BadQuestion,
    EnterSigned,
    RejoinSigned,
    read_request,
)
from lattice.domain.sealed import DataKey
from lattice.domain.stream import Carrier
from lattice.features.attach.node.chunk_files import ChunkFiles, remove_abandoned
from lattice.features.attach.node.recorded_terminal import NearCarrier, RecordedTerminal
from lattice.features.attach.node.recorder import IMPOSSIBLE
from lattice.features.attach.recording_frames import (
    BadRecordingFrame,
    RecordingOrder,
    read_opening,
)

_log = logging.getLogger(__name__)

_KEY_S = 5.0


class HolderTerminals(Protocol):
    """Opens terminals in jobs."""

    def open(self, request: bytes, *, resume: bool) -> AbstractAsyncContextManager[Carrier]:
        """A carrier to the holder. Raises errors of `lattice.base.errors`."""


class NodeKeys(Protocol):
    """The data keys of sensitive work, for this node."""

    async def key_for(self, allocation: str, job_id: int, started: float, /) -> DataKey | None:
        """The key of an allocation whose run began then, by the clock of the servers.

        A server is asked for one that is not here: where a job writes no output it never is. None
        if the run is not of that allocation. Raises errors of `lattice.base.errors`.
        """


class RecordedTerminals:
    """The recorded terminals of this node. It lasts as long as the agent."""

    def __init__(
        self,
        terminals: HolderTerminals,
        keys: NodeKeys,
        folder: Path,
        node: str,
        clock: Clock,
    ) -> None:
        """`folder` has a folder for each recording."""
        self._terminals = terminals
        self._keys = keys
        self._folder = folder
        self._node = node
        self._clock = clock
        self._open: dict[str, RecordedTerminal] = {}

    @asynccontextmanager
    async def connect(
        self, session: str, opening: bytes, *, resume: bool
    ) -> AsyncIterator[Carrier]:
        """The node's end of a session with a recording. Raises errors of `lattice.base.errors`."""
        try:
            order, request = read_opening(opening)
            written, _, question = read_request(request)
            grant = read_payload(read_written(written)[1])
        except (BadRecordingFrame, BadQuestion, BadGrant) as fault:
            raise PermissionRefused(f"The question can't be asked: {fault}.") from None
        wanted = RejoinSigned if resume else EnterSigned
        if order is None or not isinstance(question, wanted):
            raise PermissionRefused("The question is not one for a recorded terminal.")
        if not session == question.session == order.session:
            raise PermissionRefused("The question is not this session's.")
        terminal = self._open.get(session)
        if isinstance(question, EnterSigned):
            if terminal is not None:
                raise PermissionRefused("A session of that name exists.")
            # The helper verifies the grant. Here it only says for which run to ask for a key.
            terminal = await self._begun(order, grant)
        elif terminal is None or terminal.is_ended:
            raise NotFound("The recording of this session has ended, and the session with it.")
        near = NearCarrier(terminal)
        try:
            async with self._terminals.open(request, resume=resume) as far:
                terminal.connect(near, far)
                yield near
                await terminal.leave(near)
        finally:
            # A newer connection, which cancels this one, has its own to the holder.
            if not terminal.detach(near) and not terminal.was_connected:
                # Nothing ever ran.
                await terminal.abandon()

    async def finish(self, session: str, reason: str) -> None:
        """The session is over: end its recording, if it still goes on."""
        terminal = self._open.get(session)
        if terminal is not None:
            await terminal.finish(reason)

    def remove(self, session: str) -> None:
        """A server has stored all that is durable here. Blocks."""
        ChunkFiles(self._folder / session).remove()

    async def aclose(self) -> None:
        """End all of them: without an agent there is no recording."""
        for each in list(self._open.values()):
            each.stop("the agent stops")
        await asyncio.gather(*(each.wait() for each in list(self._open.values())))

    async def _begun(self, order: RecordingOrder, grant: Grant) -> RecordedTerminal:
        key = await self._key(order, grant)
        files = ChunkFiles(self._folder / order.session)
        try:
            now_s, going_on = self._clock.now().timestamp(), frozenset(self._open)
            for session in await asyncio.to_thread(remove_abandoned, self._folder, now_s, going_on):
                _log.warning("the recording %s is removed: no server asked for it", session)
            await asyncio.to_thread(files.begin, order)
        except OSError as error:
            why = error.strerror or str(error)
            raise Unavailable(f"{IMPOSSIBLE}: {why.lower()} on {self._node}") from None
        terminal = RecordedTerminal(
            order, key, files, self._node, self._clock, lambda: self._open.pop(order.session, None)
        )
        self._open[order.session] = terminal
        return terminal

    async def _key(self, order: RecordingOrder, grant: Grant) -> DataKey:
        """Raises `Unavailable`."""
        key = None
        with suppress(LatticeError, TimeoutError):
            async with asyncio.timeout(_KEY_S):
                key = await self._keys.key_for(order.allocation, grant.job_id, grant.started)
        if key is None:
            raise Unavailable(
                f"{IMPOSSIBLE}: the key of this job is not on {self._node}",
                hint="Try again in a minute: no server gave it to the node now.",
            )
        return key
