"""Walks every rpc and every route with every kind of caller against everybody's work.

The expectation is written here a second time, from the promises and not from the policy, so that
the two have to agree. Both faces are walked: REST through the application, gRPC over a socket.
"""

from __future__ import annotations

import asyncio
import itertools
import secrets
from collections.abc import AsyncIterator
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import grpc
import httpx2
import pytest
from grpc import aio

from lattice.base.clock import SystemClock
from lattice.server.listeners.composition import Faces
from lattice.wire.guard import declared_permissions
from lattice.wire.v1 import (
    agents_pb2,
    agents_pb2_grpc,
    allocations_pb2_grpc,
    attach_pb2,
    attach_pb2_grpc,
    audit_pb2,
    audit_pb2_grpc,
    checks_pb2,
    checks_pb2_grpc,
    claims_pb2,
    claims_pb2_grpc,
    compare_pb2,
    compare_pb2_grpc,
    diag_pb2,
    diag_pb2_grpc,
    doctor_pb2,
    doctor_pb2_grpc,
    health_pb2,
    health_pb2_grpc,
    identity_pb2,
    identity_pb2_grpc,
    link_pb2,
    link_pb2_grpc,
    locks_pb2,
    locks_pb2_grpc,
    logs_pb2,
    logs_pb2_grpc,
    nodes_pb2,
    nodes_pb2_grpc,
    prometheus_pb2,
    prometheus_pb2_grpc,
    report_pb2,
    report_pb2_grpc,
    runs_pb2,
    runs_pb2_grpc,
    sharing_pb2,
    sharing_pb2_grpc,
    state_pb2,
    state_pb2_grpc,
    submit_pb2,
    submit_pb2_grpc,
    telemetry_pb2,
    telemetry_pb2_grpc,
    tenants_pb2,
    tenants_pb2_grpc,
    timeline_pb2,
    timeline_pb2_grpc,
    top_pb2,
    top_pb2_grpc,
    watch_pb2,
    watch_pb2_grpc,
)
from lattice.wire.v1 import allocations_pb2 as alloc_pb
from tests.fakes.cluster import WORK, Work, populated
from tests.fakes.in_memory_gate import ACCOUNT
from tests.fakes.server import composed, token

ROLES: dict[str, dict[str, Any]] = {
    "User": {},
    "SystemAdmin": {"scope": "admin"},
    "SystemAdmin by claim": {"pact_role": "pact-platform-admin"},
    "TenantAdmin": {"scope": "tenant:admin", "tenant": "biology"},
    "TenantAdmin of a project": {"scope": "tenant:admin", "tenant": "genomics"},
    "TenantAdmin by Slurm": {"lattice_role": "tenant-admin"},
    "Operator": {"scope": "operator"},
    "ClaimingUser": {"scope": "sensitive:claim"},
    "ReadOnly": {"scope": "readonly"},
    "ComplianceReviewer": {"scope": "compliance:review", "tenant": "biology"},
}
PEOPLE = ("alice", "bob", "carol", "dave", "nobody")
SCOPES = ("", "allocations:read", "allocations:attach", "allocations:write")


@dataclass
class Visitor:
    """Somebody with a token: a person, a role and a token's scope."""

    user: str
    role: str
    scope: str

    @cached_property
    def token(self) -> str:
        claims = dict(ROLES[self.role])
        claims["scope"] = f"{claims.get('scope', '')} {self.scope}".strip()
        return token(f"sub-{self.user}", preferred_username=self.user, **claims)

    @property
    def bearer(self) -> dict[str, str]:
        return {"Authorization": f"Bearer {self.token}"}

    def holds(self, scope: str) -> bool:
        """AUTH-5: a token without any such scope has all of them."""
        return self.scope in {"", f"allocations:{scope}"}

    def sees(self, work: Work) -> bool:
        """AUTH-4 and AUTH-7, written down once more."""
        if work.user == self.user or self.role.startswith("SystemAdmin"):
            return True
        if self.role == "ReadOnly":
            return False
        # carol coordinates theory, a project of physics.
        if self.user == "carol" and work.account == "theory":
            return True
        if self.role == "TenantAdmin":
            return work.account == "genomics"
        if self.role == "TenantAdmin by Slurm":
            # Only carol coordinates anything, and all of it lies in physics.
            return self.user == "carol" and work.account in {"research", "theory"}
        return False


# AUTH-4 once more: who but these may make such calls; everybody else's are open to all.
_OPERATES = frozenset({"SystemAdmin", "SystemAdmin by claim", "Operator"})
_TENANT_ADMINS = frozenset({"TenantAdmin", "TenantAdmin of a project", "TenantAdmin by Slurm"})
RESERVED = {
    "SUBMIT_ALLOCATION": frozenset(ROLES) - {"ReadOnly"},
    "CANCEL_ALLOCATION": frozenset(ROLES) - {"ReadOnly"},
    "SHARE_ALLOCATION": frozenset(ROLES) - {"ReadOnly"},
    "SWITCH_TELEMETRY": frozenset(ROLES) - {"ReadOnly"},
    "ATTACH_ALLOCATION": frozenset(ROLES) - {"ReadOnly"},
    "ADMINISTER": frozenset({"SystemAdmin", "SystemAdmin by claim"}),
    "OBSERVE_SERVER": _OPERATES,
    "OPERATE_NODES": _OPERATES,
    # Tenant admins too, of nodes that serve no other tenant; n1 serves both.
    "DRAIN_NODES": _OPERATES,
    "CLAIM_NODES": frozenset({"ClaimingUser"}),
    "RELEASE_NODES": frozenset({"ClaimingUser", "SystemAdmin", "SystemAdmin by claim"}),
    "LOCK_ACCESS": _OPERATES | _TENANT_ADMINS,
    # The others govern no tenant, so there is nothing for them to review.
    "REVIEW_AUDIT": frozenset(
        {"SystemAdmin", "SystemAdmin by claim", "TenantAdmin", "ComplianceReviewer"}
    ),
    "VIEW_TENANTS": frozenset({"SystemAdmin", "SystemAdmin by claim"}) | _TENANT_ADMINS,
    "MANAGE_TENANTS": frozenset({"SystemAdmin", "SystemAdmin by claim"}),
}


