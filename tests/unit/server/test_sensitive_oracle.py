"""A stranger can't tell a sensitive job from one that does not exist, and a refusal is recorded.

All calls of both faces are asked about both. Who may know of the job is refused by name, which the
audit log then has. Times are not compared: the same questions to Slurm are the same work.
"""

from __future__ import annotations

import json
import logging
import re
from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import grpc
import httpx2
import pytest
import structlog
from google.protobuf.message import Message
from grpc import aio

from lattice.base.clock import SystemClock
from lattice.domain.audit import AuditAct
from lattice.server.listeners.composition import Faces
from lattice.wire.guard import declared_permissions
from tests.fakes import foundation
from tests.fakes.cluster import populated
from tests.fakes.in_memory_scheduler import InMemoryScheduler
from tests.fakes.required_trail import RequiredTrail
from tests.fakes.server import composed
from tests.unit.server.test_every_door import CALLS, ROLES, Visitor, _call, _terminal_answer
from tests.unit.server.test_sensitive_walk import CLAIMED, VAULT, WALKERS

SENSITIVE = ("1", "101")
"""One that runs and one that ended, both of alice."""
ABSENT = "77777"
OWN = "2"
"""Of bob, and not sensitive."""
STRANGERS = [
    *(Visitor("bob", role, "") for role in ROLES if not role.startswith("SystemAdmin")),
    Visitor("nobody", "Operator", ""),
]


@dataclass
class Server:
    faces: Faces
    scheduler: InMemoryScheduler
    trail: RequiredTrail
    channel: aio.Channel
    rest: httpx2.AsyncClient
    log: list[Any]


@pytest.fixture
async def server(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Server]:
    """All jobs of alice's are sensitive."""
    capture = structlog.testing.LogCapture()
    log = structlog.wrap_logger(
        structlog.PrintLogger(), processors=[capture], wrapper_class=structlog.stdlib.BoundLogger
    )
    monkeypatch.setattr(foundation, "SILENT_LOG", log)
    scheduler, trail = populated(SystemClock()), RequiredTrail()
    for jobs in (scheduler.allocations, scheduler.remembered):
        jobs[:] = [
            replace(each, vcluster="vault") if each.user == "alice" else each for each in jobs
        ]
    faces = composed(scheduler, views=VAULT, audit=trail, claims=CLAIMED)
    address = f"unix:{tmp_path}/grpc.sock"
    faces.grpc.add_insecure_port(address)
    await faces.grpc.start()
    transport = httpx2.ASGITransport(app=faces.rest)
    async with (
        aio.insecure_channel(address) as channel,
        httpx2.AsyncClient(transport=transport, base_url="http://server") as rest,
    ):
        yield Server(faces, scheduler, trail, channel, rest, capture.entries)
    await faces.grpc.stop(None)


def _about(rpc: str, job: str) -> Iterator[Message]:
    """The requests of a call that name this job, alone or beside one of the caller's."""
    request = CALLS[rpc][1]
    fields = {each.name for each in request.DESCRIPTOR.fields}
    for field in sorted(fields & {"id", "allocation"}):
        asked = type(request)()
        asked.CopyFrom(request)
        setattr(asked, field, job)
        yield asked
    if "ids" in fields:
        for ids in ((OWN, job), (job, OWN), (job, ABSENT + "0")):
            asked = type(request)()
            asked.CopyFrom(request)
            del asked.ids[:]
            asked.ids.extend(ids)
            yield asked


def _without(job: str, text: str) -> str:
    return re.sub(rf"\b{job}\b", "ID", text)


async def _answer(server: Server, rpc: str, asked: Message, job: str, bearer: str) -> Any:
    """All that a caller of gRPC gets, with the job's number left out, and what it cost."""
    before = len(server.scheduler.questions)
    try:
        got: Any = str(await _call(server.channel, rpc, asked, bearer))
        code: Any = grpc.StatusCode.OK
    except aio.AioRpcError as error:
        code, got = error.code(), error.details() or ""
        keys = sorted(str(each[0]) for each in error.trailing_metadata() or ())  # type: ignore[index]
        got = f"{got} {keys}"
    return code, _without(job, got), len(server.scheduler.questions) - before


@pytest.mark.spec("AUTH-7", "AUTH-12")
@pytest.mark.threat(25, "guessed-id")
async def test_no_call_tells_a_stranger_that_it_exists(server: Server) -> None:
    walked = set()
    for rpc in CALLS:
        for visitor in STRANGERS:
            absent = [
                await _answer(server, rpc, asked, ABSENT, visitor.token)
                for asked in _about(rpc, ABSENT)
            ]
            for job in SENSITIVE:
                asked = [
                    await _answer(server, rpc, each, job, visitor.token)
                    for each in _about(rpc, job)
                ]
                assert asked == absent, (visitor, rpc, job)
            walked |= {rpc} if absent else set()
    assert len(walked) > 15
    assert server.trail.events == server.trail.refused == []


@pytest.mark.spec("AUTH-7", "AUTH-12")
@pytest.mark.threat(25, "guessed-id")
async def test_no_route_tells_a_stranger_that_it_exists(server: Server) -> None:
    routes = [each for each in server.faces.routes.rpc_of_route if "{id}" in each[1]]
    assert len(routes) > 15

    async def told(method: str, path: str, job: str, visitor: Visitor) -> tuple[Any, ...]:
        answer = await server.rest.request(
            method, path.replace("{id}", job), headers=visitor.bearer, json={}
        )
        text = answer.text
        if answer.headers.get("content-type", "").startswith("application/json"):
            found = answer.json()
            found.get("error", {}).pop("request_id", None)
            text = json.dumps(found)
        return answer.status_code, _without(job, text), sorted(answer.headers)

    for (method, path), visitor in ((each, who) for each in routes for who in STRANGERS):
        absent = await told(method, path, ABSENT, visitor)
        for job in SENSITIVE:
            assert await told(method, path, job, visitor) == absent, (visitor, method, path)
    for query in ("ids=2,{}", "ids={},2"):
        for visitor in STRANGERS:
            path = f"/v1/compare?{query.replace('{}', '{id}')}"
            absent = await told("GET", path, ABSENT, visitor)
            for job in SENSITIVE:
                assert await told("GET", path, job, visitor) == absent, (visitor, query)


