"""The messages of client and server about a terminal session. Pure.

The WebSocket carries two kinds of messages. Binary messages are frames of a pipe
(`lattice.domain.pipe`) between the client and the holder on the node; the server doesn't parse
them. Text messages are the JSON objects below, with a `type`:

- client: start (the first message of every connection), keepalive, token.
- server: opened (the first answer), notice, error, ended.

Frames may follow `start` at once; they wait until the connection to the node is open. Nothing
follows `error` or `ended`. After a close without either, the client reconnects to any server, with
the same session and `resume`, within `RESUME_S`. A client closes with 1000 when the pipe has ended,
or when it does not come back. Then the session is over and can't be resumed.

A client's messages must match exactly. In a server's messages unknown types and fields are ignored,
so an older client understands a newer server. The messages are named tuples for the reason given in
`lattice.base.call`.
"""

from __future__ import annotations

import json
from datetime import datetime
from enum import StrEnum
from typing import Any, NamedTuple, TypeAlias, TypeVar, get_type_hints

from lattice.domain.terminal import DEFAULT_COLUMNS, DEFAULT_ROWS

PROTOCOL = "lattice.attach.v1"
"""The subprotocol that a client must offer."""
TICKET_PREFIX = "lattice.ticket."
"""Prefix of a browser's ticket, a second subprotocol: a browser can't set a header."""
LARGEST_MESSAGE_BYTES = 96 * 1024
LARGEST_WORD_BYTES = 16 * 1024
"""Limit of a text message."""
RESUME_S = 60.0
PING_EVERY_S = 5.0
SILENCE_S = 15.0
TICKET_TTL_S = 30
TRY_AGAIN = 1012
"""The close code for a lost connection to the node; the session continues."""

PREEMPTED_TEXT = (
    "[lattice] Allocation preempted. Session suspended. "
    "Use 'lattice attach {id}' to reconnect after rescheduling."
)
NODE_LOST_TEXT = "connection to node lost — attach session ended"
CHECKPOINTED_TEXT = "allocation is being checkpointed — attach unavailable until rescheduled"
NOT_RUNNING_TEXT = "cannot attach to allocation in state '{state}'; must be 'running'"


class BadWord(Exception):
    """A text message that is invalid."""


class NoticeKind(StrEnum):
    """What a notice is about; the session continues."""

    PREEMPTED = "preempted"
    """Slurm announced that it takes the job off its nodes."""
    REQUEUED = "requeued"
    SUSPENDED = "suspended"
    RESUMED = "resumed"
    NODE_SILENT = "node_silent"
    """The node has not answered for a while; the text has the seconds."""
    NODE_BACK = "node_back"
    STATE_OLD = "state_old"
    """Slurm does not answer, so the job's state is old."""
    WALLTIME = "walltime"
    """The job's time limit is near."""
    IDLE = "idle"
    """No input or output for long. It never ends a session."""
    TOKEN_EXPIRING = "token_expiring"  # noqa: S105 - a kind, no secret
    JOB_ENDED = "job_ended"
    """The job ended; the text says how. Comes before the holder's last message."""
    OTHER = "other"
    """A kind of a newer server; the text explains it."""


class EndReason(StrEnum):
    """Why a session ended, in its record and in the server's last message."""

    EXITED = "exited"
    """The shell ended, by itself or by a signal."""
    FAILED = "failed"
    """The shell never ran."""
    CLIENT_LOST = "client_lost"
    """No client came back in time."""
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
    """Another client of the same caller continues the session."""
    REFUSED = "refused"
    """The caller lost the permission, or a lock covers the session."""
    UNRECORDED = "recording_impossible"
    """Sensitive work: what happens in it could not be recorded any more."""
    OTHER = "other"
    """A reason of a newer server."""