def admitted(role: str, permission: str) -> bool:
    return role in RESERVED.get(permission, frozenset(ROLES))


# Everybody in every role; and with every scope those who own something and govern something.
VISITORS = [
    *(Visitor(*each, "") for each in itertools.product(PEOPLE, ROLES)),
    *(Visitor(*each) for each in itertools.product(("alice", "carol"), ROLES, SCOPES[1:])),
]


@pytest.fixture
async def faces() -> Faces:
    return composed(populated(SystemClock()))


@pytest.fixture
async def rest(faces: Faces) -> AsyncIterator[httpx2.AsyncClient]:
    transport = httpx2.ASGITransport(app=faces.rest)
    async with httpx2.AsyncClient(transport=transport, base_url="http://server") as client:
        yield client


@pytest.fixture
async def channel(faces: Faces, tmp_path: Path) -> AsyncIterator[aio.Channel]:
    address = f"unix:{tmp_path}/grpc.sock"
    faces.grpc.add_insecure_port(address)
    await faces.grpc.start()
    async with aio.insecure_channel(address) as channel:
        yield channel
    await faces.grpc.stop(None)


NOTHING_THERE = {
    "lattice.v1.StateService/VerifyBackup": 424,
    "lattice.v1.AuditService/ExportAudit": 424,
    "lattice.v1.LogService/ReadRawLog": 404,
    # Nothing is asked there.
    "lattice.v1.PrometheusService/QueryInstant": 400,
    "lattice.v1.PrometheusService/QueryRange": 400,
    "lattice.v1.PrometheusService/ListSeries": 400,
    # n1 is no tenant.
    "lattice.v1.TenantService/GetTenant": 404,
    # A terminal is a WebSocket; tests/integration/test_attach_socket.py knocks there.
    "lattice.v1.AttachService/Attach": 405,
    "lattice.v1.AttachService/ReadRecording": 404,
}
"""Where one who is let in finds nothing."""


def _readable(faces: Faces) -> dict[str, str]:
    """The rpc of each path that only reads."""
    routes = faces.routes.rpc_of_route.items()
    return {path: rpc for (method, path), rpc in routes if method == "GET"}


def _concrete(path: str) -> str:
    # One that runs is watched without end.
    path = path.replace("{id}/watch", "101/watch")
    # Two of alice's.
    path = path.replace("/compare", "/compare?ids=1,5")
    path = path.replace("{session}", "0" * 32)
    path = "/v1/runs?name=resnet-7" if path == "/v1/runs" else path
    return path.replace("{id}", "1").replace("{name}", "n1").replace("/raw", "/raw?node=n1")


@pytest.mark.spec("AUTH-6")
@pytest.mark.threat("authority-key")
async def test_every_route_refuses_a_caller_without_a_token(
    faces: Faces, rest: httpx2.AsyncClient
) -> None:
    permissions = declared_permissions()
    for path, rpc in _readable(faces).items():
        answer = await rest.get(_concrete(path))
        expected = 200 if permissions[rpc] == "PUBLIC" else 401
        assert answer.status_code == expected, path
        if expected == 401:
            assert answer.json()["error"]["code"] == "login_required"


@pytest.mark.threat("foreign-host")
async def test_no_route_leads_elsewhere_by_the_host_that_the_caller_names(
    faces: Faces, rest: httpx2.AsyncClient
) -> None:
    foreign = {"Host": "evil.example", "X-Forwarded-Host": "evil.example"}
    for path in _readable(faces):
        for asked in (_concrete(path), _concrete(path).replace("?", "/?"), f"{path}/", f"/{path}"):
            answer = await rest.get(asked, headers=foreign)
            assert not answer.is_redirect, asked
            assert "evil.example" not in f"{answer.headers} {answer.text}", asked


@pytest.mark.spec("AUTH-4", "AUTH-6")
async def test_every_route_by_role(faces: Faces, rest: httpx2.AsyncClient) -> None:
    permissions = declared_permissions()
    for role, (path, rpc) in itertools.product(ROLES, _readable(faces).items()):
        visitor = Visitor("alice", role, "")
        answer = await rest.get(_concrete(path), headers=visitor.bearer)
        expected = NOTHING_THERE.get(rpc, 200) if admitted(role, permissions[rpc]) else 403
        assert answer.status_code == expected, (role, path, answer.text)


