"""The feed of a simulated node: what its job writes is made up, what the node sends is not."""

from __future__ import annotations

import json
from dataclasses import dataclass, field

from lattice.domain.stream import Session
from lattice.wire.v1 import logs_pb2 as pb

JOB = 42
OWNER = "alice"
PUSH_BYTES = 48 * 1024


@dataclass
class LogFile:
    """What one rank has written."""

    source: str
    text: bytearray = field(default_factory=bytearray)
    times: list[tuple[int, int]] = field(default_factory=list)
    """Up to which offset, at what time in milliseconds."""

    def write(self, text: bytes, time_ms: int) -> list[pb.FeedText]:
        """Append it; the messages that a server is sent for it."""
        offset, line = len(self.text), self.text.count(b"\n")
        self.text += text
        self.times.append((len(self.text), time_ms))
        pushed = []
        for begin in range(0, len(text), PUSH_BYTES):
            piece = pb.FeedPiece(
                offset=offset + begin,
                line=line + text.count(b"\n", 0, begin),
                time_ms=time_ms,
                text=text[begin : begin + PUSH_BYTES],
            )
            pushed.append(pb.FeedText(kind="stdout", source=self.source, pieces=[piece]))
        return pushed

    def piece(self, begin: int) -> pb.FeedPiece:
        """What stands from an offset on, as much as one message has."""
        text = bytes(self.text[begin : begin + PUSH_BYTES])
        time_ms = next((at for end, at in self.times if end > begin), 0)
        return pb.FeedPiece(
            offset=begin, line=self.text.count(b"\n", 0, begin), time_ms=time_ms, text=text
        )


class LogFeed:
    """One server's session with a node."""

    def __init__(
        self, session: Session, opening: bytes, files: list[LogFile], job: int = JOB
    ) -> None:
        assert json.loads(opening)["job_id"] == job
        self._session = session
        self._files = files

    async def report(self) -> None:
        """Send which files there are."""
        streams = [
            pb.FeedStream(
                kind="stdout",
                source=each.source,
                path=f"/home/{OWNER}/out.{each.source}",
                offset=len(each.text),
                line=each.text.count(b"\n"),
            )
            for each in self._files
        ]
        await self._send(pb.FeedTell(streams=pb.FeedStreams(streams=streams)))

    async def push(self, texts: list[pb.FeedText]) -> None:
        """Send what was just written."""
        for each in texts:
            await self._send(pb.FeedTell(pushed=each))

    async def answer(self) -> None:
        """Send what the server asks for, until it ends the session."""
        while (message := await self._session.receive()) is not None:
            ask = pb.FeedAsk.FromString(bytes(message))
            if ask.takes_frames:
                continue
            file = next(each for each in self._files if each.source == ask.source)
            piece = file.piece(ask.offset)
            text = pb.FeedText(id=ask.id, kind=ask.kind, source=ask.source, pieces=[piece])
            await self._send(pb.FeedTell(fetched=text))

    async def _send(self, message: pb.FeedTell) -> None:
        await self._session.send(message.SerializeToString())