class Start(NamedTuple):
    """The request of a connection. On a resumed session only `session` counts."""

    session: str
    """32 hex digits, random, from the client."""
    resume: bool = False
    node: str = ""
    """Empty: the job's first node, or that of `rank`."""
    rank: int | None = None
    command: tuple[str, ...] = ()
    """Empty: the owner's login shell."""
    terminal: str = ""
    """The value of TERM; empty: pipes in place of a terminal."""
    rows: int = DEFAULT_ROWS
    columns: int = DEFAULT_COLUMNS
    tools: str = ""
    """The path of an image to mount for this terminal alone."""


class Keepalive(NamedTuple):
    """The client is alive. WebSocket pings do the same."""


class AttachToken(NamedTuple):
    """A newer access token of the same caller, before the old one expires."""

    token: str

    def __repr__(self) -> str:
        return "AttachToken(…)"


class Opened(NamedTuple):
    """The connection to the node is open; frames follow."""

    node: str
    replica: str
    """The server that relays the session."""
    job: str
    user: str
    ends: datetime | None = None
    """When the job's time limit ends it."""
    recorded: bool = False
    sequence: int = 1
    """The number of connections of this session, with this one."""


class Notice(NamedTuple):
    """A message for the person; the session continues."""

    kind: NoticeKind
    words: str


class Failure(NamedTuple):
    """The session can't begin or continue; `code` is one of `lattice.base.errors`."""

    code: str
    message: str
    hint: str | None = None


class Ended(NamedTuple):
    """The server ends the session; it can't be resumed. The connection closes."""

    reason: EndReason
    words: str = ""


ClientWord: TypeAlias = Start | Keepalive | AttachToken
ServerWord: TypeAlias = Opened | Notice | Failure | Ended


def write_word(word: ClientWord | ServerWord) -> str:
    """The message as JSON text."""
    document = {name: _plain(value) for name, value in word._asdict().items()}
    return json.dumps({"type": _NAMES[type(word)], **document}, separators=(",", ":"))


def read_client_word(text: str) -> ClientWord:
    """Parse a client's message; unknown or repeated fields raise `BadWord`."""
    document = _object(text)
    kind = _CLIENT.get(_type_of(document))
    if kind is None:
        raise BadWord("a message of no known type")
    if unknown := sorted(document.keys() - {"type", *kind._fields}):
        raise BadWord(f"a field that is not known: {unknown[0][:60]!r}")
    return _made(document, kind)


def read_server_word(text: str) -> ServerWord | None:
    """Parse a server's message; None for an unknown type. Raises `BadWord`."""
    document = _object(text)
    kind = _SERVER.get(_type_of(document))
    return _made(document, kind) if kind is not None else None


_CLIENT: dict[str, type[ClientWord]] = {
    "start": Start,
    "keepalive": Keepalive,
    "token": AttachToken,
}
_SERVER: dict[str, type[ServerWord]] = {
    "opened": Opened,
    "notice": Notice,
    "error": Failure,
    "ended": Ended,
}
_NAMES = {kind: name for name, kind in (*_CLIENT.items(), *_SERVER.items())}
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
        document = json.loads(text, object_pairs_hook=_once)
    except (ValueError, RecursionError):
        raise BadWord("not a JSON object") from None
    if not isinstance(document, dict):
        raise BadWord("not a JSON object")
    return document


def _once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    document = dict(pairs)
    if len(document) != len(pairs):
        raise ValueError("a name stands twice")
    return document


def _type_of(document: dict[str, Any]) -> str:
    kind = document.get("type")
    if not isinstance(kind, str):
        raise BadWord("a message without a type")
    return kind


def _made(document: dict[str, Any], kind: type[_Word]) -> _Word:
    hints = get_type_hints(kind)
    values = {
        name: _value(value, hints[name], name) for name, value in document.items() if name in hints
    }
    try:
        return kind(**values)
    except TypeError:
        raise BadWord("a field is missing") from None


def _value(value: Any, hint: Any, name: str) -> Any:
    # `type`, not `isinstance`: True is an instance of int.
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