@pytest.mark.spec("AUTH-4", "AUTH-6", "OPS-4")
async def test_every_act_on_a_node_by_role(rest: httpx2.AsyncClient) -> None:
    permissions = declared_permissions()
    acts = ("drain", "undrain", "disable", "enable")
    for role, act in itertools.product(ROLES, acts):
        path, because = f"/v1/nodes/n1/{act}", {"reason": "bad DIMM"}
        bare = await rest.post(path, json=because)
        assert bare.status_code == 401, path
        visitor = Visitor("alice", role, "")
        answer = await rest.post(path, json=because, headers=visitor.bearer)
        needed = permissions[f"lattice.v1.NodeService/{act.capitalize()}Node"]
        expected = 200 if admitted(role, needed) else 403
        assert answer.status_code == expected, (role, path, answer.text)
        # A tenant admin may drain and not undrain: an operator clears up for the next role.
        for word in ("enable", "undrain"):
            operator = Visitor("olga", "Operator", "").bearer
            await rest.post(f"/v1/nodes/n1/{word}", json=because, headers=operator)


@pytest.mark.spec("AUTH-4", "AUTH-7")
async def test_everyone_sees_exactly_what_is_theirs_over_rest(rest: httpx2.AsyncClient) -> None:
    for visitor in VISITORS:
        visible = {each.job_id for each in WORK if visitor.sees(each)}
        for path, expected in (
            ("/v1/allocations?all=true", visible | {each + 100 for each in visible}),
            # The second prefix is the first by another name: `test_app.py`.
            ("/api/v1/history?all=true", {each + 100 for each in visible}),
        ):
            answer = await rest.get(path, headers=visitor.bearer)
            seen = {each["job_id"] for each in answer.json()["allocations"]}
            assert seen == expected, (visitor, path)


@pytest.mark.spec("AUTH-7")
async def test_without_all_a_list_is_ones_own(rest: httpx2.AsyncClient) -> None:
    for visitor in VISITORS:
        answer = await rest.get("/v1/allocations", headers=visitor.bearer)
        users = {each["user"] for each in answer.json()["allocations"]}
        assert users <= {visitor.user}, visitor


@pytest.mark.spec("AUTH-7")
async def test_asking_for_a_user_never_widens_what_one_sees(rest: httpx2.AsyncClient) -> None:
    for visitor, user in itertools.product(VISITORS, PEOPLE):
        answer = await rest.get(f"/v1/allocations?user={user}", headers=visitor.bearer)
        seen = {each["job_id"] for each in answer.json()["allocations"] if each["job_id"] < 100}
        expected = {each.job_id for each in WORK if each.user == user and visitor.sees(each)}
        assert seen == expected, (visitor, user)


@pytest.mark.spec("AUTH-12")
@pytest.mark.threat("guessed-id")
async def test_not_yours_and_not_there_are_one_answer(rest: httpx2.AsyncClient) -> None:
    for visitor in VISITORS:
        absent = await rest.get("/v1/allocations/77777", headers=visitor.bearer)
        assert absent.status_code == 404
        for work, job_id in ((each, each.job_id + more) for each in WORK for more in (0, 100)):
            answer = await rest.get(f"/v1/allocations/{job_id}", headers=visitor.bearer)
            if visitor.sees(work):
                assert answer.json()["allocation"]["job_id"] == job_id
                continue
            assert answer.status_code == 404, (visitor, work)
            assert _told(answer, str(job_id)) == _told(absent, "77777")


def _told(answer: httpx2.Response, name: str) -> tuple[dict[str, Any], set[str]]:
    error = answer.json()["error"]
    error.pop("request_id")
    error["message"] = error["message"].replace(name, "ID")
    return error, set(answer.headers)


@pytest.mark.spec("AUTH-7")
async def test_a_node_names_only_visible_work(rest: httpx2.AsyncClient) -> None:
    for visitor in VISITORS:
        answer = await rest.get("/v1/nodes/n1", headers=visitor.bearer)
        expected = {str(each.job_id) for each in WORK if visitor.sees(each)}
        assert set(answer.json()["allocations"]) == expected, visitor


@pytest.mark.spec("AUTH-4", "AUTH-12")
async def test_everyone_cancels_only_what_is_theirs(rest: httpx2.AsyncClient) -> None:
    for visitor in VISITORS:
        absent = await rest.post("/v1/allocations/77777/cancel", headers=visitor.bearer)
        acts = visitor.role != "ReadOnly" and visitor.holds("write")
        assert absent.status_code == (404 if acts else 403), visitor
        for work in WORK:
            answer = await rest.post(
                f"/v1/allocations/{work.job_id}/cancel", headers=visitor.bearer
            )
            if not acts:
                assert answer.status_code == 403
            elif not visitor.sees(work):
                assert answer.status_code == 404, (visitor, work)
                assert _told(answer, str(work.job_id)) == _told(absent, "77777")
            else:
                # Slurm itself has the last word on another's, and on who has no account.
                own = visitor.user == work.user
                assert answer.status_code == (200 if own else 403), (visitor, work, answer.text)