@pytest.mark.spec("AUTH-7")
@pytest.mark.threat(25)
async def test_no_list_names_it(server: Server) -> None:
    hidden = {"work-1", "work-5", "work-101", "work-105"}
    for visitor in STRANGERS:
        for path in (
            "/v1/allocations?all=true",
            "/v1/allocations?all=true&user=alice",
            "/v1/history?all=true",
            "/v1/history?all=true&user=alice",
            "/v1/nodes/n1",
            "/v1/nodes",
            "/v1/audit",
        ):
            answer = await server.rest.get(path, headers=visitor.bearer)
            assert not [each for each in hidden if f'"{each}"' in answer.text], (visitor, path)
            text = answer.text
            if visitor.role == "Operator":
                # Who operates nodes has to know whose they are now.
                text = re.sub(r'"claimed_by": ?"alice"', "", text)
            assert "alice" not in text, (visitor, path)
        node = await server.rest.get("/v1/nodes/n1", headers=visitor.bearer)
        assert not {"1", "5"} & set(node.json().get("allocations", ())), visitor


KNOWING = {
    "LogService/ReadLogs": AuditAct.LOG_READ,
    "ReportService/GetReport": AuditAct.METRIC_READ,
    "CompareService/CompareMetrics": AuditAct.METRIC_READ,
    "AttachService/IssueAttachTicket": AuditAct.ATTACH_START,
    "SharingService/ShareAllocation": AuditAct.SHARE,
    "TelemetryService/SetTelemetry": AuditAct.MODE_SWITCH,
}


@pytest.mark.spec("AUTH-4", "AUTH-7", "AUDIT-3")
@pytest.mark.threat(2)
async def test_an_administrators_refusal_is_recorded_once_a_minute(server: Server) -> None:
    root = Visitor("nobody", "SystemAdmin", "")
    for rpc, act in KNOWING.items():
        server.trail.noted.clear()
        asked = CALLS[f"lattice.v1.{rpc}"][1]
        for _ in range(3):
            with pytest.raises(aio.AioRpcError, match="SensitiveIsolation") as refusal:
                await _call(server.channel, f"lattice.v1.{rpc}", asked, root.token)
            assert refusal.value.code() is grpc.StatusCode.PERMISSION_DENIED
        recorded = [each for each in server.trail.refused if each.act is act]
        (event,) = recorded
        assert (event.user, event.role, event.owner) == ("nobody", "SystemAdmin", "alice")
        assert event.allocation.startswith("1@")
    assert server.trail.events == []


@pytest.mark.spec("ATTACH-1", "AUTH-7", "AUDIT-3")
@pytest.mark.threat(2)
async def test_a_refused_terminal_is_recorded(server: Server) -> None:
    for visitor in WALKERS:
        if visitor.user == "alice":
            continue
        _, words = await _terminal_answer(server.channel, f"Bearer {visitor.token}", "1")
        refused = [each.user for each in server.trail.refused]
        isolated = words.startswith("SensitiveIsolation")
        # The same person by another claim of the same role is no other refusal.
        assert (visitor.user in refused) or not isolated, visitor
    assert {each.act for each in server.trail.refused} == {AuditAct.ATTACH_START}
    roles = [(each.user, each.role) for each in server.trail.refused]
    assert sorted(roles) == [
        ("bob", "SystemAdmin"),
        ("carol", "SystemAdmin"),
        ("carol", "TenantAdmin"),
        ("nobody", "SystemAdmin"),
    ]


@pytest.mark.spec("AUTH-8")
@pytest.mark.threat(26)
async def test_no_token_is_in_the_log_or_the_audit_log(
    server: Server, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG)
    permissions = declared_permissions()
    visitors = [Visitor("alice", "ClaimingUser", ""), Visitor("nobody", "SystemAdmin", "")]
    answers: list[Any] = []
    for visitor in visitors:
        for rpc in CALLS:
            if permissions[rpc] == "ADMINISTER":
                continue
            answers.append(await _answer(server, rpc, CALLS[rpc][1], "-", visitor.token))
        for (method, path), rpc in server.faces.routes.rpc_of_route.items():
            if method == "GET" and permissions[rpc] != "PUBLIC" and "watch" not in path:
                asked = path.replace("{id}", "1").replace("{name}", "n1")
                # In the address it is no token, and is not repeated either.
                for query in ("", f"?token={visitor.token}&access_token={visitor.token}"):
                    answer = await server.rest.get(asked + query, headers=visitor.bearer)
                    answers.append(answer.text)
    # The client of this test logs what it asks.
    records = [each for each in caplog.records if not each.name.startswith("httpx")]
    recorded = (*server.trail.events, *server.trail.refused)
    written = "\n".join(map(str, (*server.log, *map(vars, records), *recorded, *answers)))
    assert server.trail.events
    assert {each["event"] for each in server.log} >= {"access refused", "act"}
    for visitor in visitors:
        signature = visitor.token.rpartition(".")[2]
        assert visitor.token not in written
        assert signature not in written
