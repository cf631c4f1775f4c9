"""The operations of the feature and the functions that make their calls. No I/O.

The terminal itself is no operation; `terminal_call` has its call.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Annotated

from lattice.base.call import IDEMPOTENCY_KEY, Call, params
from lattice.base.operation import FieldRule, Operation
from lattice.domain.allocation import REFERENCE_PATTERN, Reason, State
from lattice.domain.request_fields import AllocationRequest
from lattice.features.attach.sessions import AttachSessions, AttachTicket, RecordingPart
from lattice.features.attach.terminal_call import allocation_path

_SERVICE = "lattice.v1.AttachService/"

# As long as submit and cancel may take.
_PATIENCE_S = 60.0
_MOST_ENDS = 1000


@dataclass(frozen=True, slots=True, kw_only=True)
class SessionsRequest:
    """Filters the caller's sessions: by allocation, or open ones only. Empty: all."""

    id: Annotated[str, FieldRule(name="allocation", pattern=f"^$|{REFERENCE_PATTERN}")] = ""
    open: bool = False


ISSUE_ATTACH_TICKET = Operation(
    rpc=_SERVICE + "IssueAttachTicket",
    method="POST",
    path="/allocations/{id}/attach/tickets",
    request=AllocationRequest,
    answer=AttachTicket,
)
LIST_ATTACH_SESSIONS = Operation(
    rpc=_SERVICE + "ListAttachSessions",
    method="GET",
    path="/attach/sessions",
    request=SessionsRequest,
    answer=AttachSessions,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class RecordingQuery:
    """A part of the recording of a session, from a chunk on."""

    session: Annotated[str, FieldRule(pattern=r"[0-9a-f]{32}")]
    begin: Annotated[int, FieldRule(least=0, most=100_000_000)] = 0


READ_RECORDING = Operation(
    rpc=_SERVICE + "ReadRecording",
    method="GET",
    path="/recordings/{session}",
    request=RecordingQuery,
    answer=RecordingPart,
    timeout_s=120.0,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class EndEntry:
    """The fields of an entry of the audit log that name a recording."""

    time: datetime
    event: str
    user: str
    node: str
    detail: str


@dataclass(frozen=True, slots=True, kw_only=True)
class EndEntries:
    """The ends of the terminals of an allocation, newest first."""

    rows: tuple[EndEntry, ...]
    cursor: str
    """Empty: there are no older ones."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Target:
    """The fields of an allocation that attach needs."""

    id: str
    state: State
    nodes: str = ""
    node_count: int = 0
    reason: Reason | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class TargetCard:
    """The part of an allocation's answer that attach needs."""

    allocation: Target


@dataclass(frozen=True, slots=True, kw_only=True)
class SessionSubmitted:
    """The allocation that was submitted for a session."""

    id: str
    notes: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class SessionCancelled:
    """`cancelling`: Slurm got the request. Else it had ended before, in `state`."""

    id: str
    cancelling: bool
    state: str


def list_sessions(reference: str = "", *, only_open: bool = False) -> Call[AttachSessions]:
    """The caller's own sessions, newest first; of one allocation, or only open ones."""
    return LIST_ATTACH_SESSIONS.call(SessionsRequest(id=reference, open=only_open))


def read_recording(session: str, begin: int = 0) -> Call[RecordingPart]:
    """Chunks of the recorded terminal of sensitive work, from this number on."""
    return READ_RECORDING.call(RecordingQuery(session=session, begin=begin))


def list_ends(reference: str, cursor: str = "") -> Call[EndEntries]:
    """Entries of the audit log about terminals of an allocation that have ended."""
    asked = params(allocation=reference, act="attach-end", limit=_MOST_ENDS, cursor=cursor)
    return Call("GET", "/v1/audit/logs", EndEntries, params=asked)


def get_target(reference: str) -> Call[TargetCard]:
    """The state and the nodes of an allocation."""
    return Call("GET", allocation_path(reference), TargetCard)


def submit_session(request: Mapping[str, object], key: str) -> Call[SessionSubmitted]:
    """Submit the job that waits for a terminal; with the same key at most once."""
    return Call(
        "POST",
        "/v1/allocations",
        SessionSubmitted,
        body=json.dumps({name: value for name, value in request.items() if value}).encode(),
        headers=((IDEMPOTENCY_KEY, key),),
        timeout_s=_PATIENCE_S,
    )


def cancel_session(reference: str) -> Call[SessionCancelled]:
    """Cancel the allocation of a session."""
    return Call(
        "POST",
        f"{allocation_path(reference)}/cancel",
        SessionCancelled,
        timeout_s=_PATIENCE_S,
        idempotent=True,
    )


SDK: Mapping[str, Callable[..., object]] = {
    "attach_sessions": list_sessions,
    "recording": read_recording,
}
"""The functions of the SDK by name."""