@pytest.mark.spec("AUTH-5", "AUTH-12", "WATCH-3")
@pytest.mark.threat("reading-token")
async def test_everyone_switches_only_her_own_telemetry(rest: httpx2.AsyncClient) -> None:
    """Whatever the role; and who may read a job sees how closely it is measured."""
    audit = {"mode": "audit"}
    bare = await rest.put("/v1/allocations/1/telemetry", json=audit)
    assert bare.status_code == 401
    for visitor in (each for each in VISITORS if each.user in {"alice", "carol"}):
        told = visitor.bearer
        absent = await rest.put("/v1/allocations/777/telemetry", json=audit, headers=told)
        unread = await rest.get("/v1/allocations/777/telemetry", headers=told)
        acts = visitor.role != "ReadOnly" and visitor.holds("write")
        reads = visitor.holds("read")
        assert absent.status_code == (404 if acts else 403), visitor
        for work in WORK[:3]:
            path = f"/v1/allocations/{work.job_id}/telemetry"
            answer = await rest.put(path, json=audit, headers=told)
            if acts and work.user == visitor.user:
                assert answer.status_code == 200, (visitor, work, answer.text)
                assert answer.json()["set_by"] == visitor.user
            else:
                assert answer.status_code == absent.status_code, (visitor, work)
                assert _told(answer, str(work.job_id)) == _told(absent, "777")
            answer = await rest.get(path, headers=told)
            if reads and visitor.sees(work):
                assert answer.status_code == 200, (visitor, work, answer.text)
            else:
                assert answer.status_code == unread.status_code == (404 if reads else 403)
                assert _told(answer, str(work.job_id)) == _told(unread, "777")


@pytest.mark.spec("AUTH-5", "AUTH-7", "AUTH-12", "DIAG-1", "DIAG-6")
async def test_a_diagnosis_is_read_like_output_and_stacks_are_the_owners_alone(
    rest: httpx2.AsyncClient,
) -> None:
    for visitor in (each for each in VISITORS if each.user in {"alice", "carol"}):
        told = visitor.bearer
        unread = await rest.get("/v1/allocations/777/diagnostics", headers=told)
        untaken = await rest.get("/v1/allocations/777/stacks", headers=told)
        reads = visitor.holds("read")
        takes = visitor.role != "ReadOnly" and visitor.holds("attach")
        for work in WORK[:3]:
            path = f"/v1/allocations/{work.job_id}"
            answer = await rest.get(f"{path}/diagnostics", headers=told)
            if reads and visitor.sees(work):
                assert answer.status_code == 200, (visitor, work, answer.text)
            else:
                assert answer.status_code == unread.status_code == (404 if reads else 403)
                assert _told(answer, str(work.job_id)) == _told(unread, "777")
            answer = await rest.get(f"{path}/stacks", headers=told)
            if takes and work.user == visitor.user:
                assert answer.status_code == 200, (visitor, work, answer.text)
            else:
                assert answer.status_code == untaken.status_code == (404 if takes else 403)
                assert _told(answer, str(work.job_id)) == _told(untaken, "777")


@pytest.mark.spec("AUTH-4")
async def test_everyone_but_a_reader_submits_as_herself(rest: httpx2.AsyncClient) -> None:
    script = {"script": "#!/bin/sh\ntrue\n"}
    for prefix in ("/v1", "/api/v1"):
        assert (await rest.post(f"{prefix}/allocations", json=script)).status_code == 401
        for visitor in VISITORS:
            answer = await rest.post(f"{prefix}/allocations", json=script, headers=visitor.bearer)
            acts = visitor.role != "ReadOnly" and visitor.holds("write")
            known = visitor.user in ACCOUNT and acts
            assert answer.status_code == (200 if known else 403), (visitor, answer.text)


@pytest.mark.spec("AUTH-5")
@pytest.mark.threat("reading-token")
async def test_a_token_that_only_reads_neither_submits_nor_cancels(
    rest: httpx2.AsyncClient,
) -> None:
    """Attack 38: it is a 403 that names the scope, and nothing is done."""
    script = {"script": "#!/bin/sh\ntrue\n"}
    reader = Visitor("alice", "User", "allocations:read")
    submitted = await rest.post("/v1/allocations", json=script, headers=reader.bearer)
    cancelled = await rest.post("/v1/allocations/1/cancel", headers=reader.bearer)
    for answer in (submitted, cancelled):
        assert answer.status_code == 403, answer.text
        assert "it lacks allocations:write" in answer.text


@pytest.mark.spec("AUDIT-1")
async def test_a_refused_claim_names_the_scope_that_allows_it(rest: httpx2.AsyncClient) -> None:
    alice = Visitor("alice", "User", "")
    answer = await rest.post("/v1/claims", json={"nodes": ["n1"]}, headers=alice.bearer)
    assert answer.status_code == 403, answer.text
    assert "lattice login --scope sensitive:claim" in answer.text


@pytest.mark.spec("AUTH-5")
@pytest.mark.threat("reading-token")
@pytest.mark.parametrize(
    ("method", "path", "body", "scope"),
    [
        ("POST", "share", {"user": "bob"}, "write"),
        ("POST", "unshare", {"user": "bob"}, "write"),
        ("PUT", "telemetry", {"mode": "audit"}, "write"),
        ("POST", "attach/tickets", {}, "attach"),
    ],
)
async def test_a_token_that_only_reads_neither_shares_nor_switches_nor_attaches(
    rest: httpx2.AsyncClient, method: str, path: str, body: dict[str, str], scope: str
) -> None:
    """Attack 38."""
    reader = Visitor("alice", "User", "allocations:read")
    url = f"/v1/allocations/1/{path}"
    answer = await rest.request(method, url, json=body, headers=reader.bearer)
    assert answer.status_code == 403, answer.text
    assert f"allocations:{scope}" in answer.text


