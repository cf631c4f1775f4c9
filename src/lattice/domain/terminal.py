"""What the two ends of a terminal say to each other, as messages of a pipe. Pure.

The client's end is a person's terminal or a program; the other is the holder on the node, which
keeps the terminal and the shell alive while nobody is connected. Each message is a byte that says
what it is, and a body: raw bytes for what is typed and shown, JSON for the few facts.

    client    STDIN bytes · EOF · RESIZE rows, columns · SIGNAL name
    holder    STARTED facts · OUTPUT bytes · ERRORS bytes (without a terminal) · EXIT how it ended

Everything about the way between them (who may, which server, why it broke) is not said here.
"""

from __future__ import annotations

import json
import struct
from collections.abc import Callable
from dataclasses import asdict, dataclass, fields
from enum import IntEnum, StrEnum
from typing import TypeAlias, TypeVar

from lattice.base.strictjson import read_json

MOST_BYTES = 32 * 1024
"""Of text in one message; more is sent in several."""
LARGEST_SIDE = 4096
"""Rows and columns beyond this are no terminal's."""
DEFAULT_ROWS, DEFAULT_COLUMNS = 24, 80
_SIDES = struct.Struct("!HH")


class BadMessage(Exception):
    """Not one of these messages; the other end can't be understood any more."""


class Kind(IntEnum):
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
    """Those that can be asked for; they go to the foreground group of the terminal."""

    INT = "INT"
    TSTP = "TSTP"
    QUIT = "QUIT"
    HUP = "HUP"
    TERM = "TERM"
    CONT = "CONT"


@dataclass(frozen=True, slots=True)
class Stdin:
    """What was typed, or came through a pipe."""

    text: bytes


@dataclass(frozen=True, slots=True)
class StdinEnd:
    """Nothing more will be typed."""


@dataclass(frozen=True, slots=True)
class Resize:
    """The window's new size."""

    rows: int
    columns: int


@dataclass(frozen=True, slots=True)
class Signal:
    """A signal for what runs in the foreground."""

    name: TerminalSignal


@dataclass(frozen=True, slots=True, kw_only=True)
class Started:
    """The shell runs. `warnings` say what is not as it should be, for the person."""

    node: str
    user: str
    step: str
    """The step whose process was joined: `batch`, `0`, …"""
    pid: int
    """The shell, as the node counts."""
    directory: str
    accounted: bool
    """True if the session is in a control group of the job's: counted, limited, killed with it."""
    warnings: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Output:
    """What the terminal shows; without a terminal, standard output."""

    text: bytes


@dataclass(frozen=True, slots=True)
class Errors:
    """Standard error, where there is no terminal."""

    text: bytes


class EndCause(StrEnum):
    """Why there will be no more output."""

    EXITED = "exited"
    """By itself; the code says how."""
    SIGNALLED = "signalled"
    """By a signal that nobody here sent."""
    CLIENT_LOST = "client_lost"
    """Its client did not come back in time."""
    JOB_ENDED = "job_ended"
    """Killed with the job."""
    FAILED = "failed"
    """It never ran; the words say why."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Exit:
    """The last message of the holder."""

    cause: EndCause
    code: int | None = None
    """As a shell would have it: 128 + N for signal N."""
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
    return head + json.dumps(asdict(message), separators=(",", ":")).encode()


def read_message(payload: bytes) -> TerminalMessage:
    """The message inside. Raises `BadMessage`."""
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


def _exit(body: bytes) -> Exit:
    told = _read(body, Exit)
    try:
        return Exit(cause=EndCause(told.cause), code=told.code, words=told.words)
    except ValueError:
        raise BadMessage("an end of no known cause") from None


_Facts = TypeVar("_Facts", Started, Exit)
_TYPES: dict[str, tuple[type, ...]] = {
    "str": (str,),
    "int": (int,),
    "bool": (bool,),
    "int | None": (int, type(None)),
    "tuple[str, ...]": (list,),
    "EndCause": (str,),
}


def _read(body: bytes, kind: type[_Facts]) -> _Facts:
    try:
        told = read_json(body)
    except ValueError:
        raise BadMessage("facts that are no JSON") from None
    wanted = {each.name: _TYPES[str(each.type)] for each in fields(kind)}
    if not isinstance(told, dict) or told.keys() != wanted.keys():
        raise BadMessage("facts with other fields")
    for name, types in wanted.items():
        if type(told[name]) not in types:
            raise BadMessage(f"{name} is of the wrong type")
        if isinstance(told[name], list):
            if any(type(each) is not str for each in told[name]):
                raise BadMessage(f"{name} is of the wrong type")
            told[name] = tuple(told[name])
    return kind(**told)


_HEADS: dict[type[TerminalMessage], bytes] = {
    kind: bytes((number,))
    for number, kind in (
        (Kind.STDIN, Stdin),
        (Kind.EOF, StdinEnd),
        (Kind.RESIZE, Resize),
        (Kind.SIGNAL, Signal),
        (Kind.STARTED, Started),
        (Kind.OUTPUT, Output),
        (Kind.ERRORS, Errors),
        (Kind.EXIT, Exit),
    )
}
_READERS: dict[int, Callable[[bytes], TerminalMessage]] = {
    Kind.STDIN: Stdin,
    Kind.EOF: _end,
    Kind.RESIZE: _resize,
    Kind.SIGNAL: _signal,
    Kind.STARTED: lambda body: _read(body, Started),
    Kind.OUTPUT: Output,
    Kind.ERRORS: Errors,
    Kind.EXIT: _exit,
}
