"""Sessions that are listed, and what `lattice session` and the choice of a node ask."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass

from lattice.base.call import IDEMPOTENCY_KEY, Call, params
from lattice.domain.allocation import Reason, State
from lattice.features.attach.api.terminal import allocation_path
from lattice.features.attach.model import AttachSessions

# As long as submitting and cancelling may take anywhere.
_PATIENCE_S = 60.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Target:
    """What attaching needs to know of an allocation."""

    id: str
    state: State
    nodes: str = ""
    node_count: int = 0
    reason: Reason | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class TargetCard:
    """That part of its card."""

    allocation: Target


@dataclass(frozen=True, slots=True, kw_only=True)
class SessionSubmitted:
    """The allocation that was submitted for a session."""

    id: str
    notes: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class SessionCancelled:
    """`cancelling`: Slurm was asked; else it had ended before, and how."""

    id: str
    cancelling: bool
    state: str


def list_sessions(*, reference: str = "", only_open: bool = False) -> Call[AttachSessions]:
    """The caller's own, newest first; those in one allocation, or those that are open."""
    return Call(
        "GET", "/v1/attach/sessions", AttachSessions, params(allocation=reference, open=only_open)
    )


def get_target(reference: str) -> Call[TargetCard]:
    """Its state and nodes."""
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
    """End it."""
    return Call(
        "POST",
        f"{allocation_path(reference)}/cancel",
        SessionCancelled,
        timeout_s=_PATIENCE_S,
        idempotent=True,
    )