CALLS: dict[str, tuple[Any, Any]] = {
    "lattice.v1.SubmitService/SubmitAllocation": (
        submit_pb2_grpc.SubmitServiceStub,
        submit_pb2.SubmitAllocationRequest(script="#!/bin/sh\ntrue\n"),
    ),
    "lattice.v1.SubmitService/CancelAllocation": (
        submit_pb2_grpc.SubmitServiceStub,
        submit_pb2.CancelAllocationRequest(id="1"),
    ),
    "lattice.v1.AgentService/CreateEnrolment": (
        agents_pb2_grpc.AgentServiceStub,
        agents_pb2.CreateEnrolmentRequest(node="n1"),
    ),
    "lattice.v1.AgentService/Enrol": (
        agents_pb2_grpc.AgentServiceStub,
        agents_pb2.EnrolRequest(token="wrong", node="n1"),
    ),
    "lattice.v1.AgentService/ListAgents": (
        agents_pb2_grpc.AgentServiceStub,
        agents_pb2.ListAgentsRequest(),
    ),
    "lattice.v1.AgentService/RevokeAgent": (
        agents_pb2_grpc.AgentServiceStub,
        agents_pb2.RevokeAgentRequest(node="n1", reason="stolen"),
    ),
    "lattice.v1.AgentService/RestoreAgent": (
        agents_pb2_grpc.AgentServiceStub,
        agents_pb2.RestoreAgentRequest(node="n9"),
    ),
    "lattice.v1.LinkProbe/PingNode": (
        link_pb2_grpc.LinkProbeStub,
        link_pb2.PingNodeRequest(name="n1", count=1),
    ),
    "lattice.v1.LogService/ReadLogs": (
        logs_pb2_grpc.LogServiceStub,
        logs_pb2.ReadLogsRequest(id="1"),
    ),
    "lattice.v1.LogService/StreamLogs": (
        logs_pb2_grpc.LogServiceStub,
        logs_pb2.ReadLogsRequest(id="1"),
    ),
    "lattice.v1.LogService/ListLogStreams": (
        logs_pb2_grpc.LogServiceStub,
        logs_pb2.ListLogStreamsRequest(id="1"),
    ),
    "lattice.v1.LogService/ReadRawLog": (
        logs_pb2_grpc.LogServiceStub,
        logs_pb2.ReadRawLogRequest(id="1", node="n1"),
    ),
    # Of one that is over: that of one that runs has no end.
    "lattice.v1.WatchService/StreamMetrics": (
        watch_pb2_grpc.WatchServiceStub,
        watch_pb2.StreamMetricsRequest(id="101"),
    ),
    "lattice.v1.SharingService/ShareAllocation": (
        sharing_pb2_grpc.SharingServiceStub,
        sharing_pb2.ShareAllocationRequest(id="1", user="bob"),
    ),
    "lattice.v1.SharingService/UnshareAllocation": (
        sharing_pb2_grpc.SharingServiceStub,
        sharing_pb2.UnshareAllocationRequest(id="1", user="nobody"),
    ),
    "lattice.v1.SharingService/ListShares": (
        sharing_pb2_grpc.SharingServiceStub,
        sharing_pb2.ListSharesRequest(id="1"),
    ),
    # Nobody may be locked here: the next caller would be refused for that.
    "lattice.v1.LockService/CreateLock": (
        locks_pb2_grpc.LockServiceStub,
        locks_pb2.CreateLockRequest(kind="nothing"),
    ),
    "lattice.v1.LockService/DeleteLock": (
        locks_pb2_grpc.LockServiceStub,
        locks_pb2.DeleteLockRequest(kind="nothing"),
    ),
    # This site has no vCluster for sensitive work, and nothing is claimed.
    "lattice.v1.ClaimService/ClaimNodes": (
        claims_pb2_grpc.ClaimServiceStub,
        claims_pb2.ClaimNodesRequest(nodes="n1"),
    ),
    "lattice.v1.ClaimService/ReleaseNodes": (
        claims_pb2_grpc.ClaimServiceStub,
        claims_pb2.ReleaseNodesRequest(target="n1"),
    ),
    "lattice.v1.ClaimService/ListClaims": (
        claims_pb2_grpc.ClaimServiceStub,
        claims_pb2.ListClaimsRequest(),
    ),
    "lattice.v1.LockService/ListLocks": (
        locks_pb2_grpc.LockServiceStub,
        locks_pb2.ListLocksRequest(),
    ),
    "lattice.v1.NodeService/ListVclusters": (
        nodes_pb2_grpc.NodeServiceStub,
        nodes_pb2.ListVclustersRequest(),
    ),
    "lattice.v1.TenantService/ListTenants": (
        tenants_pb2_grpc.TenantServiceStub,
        tenants_pb2.ListTenantsRequest(),
    ),
    "lattice.v1.TenantService/GetTenant": (
        tenants_pb2_grpc.TenantServiceStub,
        tenants_pb2.GetTenantRequest(name="nothing"),
    ),
    "lattice.v1.TenantService/CreateTenant": (
        tenants_pb2_grpc.TenantServiceStub,
        tenants_pb2.CreateTenantRequest(name="no name"),
    ),
    "lattice.v1.TenantService/UpdateTenant": (
        tenants_pb2_grpc.TenantServiceStub,
        tenants_pb2.UpdateTenantRequest(name="nothing", max_nodes=1),
    ),
    "lattice.v1.TelemetryService/GetTelemetry": (
        telemetry_pb2_grpc.TelemetryServiceStub,
        telemetry_pb2.GetTelemetryRequest(id="1"),
    ),
    "lattice.v1.TelemetryService/SetTelemetry": (
        telemetry_pb2_grpc.TelemetryServiceStub,
        telemetry_pb2.SetTelemetryRequest(id="1", mode="audit"),
    ),
    "lattice.v1.CompareService/CompareMetrics": (
        compare_pb2_grpc.CompareServiceStub,
        compare_pb2.CompareMetricsRequest(ids=["1", "5"]),
    ),
    "lattice.v1.AttachService/IssueAttachTicket": (
        attach_pb2_grpc.AttachServiceStub,
        attach_pb2.IssueAttachTicketRequest(id="1"),
    ),
    "lattice.v1.AttachService/ListAttachSessions": (
        attach_pb2_grpc.AttachServiceStub,
        attach_pb2.ListAttachSessionsRequest(),
    ),
    "lattice.v1.AttachService/ReadRecording": (
        attach_pb2_grpc.AttachServiceStub,
        attach_pb2.ReadRecordingRequest(session="0" * 32),
    ),
    "lattice.v1.DiagnosticsService/GetDiagnostics": (
        diag_pb2_grpc.DiagnosticsServiceStub,
        diag_pb2.GetDiagnosticsRequest(id="1", areas=["network"]),
    ),
    "lattice.v1.DiagnosticsService/GetStacks": (
        diag_pb2_grpc.DiagnosticsServiceStub,
        diag_pb2.GetStacksRequest(id="1"),
    ),
    "lattice.v1.ReportService/GetReport": (
        report_pb2_grpc.ReportServiceStub,
        report_pb2.GetReportRequest(id="1"),
    ),
    "lattice.v1.TimelineService/GetTimeline": (
        timeline_pb2_grpc.TimelineServiceStub,
        timeline_pb2.GetTimelineRequest(id="1"),
    ),
    "lattice.v1.RunService/ListRuns": (
        runs_pb2_grpc.RunServiceStub,
        runs_pb2.ListRunsRequest(id="1"),
    ),
    "lattice.v1.RunService/FindRuns": (
        runs_pb2_grpc.RunServiceStub,
        runs_pb2.FindRunsRequest(name="resnet-7"),
    ),
    "lattice.v1.AllocationService/ListAllocations": (
        allocations_pb2_grpc.AllocationServiceStub,
        alloc_pb.ListAllocationsRequest(all=True),
    ),
    "lattice.v1.AllocationService/GetAllocation": (
        allocations_pb2_grpc.AllocationServiceStub,
        alloc_pb.GetAllocationRequest(id="1"),
    ),
    "lattice.v1.AllocationService/ListHistory": (
        allocations_pb2_grpc.AllocationServiceStub,
        alloc_pb.ListHistoryRequest(all=True),
    ),
    "lattice.v1.NodeService/ListNodes": (
        nodes_pb2_grpc.NodeServiceStub,
        nodes_pb2.ListNodesRequest(),
    ),
    "lattice.v1.NodeService/GetNode": (
        nodes_pb2_grpc.NodeServiceStub,
        nodes_pb2.GetNodeRequest(name="n1"),
    ),
    "lattice.v1.NodeCheckService/CheckNodes": (
        checks_pb2_grpc.NodeCheckServiceStub,
        checks_pb2.CheckNodesRequest(name="n1", walltime_s=600),
    ),
    "lattice.v1.NodeCheckService/ListNodeChecks": (
        checks_pb2_grpc.NodeCheckServiceStub,
        checks_pb2.ListNodeChecksRequest(name="n1"),
    ),
    **{
        f"lattice.v1.NodeService/{act}Node": (
            nodes_pb2_grpc.NodeServiceStub,
            nodes_pb2.OperateNodeRequest(name="n1", reason="bad DIMM"),
        )
        for act in ("Drain", "Undrain", "Disable", "Enable")
    },
    "lattice.v1.MetricService/QueryMetrics": (
        top_pb2_grpc.MetricServiceStub,
        top_pb2.QueryMetricsRequest(id="1"),
    ),
    **{
        f"lattice.v1.PrometheusService/{call}": (
            prometheus_pb2_grpc.PrometheusServiceStub,
            prometheus_pb2.PrometheusRequest(
                query="lattice_processes",
                start="1700000000",
                end="1700000000",
                step="1",
                match=["{}"],
                name="node",
            ),
        )
        for call in ("QueryInstant", "QueryRange", "ListSeries", "ListLabels", "ListLabelValues")
    },
    "lattice.v1.IdentityService/GetAuthDiscovery": (
        identity_pb2_grpc.IdentityServiceStub,
        identity_pb2.GetAuthDiscoveryRequest(),
    ),
    "lattice.v1.IdentityService/SignInByMunge": (
        identity_pb2_grpc.IdentityServiceStub,
        identity_pb2.SignInByMungeRequest(),
    ),
    "lattice.v1.IdentityService/SignInBySlurmToken": (
        identity_pb2_grpc.IdentityServiceStub,
        identity_pb2.SignInBySlurmTokenRequest(),
    ),
    "lattice.v1.IdentityService/WhoAmI": (
        identity_pb2_grpc.IdentityServiceStub,
        identity_pb2.WhoAmIRequest(),
    ),
    "lattice.v1.AuditService/QueryAudit": (
        audit_pb2_grpc.AuditServiceStub,
        audit_pb2.QueryAuditRequest(),
    ),
    "lattice.v1.AuditService/VerifyAudit": (
        audit_pb2_grpc.AuditServiceStub,
        audit_pb2.VerifyAuditRequest(),
    ),
    "lattice.v1.AuditService/ExportAudit": (
        audit_pb2_grpc.AuditServiceStub,
        audit_pb2.ExportAuditRequest(),
    ),
    "lattice.v1.StateService/GetQuorum": (
        state_pb2_grpc.StateServiceStub,
        state_pb2.GetQuorumRequest(),
    ),
    "lattice.v1.StateService/ListBackups": (
        state_pb2_grpc.StateServiceStub,
        state_pb2.ListBackupsRequest(),
    ),
    "lattice.v1.StateService/CreateBackup": (
        state_pb2_grpc.StateServiceStub,
        state_pb2.CreateBackupRequest(),
    ),
    "lattice.v1.StateService/VerifyBackup": (
        state_pb2_grpc.StateServiceStub,
        state_pb2.VerifyBackupRequest(),
    ),
    "lattice.v1.StateService/RestoreBackup": (
        state_pb2_grpc.StateServiceStub,
        state_pb2.RestoreBackupRequest(),
    ),
    "lattice.v1.DoctorService/Examine": (
        doctor_pb2_grpc.DoctorServiceStub,
        doctor_pb2.ExamineRequest(),
    ),
    "lattice.v1.HealthService/GetHealth": (
        health_pb2_grpc.HealthServiceStub,
        health_pb2.GetHealthRequest(),
    ),
    "lattice.v1.HealthService/GetReadiness": (
        health_pb2_grpc.HealthServiceStub,
        health_pb2.GetReadinessRequest(),
    ),
    "lattice.v1.HealthService/GetMetrics": (
        health_pb2_grpc.HealthServiceStub,
        health_pb2.GetMetricsRequest(),
    ),
    "lattice.v1.HealthService/GetApiDescription": (
        health_pb2_grpc.HealthServiceStub,
        health_pb2.GetApiDescriptionRequest(),
    ),
}


