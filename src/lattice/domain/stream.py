"""Ports for a stream between a person and a node.

A stream is a session: two pipe ends (`lattice.domain.pipe`) that outlive the connections between
them. A `Carrier` is one such connection, seen from one side. Server features ask `NodeStreams` for
a carrier to a node; node features answer a session with a `Serve`.
"""

from __future__ import annotations

import hashlib
import re
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass
from enum import StrEnum
from typing import Protocol

from lattice.domain.grant import Act

LARGEST_OPENING_BYTES = 16 * 1024
_SESSION = re.compile(r"[0-9a-f]{32}", re.ASCII)


class Lane(StrEnum):
    """Each lane has its own connection, so that typing does not wait behind a bulk transfer."""

    INTERACTIVE = "interactive"
    BULK = "bulk"


class StreamKind(StrEnum):
    """The kinds of streams of a node. Each needs a grant of its `act`."""

    ECHO = "echo"
    LOGS = "logs"
    ATTACH = "attach"
    METRICS = "metrics"
    FACTS = "facts"
    STACKS = "stacks"
    RECORDINGS = "recordings"

    @property
    def act(self) -> Act:
        return _ACTS[self]


_ACTS = {
    StreamKind.ECHO: Act.ECHO,
    StreamKind.LOGS: Act.READ_OUTPUT,
    StreamKind.ATTACH: Act.ATTACH,
    StreamKind.METRICS: Act.READ_METRICS,
    StreamKind.FACTS: Act.READ_FACTS,
    StreamKind.STACKS: Act.DUMP_STACKS,
    StreamKind.RECORDINGS: Act.CLOSE_RECORDING,
}


class CarrierLost(Exception):
    """The connection is lost; the session may continue over another."""


class Carrier(Protocol):
    """One connection that carries frames both ways, whole and in order, until it is lost."""

    async def send(self, frame: bytes) -> None:
        """Send a frame; waits while the other side is slow. Raises `CarrierLost`."""

    async def receive(self) -> bytes | memoryview:
        """The next frame. Raises `CarrierLost`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StreamQuestion:
    """A request to an agent to serve a session, or to continue one."""

    node: str
    kind: StreamKind
    session: str
    """32 hex digits from the caller: it names the session and gives no access by itself."""
    opening: bytes
    grant: str
    resume: bool = False
    lane: Lane = Lane.INTERACTIVE
    shared: bool = False
    """True if many nodes are asked at once: the stream shares a connection, if one is open."""
    patience_s: float = 5.0
    """How long the node may take until it answers."""


class NodeStreams(Protocol):
    """Reaches any node through the replica that it is linked to."""

    def open(self, question: StreamQuestion) -> AbstractAsyncContextManager[Carrier]:
        """A carrier to the node. Raises `Unavailable` with the reason if there is no route now."""

    def linked_to(self, node: str) -> str:
        """The id of the replica that holds the node's link; empty if unknown."""


class Session(Protocol):
    """A node's end of a session, as a feature sees it."""

    async def send(self, payload: bytes, *, last: bool = False) -> None:
        """Write a message; waits while the reader is slow or disconnected."""

    def try_send(self, payload: bytes) -> bool:
        """Write a message if there is room at once; False if not, or if the session is over."""

    async def receive(self) -> bytes | None:
        """The next message; None after the other end's last one."""


class PassOn(Protocol):
    """A node feature with another process as its end of the session: frames pass unread."""

    def __call__(
        self, session: str, opening: bytes, *, resume: bool
    ) -> AbstractAsyncContextManager[Carrier]:
        """A carrier to that process. Raises errors of `lattice.base.errors` for the caller."""


class Serve(Protocol):
    """A node feature's handler of one session: returns at its end."""

    async def __call__(self, session: Session, opening: bytes) -> None: ...


def is_session(text: str) -> bool:
    return _SESSION.fullmatch(text) is not None


def digest_of(session: str, kind: StreamKind, opening: bytes) -> str:
    """The digest that binds a grant for a stream to this question."""
    return hashlib.sha256(f"{session}\n{kind.value}\n".encode() + opening).hexdigest()
