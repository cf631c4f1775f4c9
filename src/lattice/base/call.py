"""A call to the server, described but not made.

Each feature's `operations.py` turns its verbs into calls, and the SDK makes them. The asynchronous
and the blocking client use the same calls, so a verb is written once.

These are named tuples and not dataclasses, because a person waits while the CLI loads them. Loading
dataclasses takes a tenth of the time that a whole command may take.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from datetime import datetime
from typing import TYPE_CHECKING, Generic, NamedTuple, Protocol, TypeVar

if TYPE_CHECKING:
    from lattice.base.events import StreamReader

T = TypeVar("T")

IDEMPOTENCY_KEY = "Idempotency-Key"
KEY_OPTIONAL = "Lattice-Key-Optional"
"""The header of an act with a key that the caller did not give. Without a state store the server
carries out such an act all the same.
"""
REPEATED = "Lattice-Repeated"
"""The header of a request that was sent before and may have been carried out then."""


class Call(NamedTuple, Generic[T]):
    """One request. The answer is JSON that decodes into the dataclass `answer`."""

    method: str
    path: str
    answer: type[T]
    params: tuple[tuple[str, str], ...] = ()
    body: bytes | None = None
    """A JSON document."""
    headers: tuple[tuple[str, str], ...] = ()
    timeout_s: float | None = None
    """Set where an answer may take longer than usual."""
    patience_s: float = 0.0
    """How long to wait out refusals that name a time to wait."""
    parts: Parts[T] | None = None
    """Set where an answer may come in parts."""
    idempotent: bool = False
    """An act that has the same effect when it is carried out twice."""
    takes_key: bool = False
    """An act that the server carries out once for one idempotency key."""
    anonymous: bool = False
    """It sends no token and needs none."""
    rpc: str = ""
    """The operation, for those who carry it out themselves."""
    request: object = None
    """The request of that operation, before it became path and parameters."""

    @property
    def key(self) -> str:
        """The idempotency key, or an empty text."""
        return dict(self.headers).get(IDEMPOTENCY_KEY, "")

    @property
    def repeatable(self) -> bool:
        """True if a repeated request has the effect of one."""
        return self.method == "GET" or self.idempotent or bool(self.key)

    def with_header(self, name: str, value: str) -> Call[T]:
        return self._replace(headers=(*self.headers, (name, value)))


class Parts(Protocol[T]):
    """Completes an answer that came in part. No I/O."""

    def rest(self, call: Call[T], answer: T) -> Call[T] | None:
        """The next request, given all parts so far; None once the answer is complete."""

    def joined(self, answer: T, part: T) -> T:
        """Join both into one answer."""


class StreamInterpreter(Protocol[T]):
    """Interprets the records of a stream, which is the feature's part of following one. No I/O."""

    def record(self, record: T) -> Iterable[T]:
        """What to pass on for a record."""

    def alive(self, now: datetime) -> Iterable[T]:
        """What to pass on for a sign of life."""

    def lost(self, why: str, now: datetime) -> Iterable[T]:
        """What to report when the connection is lost and will be made again."""

    def back(self, away_s: float, now: datetime) -> Iterable[T]:
        """What to report when the connection is back."""


class StreamFormat(NamedTuple):
    """A form of a stream besides server-sent events."""

    media_type: str
    reader: Callable[[], StreamReader]
    """Makes the reader of one connection."""
    parameters: str = ""
    """Of the media type, for servers that know them: `;zstd=1`."""
    simpler: StreamFormat | None = None
    """The form to ask for after this one could not be read; None: server-sent events."""


class StreamCall(NamedTuple, Generic[T]):
    """A request that is answered with a stream of records, and that resumes after a disconnect.

    Each record comes as an event. The name of the event selects one of the `kinds`; other names are
    ignored. To resume, the last id is sent as the parameter `cursor`.
    """

    path: str
    kinds: Mapping[str, type[T]]
    reading: Callable[[], StreamInterpreter[T]]
    params: tuple[tuple[str, str], ...] = ()
    beginning: tuple[str, ...] = ()
    """Parameters that set the start. They mean nothing once there is a cursor."""
    silence_s: float = 15.0
    """After so long without any byte the connection counts as lost."""
    patience_s: float = 900.0
    """How long to try to reconnect."""
    answered: bool = False
    """A server has just answered. If none can be reached when the stream begins, retry."""
    binary: StreamFormat | None = None
    """A cheaper form, for servers that offer it."""
    rpc: str = ""
    request: object = None
    """Both as in `Call`."""

    @property
    def accept(self) -> str:
        """The media types that the answer may have, the best first."""
        events = "text/event-stream"
        binary = self.binary
        return f"{binary.media_type}{binary.parameters}, {events}" if binary else events

    def from_cursor(self, cursor: str) -> StreamCall[T]:
        """A copy that continues from the cursor."""
        remaining = tuple(pair for pair in self.params if pair[0] not in self.beginning)
        return self._replace(params=_with(remaining, "cursor", cursor))


class BytesCall(NamedTuple):
    """A request for the bytes of one thing, from the parameter `offset` on."""

    path: str
    params: tuple[tuple[str, str], ...] = ()
    silence_s: float = 30.0
    patience_s: float = 120.0

    def from_offset(self, offset: int) -> BytesCall:
        """A copy that begins at the offset."""
        return self._replace(params=_with(self.params, "offset", str(offset)))


class TerminalCall(NamedTuple):
    """A request for a terminal, or for a program with pipes if the caller has no terminal."""

    path: str
    node: str = ""
    """Empty: the server chooses."""
    rank: int | None = None
    command: tuple[str, ...] = ()
    """Empty: the login shell."""
    tools: str = ""
    """The path of an image to mount for the session."""


def _with(pairs: tuple[tuple[str, str], ...], name: str, value: str) -> tuple[tuple[str, str], ...]:
    others = tuple(pair for pair in pairs if pair[0] != name)
    return (*others, (name, value))


def params(**values: str | int | bool | tuple[str, ...] | None) -> tuple[tuple[str, str], ...]:
    """Query parameters. `None`, empty and False are left out; a tuple repeats its name."""
    pairs: list[tuple[str, str]] = []
    for name, value in values.items():
        if value is None or value is False or value in {"", ()}:
            continue
        if isinstance(value, tuple):
            pairs.extend((name, each) for each in value)
        else:
            pairs.append((name, "true" if value is True else str(value)))
    return tuple(pairs)