# What a caller who passes the guard is told, where it is not OK: nothing there, or a wrong token.
BEHIND_THE_GUARD = {
    "lattice.v1.IdentityService/SignInByMunge": grpc.StatusCode.INVALID_ARGUMENT,
    "lattice.v1.IdentityService/SignInBySlurmToken": grpc.StatusCode.INVALID_ARGUMENT,
    "lattice.v1.AgentService/Enrol": grpc.StatusCode.PERMISSION_DENIED,
    "lattice.v1.AgentService/RestoreAgent": grpc.StatusCode.NOT_FOUND,
    "lattice.v1.LogService/ReadRawLog": grpc.StatusCode.NOT_FOUND,
    "lattice.v1.AttachService/ReadRecording": grpc.StatusCode.NOT_FOUND,
    "lattice.v1.SharingService/UnshareAllocation": grpc.StatusCode.NOT_FOUND,
    "lattice.v1.TenantService/GetTenant": grpc.StatusCode.NOT_FOUND,
    "lattice.v1.TenantService/CreateTenant": grpc.StatusCode.INVALID_ARGUMENT,
    "lattice.v1.TenantService/UpdateTenant": grpc.StatusCode.NOT_FOUND,
    "lattice.v1.ClaimService/ClaimNodes": grpc.StatusCode.INVALID_ARGUMENT,
    "lattice.v1.ClaimService/ReleaseNodes": grpc.StatusCode.NOT_FOUND,
    "lattice.v1.LockService/CreateLock": grpc.StatusCode.INVALID_ARGUMENT,
    "lattice.v1.LockService/DeleteLock": grpc.StatusCode.INVALID_ARGUMENT,
    "lattice.v1.AuditService/ExportAudit": grpc.StatusCode.FAILED_PRECONDITION,
    "lattice.v1.StateService/CreateBackup": grpc.StatusCode.FAILED_PRECONDITION,
    "lattice.v1.StateService/VerifyBackup": grpc.StatusCode.FAILED_PRECONDITION,
    "lattice.v1.StateService/RestoreBackup": grpc.StatusCode.FAILED_PRECONDITION,
}
MACHINES = {"AGENT", "REPLICA"}
ECHO = "lattice.v1.LinkProbe/EchoNode"
ATTACH = "lattice.v1.AttachService/Attach"


