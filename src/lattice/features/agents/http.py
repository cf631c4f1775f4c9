"""The feature over REST. Each route names its rpc and inherits its permission."""

from __future__ import annotations

from typing import Annotated

from fastapi import Header, Path, Request

from lattice.access.actor import Actor
from lattice.features.agents.model import (
    Agent,
    AgentList,
    Credentials,
    Enrolment,
    EnrolmentClaim,
    EnrolmentOrder,
    RevocationOrder,
)
from lattice.features.agents.service.enrolment import EnrolmentService
from lattice.features.agents.service.trust import TrustedNodes
from lattice.wire.guard import GuardedRoutes


def offer(routes: GuardedRoutes[Actor], enrolment: EnrolmentService, trust: TrustedNodes) -> None:
    """Put the feature's routes among the server's."""
    rpc = "lattice.v1.AgentService/"

    @routes.get("/agents", rpc=rpc + "ListAgents", response_model=AgentList)
    async def list_agents() -> AgentList:
        return await trust.agents()

    @routes.post(
        "/agents/enrolments",
        rpc=rpc + "CreateEnrolment",
        body=EnrolmentOrder,
        response_model=Enrolment,
    )
    async def create_enrolment(request: Request) -> Enrolment:
        order = await routes.body(request, EnrolmentOrder)
        return await enrolment.create(routes.caller(request), order.node, order.life_s)

    @routes.post(
        "/agents/enrol", rpc=rpc + "Enrol", body=EnrolmentClaim, response_model=Credentials
    )
    async def enrol(request: Request) -> Credentials:
        claim = await routes.body(request, EnrolmentClaim, 32 * 1024)
        return await enrolment.enrol(claim.token, claim.node, claim.csr)

    @routes.post(
        "/agents/{name}/revoke", rpc=rpc + "RevokeAgent", body=RevocationOrder, response_model=Agent
    )
    async def revoke(request: Request, name: Annotated[str, Path(max_length=256)]) -> Agent:
        order = await routes.body(request, RevocationOrder)
        return await trust.revoke(routes.caller(request), name, order.reason)

    @routes.post("/agents/{name}/restore", rpc=rpc + "RestoreAgent", response_model=Agent)
    async def restore(
        request: Request,
        name: Annotated[str, Path(max_length=256)],
        lattice_repeated: Annotated[bool, Header()] = False,
    ) -> Agent:
        return await trust.restore(routes.caller(request), name, repeated=lattice_repeated)
