"""Gives a server the chunks of a recording whose session is over, and ends that recording.

A recorder that was killed leaves chunks that are durable on this node only. The server asks for
them, stores them, closes the recording and says so. Then they are removed here. If one can't be
read, the server gets those before it, and asks again later: nothing is removed.
"""

from __future__ import annotations

import asyncio
import logging
from pathlib import Path

from lattice.domain.stream import Session, is_session
from lattice.features.attach.node.chunk_files import durable_chunks
from lattice.features.attach.node.recorded import RecordedTerminals
from lattice.features.attach.recording_frames import LeftoverMessage

_log = logging.getLogger(__name__)


class Leftovers:
    """The port `Serve` for `StreamKind.RECORDINGS`."""

    def __init__(self, terminals: RecordedTerminals, folder: Path) -> None:
        self._terminals = terminals
        self._folder = folder

    async def __call__(self, session: Session, opening: bytes) -> None:
        name, _, reason = opening.decode("ascii", "replace").partition(" ")
        if is_session(name):
            await self._terminals.finish(name, reason)
            if not await self._send_chunks(session, name):
                await session.send(bytes((LeftoverMessage.UNREADABLE,)), last=True)
                return
        await session.send(bytes((LeftoverMessage.DONE,)), last=True)
        while (message := await session.receive()) is not None:
            if message[:1] == bytes((LeftoverMessage.CLOSED,)) and is_session(name):
                await asyncio.to_thread(self._terminals.remove, name)

    async def _send_chunks(self, session: Session, name: str) -> bool:
        """Send them one by one, since all of them may be large; False if one can't be read."""
        chunks = durable_chunks(self._folder / name)
        try:
            while (chunk := await asyncio.to_thread(next, chunks, None)) is not None:
                await session.send(bytes((LeftoverMessage.CHUNK,)) + chunk)
        except FileNotFoundError:
            # There is no such recording here.
            pass
        except (OSError, ValueError) as error:
            _log.error("recording %s can't be read: %s", name, error)
            return False
        return True
