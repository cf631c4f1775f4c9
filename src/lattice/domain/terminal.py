"""The messages between the two ends of a terminal, as payloads of a pipe. Pure.

One end is the client: a person's terminal or a program. The other is the holder on the node, which
keeps the terminal and the shell alive while no client is connected. Each message is a byte for its
kind, and a body: raw bytes for input and output, JSON for the few facts.

    client    STDIN bytes · EOF · RESIZE rows, columns · SIGNAL name
    holder    STARTED facts · OUTPUT bytes · ERRORS bytes (without a terminal) · EXIT how it ended

The connection between them (permissions, servers, disconnects) is not part of these messages. They
are named tuples for the reason given in `lattice.base.call`.
"""

from __future__ import annotations

import json
import struct
from collections.abc import Callable
from enum import IntEnum, StrEnum
from typing import NamedTuple, TypeAlias, TypeVar

from lattice.base.strictjson import read_fields, read_json

MOST_BYTES = 32 * 1024
"""Of text in one message; more is sent in several."""
LARGEST_SIDE = 4096
"""No terminal has more rows or columns."""
DEFAULT_ROWS, DEFAULT_COLUMNS = 24, 80
_SIDES = struct.Struct("!HH")


class BadMessage(Exception):
    """Not one of these messages, so the other end can't be understood any more."""


class TerminalKind(IntEnum):
    """The first byte of a message."""

    STDIN = 0
    EOF = 1
    RESIZE = 2
    SIGNAL = 3
    STARTED = 16
    OUTPUT = 17
    ERRORS = 18
    EXIT = 19


class TerminalSignal(StrEnum):
    """The signals that a client may send, to the foreground group of the terminal."""

    INT = "INT"
    TSTP = "TSTP"
    QUIT = "QUIT"
    HUP = "HUP"
    TERM = "TERM"
    CONT = "CONT"


class Stdin(NamedTuple):
    """Typed or piped input."""

    text: bytes


class StdinEnd(NamedTuple):
    """The end of the input."""


class Resize(NamedTuple):
    """The window's new size."""

    rows: int
    columns: int


class Signal(NamedTuple):
    """A signal for what runs in the foreground."""

    name: TerminalSignal


class Started(NamedTuple):
    """The shell runs. `warnings` are problems for the person to read."""

    node: str
    user: str
    step: str
    """The step that the session joined: `batch`, `0`, …"""
    pid: int
    """The shell's pid on the node."""
    directory: str
    accounted: bool
    """True if the session is in a control group of the job: accounted, limited, killed with it."""
    warnings: tuple[str, ...] = ()


class Output(NamedTuple):
    """What the terminal shows; without a terminal, standard output."""

    text: bytes


class Errors(NamedTuple):
    """Standard error, if there is no terminal."""

    text: bytes


class EndCause(StrEnum):
    """Why there will be no more output."""

    EXITED = "exited"
    """By itself; see the code."""
    SIGNALLED = "signalled"
    """By a signal that the holder did not send."""
    CLIENT_LOST = "client_lost"
    """Its client did not reconnect in time."""
    JOB_ENDED = "job_ended"
    """Killed with the job."""
    FAILED = "failed"
    """It never ran; see `words`."""


class Exit(NamedTuple):
    """The last message of the holder."""

    cause: EndCause
    code: int | None = None
    """As in a shell: 128 + N for signal N."""
    words: str = ""


TerminalMessage: TypeAlias = Stdin | StdinEnd | Resize | Signal | Started | Output | Errors | Exit


def write_message(message: TerminalMessage) -> bytes:
    """The message as a payload of the pipe."""
    head = _HEADS[type(message)]
    if isinstance(message, Stdin | Output | Errors):
        return head + message.text
    if isinstance(message, Resize):
        return head + _SIDES.pack(message.rows, message.columns)
    if isinstance(message, Signal):
        return head + message.name.value.encode()
    if isinstance(message, StdinEnd):
        return head
    return head + json.dumps(message._asdict(), separators=(",", ":")).encode()


def read_message(payload: bytes) -> TerminalMessage:
    """Decode a message. Raises `BadMessage`."""
    read = _READERS.get(payload[0]) if payload else None
    if read is None:
        raise BadMessage("a message of no known kind")
    return read(payload[1:])


def _end(body: bytes) -> StdinEnd:
    if body:
        raise BadMessage("an end has nothing to say")
    return StdinEnd()


def _resize(body: bytes) -> Resize:
    if len(body) != _SIDES.size:
        raise BadMessage("a size is two numbers")
    rows, columns = _SIDES.unpack(body)
    if not (0 < rows <= LARGEST_SIDE and 0 < columns <= LARGEST_SIDE):
        raise BadMessage("a size that no terminal has")
    return Resize(rows, columns)


def _signal(body: bytes) -> Signal:
    try:
        return Signal(TerminalSignal(body.decode("ascii")))
    except ValueError:
        raise BadMessage("a signal that can't be sent") from None


_Facts = TypeVar("_Facts", Started, Exit)


def _read(body: bytes, kind: type[_Facts]) -> _Facts:
    try:
        return read_fields(read_json(body), kind)
    except ValueError as error:
        raise BadMessage(str(error)) from None


_HEADS: dict[type[TerminalMessage], bytes] = {
    kind: bytes((number,))
    for number, kind in (
        (TerminalKind.STDIN, Stdin),
        (TerminalKind.EOF, StdinEnd),
        (TerminalKind.RESIZE, Resize),
        (TerminalKind.SIGNAL, Signal),
        (TerminalKind.STARTED, Started),
        (TerminalKind.OUTPUT, Output),
        (TerminalKind.ERRORS, Errors),
        (TerminalKind.EXIT, Exit),
    )
}
_READERS: dict[int, Callable[[bytes], TerminalMessage]] = {
    TerminalKind.STDIN: Stdin,
    TerminalKind.EOF: _end,
    TerminalKind.RESIZE: _resize,
    TerminalKind.SIGNAL: _signal,
    TerminalKind.STARTED: lambda body: _read(body, Started),
    TerminalKind.OUTPUT: Output,
    TerminalKind.ERRORS: Errors,
    TerminalKind.EXIT: lambda body: _read(body, Exit),
}
