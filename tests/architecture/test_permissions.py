"""Every rpc and route declares who may call it; what declares nothing can't be built."""

from __future__ import annotations

import itertools

import pytest
from fastapi import FastAPI
from fastapi.routing import APIRoute
from google.protobuf import descriptor_pb2, descriptor_pool
from starlette.routing import WebSocketRoute

from lattice.access.actor import Actor, Role
from lattice.access.permission import Permission
from lattice.access.policy import ALLOWED, admits
from lattice.wire.guard import GuardedRoutes, UndeclaredPermission, _of_file, declared_permissions
from lattice.wire.v1 import options_pb2
from lattice.wire.websocket import SocketEndpoint
from tests.fakes.server import composed

MACHINES = {"AGENT", "REPLICA"}
PIPES = {"lattice.v1.LinkProbe/EchoNode"}
"""Two-way streams of frames, for services; REST has no such thing."""


@pytest.mark.spec("AUTH-6")
def test_the_protos_and_the_policy_know_the_same_permissions() -> None:
    in_proto = set(options_pb2.Permission.keys()) - {"PERMISSION_UNSPECIFIED"}
    assert in_proto == {each.name for each in Permission}
    assert set(ALLOWED) == set(Permission) - {Permission.PUBLIC}


@pytest.mark.spec("AUTH-6")
def test_every_rpc_declares_a_permission() -> None:
    table = declared_permissions()
    assert len(table) >= 9
    assert all(Permission(permission) for permission in table.values())


@pytest.mark.spec("AUTH-6")
def test_an_rpc_that_declares_none_is_refused() -> None:
    file = descriptor_pb2.FileDescriptorProto(
        name="careless.proto", package="careless", syntax="proto3"
    )
    file.message_type.add(name="Nothing")
    file.service.add(name="Careless").method.add(
        name="Peek", input_type=".careless.Nothing", output_type=".careless.Nothing"
    )
    pool = descriptor_pool.DescriptorPool()
    pool.Add(file)
    with pytest.raises(UndeclaredPermission, match=r"careless\.Careless/Peek"):
        _of_file(pool.FindFileByName("careless.proto"))


@pytest.mark.spec("AUTH-6")
def test_a_route_that_names_no_declared_rpc_is_refused() -> None:
    async def never(*, rpc: str, permission: str, authorization: str) -> None:
        raise AssertionError

    routes: GuardedRoutes[None] = GuardedRoutes(declared_permissions(), never)
    with pytest.raises(UndeclaredPermission, match=r"lattice\.v1\.Nothing/Peek"):
        routes.get("/peek", rpc="lattice.v1.Nothing/Peek")


@pytest.mark.spec("AUTH-6")
async def test_every_route_of_the_server_went_through_the_guard() -> None:
    faces = composed()
    offered = {(method, route.path) for route in _routes(faces.rest) for method in route.methods}
    assert offered == set(faces.routes.rpc_of_route)
    assert set(faces.routes.rpc_of_route.values()) <= set(declared_permissions())


async def test_every_rpc_can_be_reached_over_rest() -> None:
    for_people = {rpc for rpc, needed in declared_permissions().items() if needed not in MACHINES}
    assert set(composed().routes.rpc_of_route.values()) == for_people - PIPES


@pytest.mark.spec("AUTH-6")
async def test_no_role_and_no_route_has_what_only_certificates_have() -> None:
    """AGENT and REPLICA are the agents' own listener's; on the people's ports they do not exist."""
    permissions = declared_permissions()
    offered = composed().routes.rpc_of_route.values()
    assert not [rpc for rpc in offered if permissions[rpc] in MACHINES]
    for role, permission in itertools.product(Role, MACHINES):
        admin = Actor(sub="s", role=role, scopes=frozenset({"admin"}))
        assert not admits(admin, Permission(permission))


def _routes(app: FastAPI) -> list[APIRoute]:
    for route in app.routes:
        guarded = isinstance(route, APIRoute) or (
            isinstance(route, WebSocketRoute) and isinstance(route.app, SocketEndpoint)
        )
        assert guarded, "a route without a guard"
    return [route for route in app.routes if isinstance(route, APIRoute)]
