"""A call to the server, described but not made.

Each feature's `api.py` turns its verbs into calls; the SDK makes them, through its asynchronous
or its blocking door. So a verb is written once, and neither door can drift from the other.

Named tuples, where all else is dataclasses: whoever waits for a prompt waits for these to load,
and dataclasses load a tenth of what a whole command may take.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from datetime import datetime
from typing import Generic, NamedTuple, Protocol, TypeVar

T = TypeVar("T")

IDEMPOTENCY_KEY = "Idempotency-Key"
KEY_OPTIONAL = "Lattice-Key-Optional"
"""The header of an act whose key nobody asked for: without agreed state it is done all the same."""
REPEATED = "Lattice-Repeated"
"""The header of a request that was sent before and may have been carried out then."""


class Call(NamedTuple, Generic[T]):
    """One request: its answer is JSON that reads as the dataclass `answer`."""

    method: str
    path: str
    answer: type[T]
    params: tuple[tuple[str, str], ...] = ()
    body: bytes | None = None
    """A JSON document."""
    headers: tuple[tuple[str, str], ...] = ()
    timeout_s: float | None = None
    """Where an answer may take longer than others."""
    patience_s: float = 0.0
    """How long refusals that name a time to wait are waited out."""
    parts: Parts[T] | None = None
    """Where an answer may come in parts."""
    idempotent: bool = False
    """An act that has the same effect when it is carried out twice."""
    takes_key: bool = False
    """An act that the server carries out once for one idempotency key."""

    @property
    def key(self) -> str:
        """Its idempotency key, or nothing."""
        return dict(self.headers).get(IDEMPOTENCY_KEY, "")

    @property
    def repeatable(self) -> bool:
        """True if asking twice is the same as asking once."""
        return self.method == "GET" or self.idempotent or bool(self.key)

    def with_header(self, name: str, value: str) -> Call[T]:
        """The same with one header more."""
        return self._replace(headers=(*self.headers, (name, value)))


class Parts(Protocol[T]):
    """How an answer that came in part is completed. No I/O."""

    def rest(self, call: Call[T], answer: T) -> Call[T] | None:
        """What to ask for next, given all that came; None once the answer is whole."""

    def joined(self, answer: T, part: T) -> T:
        """Both as one answer."""


class Reading(Protocol[T]):
    """What the records of a stream mean: the feature's own part of following one. No I/O."""

    def record(self, record: T) -> Iterable[T]:
        """What to pass on of a record that came."""

    def alive(self, now: datetime) -> Iterable[T]:
        """What to pass on of a sign of life."""

    def lost(self, why: str, now: datetime) -> Iterable[T]:
        """What to tell when the connection is gone and is to be made anew."""

    def back(self, away_s: float, now: datetime) -> Iterable[T]:
        """What to tell when it is there again."""


class StreamCall(NamedTuple, Generic[T]):
    """A request whose answer is a stream of records, which goes on where it broke off.

    Each comes as an event, whose name says which of the `kinds` its JSON reads as; other names
    are passed over. The last id seen, as parameter `cursor`, is where to go on.
    """

    path: str
    kinds: Mapping[str, type[T]]
    reading: Callable[[], Reading[T]]
    params: tuple[tuple[str, str], ...] = ()
    beginning: tuple[str, ...] = ()
    """Parameters that say where to begin, and so mean nothing once there is a cursor."""
    silence_s: float = 15.0
    """How long nothing at all may come before the connection counts as lost."""
    patience_s: float = 900.0
    """How long it is tried to get it back."""
    answered: bool = False
    """A server has just answered: if none can be reached when the stream begins, that will pass."""

    def from_cursor(self, cursor: str) -> StreamCall[T]:
        """The same from there on."""
        kept = tuple(pair for pair in self.params if pair[0] not in self.beginning)
        return self._replace(params=_with(kept, "cursor", cursor))


class BytesCall(NamedTuple):
    """A request for the bytes of one thing, from the parameter `offset` on."""

    path: str
    params: tuple[tuple[str, str], ...] = ()
    silence_s: float = 30.0
    patience_s: float = 120.0

    def from_offset(self, offset: int) -> BytesCall:
        """The same from there on."""
        return self._replace(params=_with(self.params, "offset", str(offset)))


class TerminalCall(NamedTuple):
    """A request for a terminal, or for a program with pipes where its caller has no terminal."""

    path: str
    node: str = ""
    """Empty: the server's choice."""
    rank: int | None = None
    command: tuple[str, ...] = ()
    """Empty: the login shell."""
    tools: str = ""
    """The path of an image to mount for it."""


def _with(pairs: tuple[tuple[str, str], ...], name: str, value: str) -> tuple[tuple[str, str], ...]:
    kept = tuple(pair for pair in pairs if pair[0] != name)
    return (*kept, (name, value))


def params(**values: str | int | bool | tuple[str, ...] | None) -> tuple[tuple[str, str], ...]:
    """Query parameters: `None`, empty and False are left out, tuples repeat their name."""
    pairs: list[tuple[str, str]] = []
    for name, value in values.items():
        if value is None or value is False or value in {"", ()}:
            continue
        if isinstance(value, tuple):
            pairs.extend((name, each) for each in value)
        else:
            pairs.append((name, "true" if value is True else str(value)))
    return tuple(pairs)