async def _call(channel: aio.Channel, rpc: str, request: Any, bearer: str = "") -> Any:
    stub = CALLS[rpc][0](channel)
    metadata = (("authorization", f"Bearer {bearer}"),) if bearer else ()
    answer = getattr(stub, rpc.rpartition("/")[2])(request, metadata=metadata)
    if isinstance(answer, aio.UnaryStreamCall):
        return [each async for each in answer]
    return await answer


async def _code(channel: aio.Channel, rpc: str, bearer: str = "") -> grpc.StatusCode:
    try:
        await _call(channel, rpc, CALLS[rpc][1], bearer)
    except aio.AioRpcError as error:
        return error.code()
    return grpc.StatusCode.OK


@pytest.mark.spec("AUTH-6")
def test_every_rpc_is_walked() -> None:
    table = declared_permissions()
    for_people = {rpc for rpc, needed in table.items() if needed not in MACHINES}
    assert set(CALLS) | {ECHO, ATTACH} == for_people


@pytest.mark.spec("AUTH-4", "AUTH-6")
async def test_the_echo_stream_by_role(channel: aio.Channel) -> None:
    """A stream is let in or refused like any other call; badly opened, it gets no further."""
    opening = link_pb2.Frame(open=link_pb2.StreamOpening(node="n1", session="no session"))
    for role in ("", *ROLES):
        bearer = f"Bearer {Visitor('alice', role, '').token}" if role else ""
        allowed = role != "" and admitted(role, "OPERATE_NODES")
        dial: Any = channel.stream_stream
        call = dial(f"/{ECHO}")(metadata=(("authorization", bearer),))
        if allowed:
            await call.write(opening.SerializeToString())
        with pytest.raises(aio.AioRpcError) as refusal:
            await call.read()
        expected = grpc.StatusCode.PERMISSION_DENIED if role else grpc.StatusCode.UNAUTHENTICATED
        expected = grpc.StatusCode.INVALID_ARGUMENT if allowed else expected
        assert refusal.value.code() is expected, role


