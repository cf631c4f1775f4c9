"""Walks every call on one sensitive job: every role, and with the audit log away.

What each may do is written here a second time, from the promises.
"""

from __future__ import annotations

import itertools
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import grpc
import pytest
from grpc import aio

from lattice.base.clock import SystemClock
from lattice.domain.audit import AuditAct
from lattice.domain.vcluster import Vcluster, VclusterKind, Vclusters
from lattice.wire.guard import declared_permissions
from tests.fakes.claimed_nodes import FixedClaims, node_claim
from tests.fakes.cluster import populated
from tests.fakes.required_trail import RequiredTrail
from tests.fakes.server import composed
from tests.unit.server.test_every_door import (
    BEHIND_THE_GUARD,
    CALLS,
    ROLES,
    Visitor,
    _code,
    _terminal_answer,
    admitted,
)

VAULT = Vclusters((Vcluster("vault", VclusterKind.SENSITIVE, "vault"),))
CLAIMED = FixedClaims((node_claim("alice", "n1"),))
WALKERS = [
    *(Visitor(*each, "") for each in itertools.product(("alice", "bob", "carol"), ROLES)),
    Visitor("nobody", "SystemAdmin", ""),
]
CONTENT = {
    "READ_OUTPUT",
    "READ_MEASUREMENTS",
    "ATTACH_ALLOCATION",
    "SHARE_ALLOCATION",
    "VIEW_SHARES",
    "SWITCH_TELEMETRY",
}
RECORDED = {
    "LogService/ReadLogs": AuditAct.LOG_READ,
    "LogService/StreamLogs": AuditAct.LOG_READ,
    "LogService/ListLogStreams": AuditAct.LOG_READ,
    "LogService/ReadRawLog": AuditAct.LOG_READ,
    "WatchService/StreamMetrics": AuditAct.METRIC_READ,
    "CompareService/CompareMetrics": AuditAct.METRIC_READ,
    "DiagnosticsService/GetDiagnostics": AuditAct.METRIC_READ,
    "DiagnosticsService/GetStacks": AuditAct.METRIC_READ,
    "ReportService/GetReport": AuditAct.METRIC_READ,
    "RunService/ListRuns": AuditAct.METRIC_READ,
    "TimelineService/GetTimeline": AuditAct.METRIC_READ,
    "MetricService/QueryMetrics": AuditAct.METRIC_READ,
    "TelemetryService/SetTelemetry": AuditAct.MODE_SWITCH,
}
"""What the owner can do only if it is recorded first."""
UNRECORDED = {
    # They show the owner what others did, and how often the job is measured.
    "SharingService/ListShares",
    "TelemetryService/GetTelemetry",
    # The terminal itself is recorded.
    "AttachService/IssueAttachTicket",
}
REFUSED = {"SharingService/ShareAllocation", "SharingService/UnshareAllocation"}


@pytest.fixture
def trail() -> RequiredTrail:
    return RequiredTrail()


@pytest.fixture
async def channel(trail: RequiredTrail, tmp_path: Path) -> AsyncIterator[aio.Channel]:
    """To a server whose jobs of alice are all sensitive."""
    scheduler = populated(SystemClock())
    for jobs in (scheduler.allocations, scheduler.remembered):
        jobs[:] = [
            replace(each, vcluster="vault") if each.user == "alice" else each for each in jobs
        ]
    faces = composed(scheduler, views=VAULT, audit=trail, claims=CLAIMED)
    address = f"unix:{tmp_path}/grpc.sock"
    faces.grpc.add_insecure_port(address)
    await faces.grpc.start()
    async with aio.insecure_channel(address) as channel:
        yield channel
    await faces.grpc.stop(None)


def _walked() -> dict[str, str]:
    """Every call about a job of alice's, and its permission."""
    permissions = declared_permissions()
    about: dict[str, str] = {}
    for rpc, (_, request) in CALLS.items():
        fields = {each.name for each in request.DESCRIPTOR.fields}
        if permissions[rpc] in CONTENT and fields & {"id", "ids"}:
            about[rpc.removeprefix("lattice.v1.")] = permissions[rpc]
    return about


def test_every_call_about_a_job_is_walked() -> None:
    walked = set(_walked())
    assert walked == set(RECORDED) | UNRECORDED | REFUSED


def _expected(visitor: Visitor, rpc: str, permission: str) -> grpc.StatusCode:
    if not admitted(visitor.role, permission):
        return grpc.StatusCode.PERMISSION_DENIED
    if visitor.user == "alice":
        if permission == "SHARE_ALLOCATION":
            return grpc.StatusCode.PERMISSION_DENIED
        return BEHIND_THE_GUARD.get(f"lattice.v1.{rpc}", grpc.StatusCode.OK)
    # Who may know of it: of the other roles none governs physics.
    knows = visitor.role.startswith("SystemAdmin") or (
        visitor.user == "carol" and visitor.role == "TenantAdmin by Slurm"
    )
    return grpc.StatusCode.PERMISSION_DENIED if knows else grpc.StatusCode.NOT_FOUND


@pytest.mark.spec("AUTH-4", "AUTH-6", "AUTH-7")
@pytest.mark.threat(2, 25)
async def test_every_call_by_role(channel: aio.Channel, trail: RequiredTrail) -> None:
    for visitor, (rpc, permission) in itertools.product(WALKERS, _walked().items()):
        trail.events.clear()
        code = await _code(channel, f"lattice.v1.{rpc}", visitor.token)
        assert code is _expected(visitor, rpc, permission), (visitor, rpc)
        if code is grpc.StatusCode.OK and rpc in RECORDED:
            acts = {each.act for each in trail.events}
            assert acts == {RECORDED[rpc]}, (visitor, rpc)
            assert {each.user for each in trail.events} == {visitor.user}
        elif code is grpc.StatusCode.PERMISSION_DENIED:
            assert trail.events == [], (visitor, rpc)


@pytest.mark.spec("AUDIT-2")
async def test_nothing_happens_that_is_not_recorded(
    channel: aio.Channel, trail: RequiredTrail
) -> None:
    trail.is_away = True
    alice = Visitor("alice", "ClaimingUser", "").token
    for rpc, permission in _walked().items():
        code = await _code(channel, f"lattice.v1.{rpc}", alice)
        expected = _expected(Visitor("alice", "ClaimingUser", ""), rpc, permission)
        if rpc in RECORDED:
            expected = grpc.StatusCode.UNAVAILABLE
        assert code is expected, rpc
    code, words = await _terminal_answer(channel, f"Bearer {alice}", "1")
    assert (code, words.partition(":")[0]) == (
        grpc.StatusCode.UNAVAILABLE,
        "SensitiveAuditRequired",
    )


@pytest.mark.spec("ATTACH-1", "AUTH-7")
@pytest.mark.threat(2)
async def test_a_terminal_by_role(channel: aio.Channel) -> None:
    for visitor in WALKERS:
        if visitor.user == "alice":
            continue
        code, words = await _terminal_answer(channel, f"Bearer {visitor.token}", "1")
        expected: Any = _expected(visitor, "AttachService/Attach", "ATTACH_ALLOCATION")
        assert code is expected, visitor
        if admitted(visitor.role, "ATTACH_ALLOCATION"):
            isolated = words.startswith("SensitiveIsolation: ")
            assert isolated == (expected is grpc.StatusCode.PERMISSION_DENIED)
