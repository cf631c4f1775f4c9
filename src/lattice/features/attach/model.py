"""What client and server say about a terminal's way, beside the frames that pass through. Pure.

The WebSocket carries two things. Binary messages are frames of a pipe (`lattice.domain.pipe`)
between the client and the holder on the node, passed on unread. Text messages are the words
below, JSON objects with a `type`, about the way between them:

    client    start (the first message of every connection) · keepalive · token
    server    opened (the first answer) · notice · error · ended

Frames may follow `start` at once; they wait until the way stands. After `error` or `ended` nothing
follows. A connection that closes without either of them is to be made anew, at any server, with
the same session and `resume`, for up to `RESUME_S`. A client closes with 1000 when the pipe is
over, or when nobody is going to come back: the session is over then, and can't be resumed.

A client's words are read strictly. Of a server's, types and fields that are not known are passed
over, so that an older client understands a newer server.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, field, fields
from datetime import datetime
from enum import StrEnum
from typing import Any, Literal, TypeAlias, TypeVar, get_type_hints

from lattice.domain.terminal import DEFAULT_COLUMNS, DEFAULT_ROWS

PROTOCOL = "lattice.attach.v1"
"""The subprotocol that a client must offer, and gets."""
TICKET_PREFIX = "lattice.ticket."
"""Before a browser's ticket, as a second subprotocol: a browser can set no header."""
LARGEST_MESSAGE_BYTES = 96 * 1024
LARGEST_WORD_BYTES = 16 * 1024
"""Of a text message."""
RESUME_S = 60.0
PING_EVERY_S = 5.0
SILENCE_S = 15.0
TICKET_LIFE_S = 30
TRY_AGAIN = 1012
"""The close code for: the way is broken, the session is not."""

PREEMPTED_WORDS = (
    "[lattice] Allocation preempted. Session suspended. "
    "Use 'lattice attach {id}' to reconnect after rescheduling."
)
NODE_LOST_WORDS = "connection to node lost — attach session ended"
CHECKPOINTED_WORDS = "allocation is being checkpointed — attach unavailable until rescheduled"
NOT_RUNNING_WORDS = "cannot attach to allocation in state '{state}'; must be 'running'"


class BadWord(Exception):
    """Not one of these messages."""


class NoticeKind(StrEnum):
    """What can be worth knowing while a session goes on."""

    PREEMPTED = "preempted"
    """Slurm announced it: the job will be taken off its nodes."""
    REQUEUED = "requeued"
    SUSPENDED = "suspended"
    RESUMED = "resumed"
    NODE_SILENT = "node_silent"
    """The node has not answered for a while; the words say how long."""
    NODE_BACK = "node_back"
    STATE_OLD = "state_old"
    """Slurm does not answer: what is known of the job has an age."""
    WALLTIME = "walltime"
    """The job's time is nearly over."""
    IDLE = "idle"
    """Nothing was typed or shown for long. Never more than a word."""
    TOKEN_EXPIRING = "token_expiring"  # noqa: S105 - a kind, no secret
    JOB_ENDED = "job_ended"
    """The job is over; the words say how. Comes before the holder's last message."""
    OTHER = "other"
    """Of a newer server: the words say it."""


class EndReason(StrEnum):
    """Why a session is over, in its record and in the server's last word."""

    EXITED = "exited"
    """The shell ended, by itself or by a signal."""
    FAILED = "failed"
    """It never ran."""
    CLIENT_LOST = "client_lost"
    """Nobody came back in time."""
    JOB_ENDED = "job_ended"
    PREEMPTED = "preempted"
    REQUEUED = "requeued"
    NODE_LOST = "node_unreachable"
    TOKEN_EXPIRED = "token_expired"  # noqa: S105 - a reason, no secret
    CLOSED = "closed"
    """The client left for good."""
    SHELL_LOST = "shell_lost"
    """Its holder on the node is gone, and the shell with it."""
    REPLACED = "replaced"
    """Another client of the same caller goes on with it."""
    REFUSED = "refused"
    """It may not go on: the caller lost the right to."""
    OTHER = "other"
    """Of a newer server."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Start:
    """What is wanted. On a resumed session only `session` and `node` count."""

    type: Literal["start"] = "start"
    session: str
    """32 hex digits, drawn by the client."""
    resume: bool = False
    node: str = ""
    """Empty: the first of the job's, or that of `rank`. When resuming: the one `opened` named."""
    rank: int | None = None
    command: tuple[str, ...] = ()
    """Empty: the owner's login shell."""
    terminal: str = ""
    """What TERM says; empty: no terminal but pipes."""
    rows: int = DEFAULT_ROWS
    columns: int = DEFAULT_COLUMNS
    tools: str = ""
    """The path of an image to mount for this terminal alone."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Keepalive:
    """Somebody is there. WebSocket pings do as well."""

    type: Literal["keepalive"] = "keepalive"


@dataclass(frozen=True, slots=True, kw_only=True)
class Token:
    """A newer access token of the same caller, before the old one runs out."""

    type: Literal["token"] = "token"
    token: str = field(repr=False)


@dataclass(frozen=True, slots=True, kw_only=True)
class Opened:
    """The way to the node stands; frames follow."""

    type: Literal["opened"] = "opened"
    node: str
    replica: str
    """The server that passes it on."""
    job: str
    user: str
    ends: datetime | None = None
    """When the job's time is over."""
    recorded: bool = False
    sequence: int = 1
    """How many connections this session has had, this one counted."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Notice:
    """Something to tell the person; the session goes on."""

    type: Literal["notice"] = "notice"
    kind: NoticeKind
    words: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Failure:
    """It can't be, or can't go on; a code of `lattice.base.errors`. The connection closes."""

    type: Literal["error"] = "error"
    code: str
    message: str
    hint: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Ended:
    """The server ends the session; it can't be resumed. The connection closes."""

    type: Literal["ended"] = "ended"
    reason: EndReason
    words: str = ""