async def _terminal_answer(
    channel: aio.Channel, bearer: str, name: str
) -> tuple[grpc.StatusCode, str]:
    """How the server ends a terminal that was asked for.

    Where a refusal crosses the first message on its way, grpc's client forgets what it was told;
    it is asked again then.
    """
    start = f'{{"type":"start","session":"{secrets.token_hex(16)}"}}'.encode()
    opening = link_pb2.StreamOpening(allocation=name, opening=start)
    dial: Any = channel.stream_stream
    while True:
        call = dial(f"/{ATTACH}")(metadata=(("authorization", bearer),))
        try:
            await call.write(link_pb2.Frame(open=opening).SerializeToString())
            while await call.read() is not aio.EOF:  # type: ignore[attr-defined]
                pass
        except (aio.AioRpcError, asyncio.InvalidStateError):
            pass
        code, details = await call.code(), await call.details()
        if details != "Internal error from Core":
            return code, details


@pytest.mark.spec("ATTACH-1", "AUTH-5", "AUTH-7", "AUTH-12")
@pytest.mark.threat("reading-token")
async def test_a_terminal_over_grpc_is_its_owners_alone(channel: aio.Channel) -> None:
    """Attack 1: whatever the role, another's job and one that never was are the same answer."""
    for visitor in (*VISITORS, None):
        bearer = f"Bearer {visitor.token}" if visitor else ""
        told = set()
        for work in (*WORK, Work(77777, "", "")):
            name = str(work.job_id)
            code, details = await _terminal_answer(channel, bearer, name)
            if visitor and visitor.user == work.user and code is grpc.StatusCode.UNAVAILABLE:
                assert "n1" in details, "the node is asked for, and there is none"
                continue
            told.add((code, details.replace(name, "ID")))
        assert len(told) == 1, told
        ((code, _),) = told
        if visitor is None:
            assert code is grpc.StatusCode.UNAUTHENTICATED
        elif visitor.role == "ReadOnly" or not visitor.holds("attach"):
            assert code is grpc.StatusCode.PERMISSION_DENIED, visitor
        else:
            assert code is grpc.StatusCode.NOT_FOUND, visitor


@pytest.mark.spec("AUTH-6", "AUTH-9")
async def test_no_token_opens_what_is_for_certificates(channel: aio.Channel) -> None:
    admin = (("authorization", f"Bearer {Visitor('alice', 'SystemAdmin', '').token}"),)
    machines = [rpc for rpc, needed in declared_permissions().items() if needed in MACHINES]
    assert machines
    for rpc in machines:
        with pytest.raises(aio.AioRpcError) as refusal:
            await channel.unary_unary(f"/{rpc}")(b"", metadata=admin)
        assert refusal.value.code() is grpc.StatusCode.UNIMPLEMENTED, rpc


@pytest.mark.spec("AUTH-4", "AUTH-6")
async def test_every_rpc_without_a_token_and_by_role(channel: aio.Channel) -> None:
    for rpc in CALLS:
        permission = declared_permissions()[rpc]
        passed = BEHIND_THE_GUARD.get(rpc, grpc.StatusCode.OK)
        bare = await _code(channel, rpc)
        public = permission == "PUBLIC"
        assert bare is (passed if public else grpc.StatusCode.UNAUTHENTICATED), rpc
        for role in ROLES:
            code = await _code(channel, rpc, Visitor("alice", role, "").token)
            expected = passed
            if not admitted(role, permission):
                expected = grpc.StatusCode.PERMISSION_DENIED
            assert code is expected, (rpc, role)


@pytest.mark.spec("AUTH-4", "AUTH-7")
async def test_everyone_sees_exactly_what_is_theirs_over_grpc(channel: aio.Channel) -> None:
    lists = "lattice.v1.AllocationService/ListAllocations"
    one = "lattice.v1.AllocationService/GetAllocation"
    for visitor in VISITORS:
        visible = {each.job_id for each in WORK if visitor.sees(each)}
        answer = await _call(channel, lists, CALLS[lists][1], visitor.token)
        seen = {each.job_id for each in answer.allocations}
        assert seen == visible | {each + 100 for each in visible}, visitor
        for work in WORK:
            request = alloc_pb.GetAllocationRequest(id=str(work.job_id))
            if visitor.sees(work):
                card = await _call(channel, one, request, visitor.token)
                assert card.allocation.job_id == work.job_id
                continue
            with pytest.raises(aio.AioRpcError) as refusal:
                await _call(channel, one, request, visitor.token)
            assert refusal.value.code() is grpc.StatusCode.NOT_FOUND


@pytest.mark.spec("AUTH-6")
async def test_an_unknown_rpc_is_not_offered(channel: aio.Channel) -> None:
    call = channel.unary_unary("/lattice.v1.AllocationService/DeleteEverything")
    with pytest.raises(aio.AioRpcError) as refusal:
        await call(b"", metadata=(("authorization", f"Bearer {token('alice')}"),))
    assert refusal.value.code() is grpc.StatusCode.UNIMPLEMENTED