ClientWord: TypeAlias = Start | Keepalive | Token
ServerWord: TypeAlias = Opened | Notice | Failure | Ended


@dataclass(frozen=True, slots=True, kw_only=True)
class AttachTicket:
    """Lets a browser open one WebSocket to one allocation, once, soon."""

    ticket: str
    expires: datetime


@dataclass(frozen=True, slots=True, kw_only=True)
class AttachSession:
    """The record of one session: written before it begins, and again when it is over."""

    id: str
    user: str
    """The Unix user it ran as."""
    subject: str
    """Who asked, as the token names her."""
    allocation: str
    """Its unambiguous name."""
    attempt: int
    node: str
    command: tuple[str, ...]
    """Empty: the login shell."""
    terminal: bool
    started: datetime
    ended: datetime | None = None
    reason: EndReason | None = None
    exit_code: int | None = None
    """Where the shell's end was seen."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AttachSessions:
    """The caller's own, newest first."""

    sessions: tuple[AttachSession, ...]
    more: bool = False
    """True if older ones were left out."""


def write_word(word: ClientWord | ServerWord) -> str:
    """The word as a text message."""
    told = {each.name: _plain(getattr(word, each.name)) for each in fields(word)}
    return json.dumps(told, separators=(",", ":"))


def read_client_word(text: str) -> ClientWord:
    """What a client said; every field known, of its type, and none twice. Raises `BadWord`."""
    told = _object(text)
    kind = _CLIENT.get(_type_of(told))
    if kind is None:
        raise BadWord("a message of no known type")
    if unknown := sorted(told.keys() - {each.name for each in fields(kind)}):
        raise BadWord(f"a field that is not known: {unknown[0][:60]!r}")
    return _made(told, kind)


def read_server_word(text: str) -> ServerWord | None:
    """What a server said; None for a type of a newer one. Raises `BadWord`."""
    told = _object(text)
    kind = _SERVER.get(_type_of(told))
    return _made(told, kind) if kind is not None else None


_CLIENT: dict[str, type[ClientWord]] = {"start": Start, "keepalive": Keepalive, "token": Token}
_SERVER: dict[str, type[ServerWord]] = {
    "opened": Opened,
    "notice": Notice,
    "error": Failure,
    "ended": Ended,
}
_TYPES: dict[Any, tuple[type, ...]] = {
    str: (str,),
    str | None: (str, type(None)),
    int: (int,),
    int | None: (int, type(None)),
    bool: (bool,),
    tuple[str, ...]: (list,),
    datetime | None: (str, type(None)),
    NoticeKind: (str,),
    EndReason: (str,),
}
_Word = TypeVar("_Word")


def _object(text: str) -> dict[str, Any]:
    if len(text) > LARGEST_WORD_BYTES:
        raise BadWord("a message that is too long")
    try:
        told = json.loads(text, object_pairs_hook=_once)
    except (ValueError, RecursionError):
        raise BadWord("not a JSON object") from None
    if not isinstance(told, dict):
        raise BadWord("not a JSON object")
    return told


def _once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    told = dict(pairs)
    if len(told) != len(pairs):
        raise ValueError("a name stands twice")
    return told


def _type_of(told: dict[str, Any]) -> str:
    kind = told.get("type")
    if not isinstance(kind, str):
        raise BadWord("a message without a type")
    return kind


def _made(told: dict[str, Any], kind: type[_Word]) -> _Word:
    hints = get_type_hints(kind)
    values = {
        name: _value(value, hints[name], name)
        for name, value in told.items()
        if name in hints and name != "type"
    }
    try:
        return kind(**values)
    except TypeError:
        raise BadWord("a field is missing") from None


def _value(value: Any, hint: Any, name: str) -> Any:
    # `type`, not `isinstance`: True is an int to the latter.
    if type(value) not in _TYPES[hint]:
        raise BadWord(f"{name} is of the wrong type")
    if isinstance(value, list):
        if any(type(each) is not str for each in value):
            raise BadWord(f"{name} is of the wrong type")
        return tuple(value)
    if hint is NoticeKind:
        return NoticeKind(value) if value in list(NoticeKind) else NoticeKind.OTHER
    if hint is EndReason:
        return EndReason(value) if value in list(EndReason) else EndReason.OTHER
    if hint == datetime | None and value is not None:
        return _moment(value, name)
    return value


def _moment(text: str, name: str) -> datetime:
    try:
        moment = datetime.fromisoformat(text)
    except ValueError:
        raise BadWord(f"{name} is no time") from None
    if moment.tzinfo is None:
        raise BadWord(f"{name} is no time")
    return moment


def _plain(value: Any) -> Any:
    return value.isoformat() if isinstance(value, datetime) else value
