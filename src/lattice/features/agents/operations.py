"""The operations of the feature and the functions that make their calls. No I/O."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, TypeAlias

from lattice.base.call import Call
from lattice.base.operation import FieldRule, Operation
from lattice.domain.request_fields import EmptyRequest, Repeated
from lattice.features.agents.model import Agent, AgentList, Credentials, Enrolment

_SERVICE = "lattice.v1.AgentService/"

_NodeInPath: TypeAlias = Annotated[str, FieldRule(name="name", longest=256)]


@dataclass(frozen=True, slots=True, kw_only=True)
class EnrolmentOrder:
    """A request for a token. `life_s` 0 means an hour."""

    node: str
    life_s: int = 0
    again: bool = False
    """Each node may use it more than once: nodes without a disk, at each boot."""
    networks: tuple[str, ...] = ()
    """Where nodes may use it from, such as `10.1.0.0/16`; empty: from anywhere."""


@dataclass(frozen=True, slots=True, kw_only=True)
class EnrolmentClaim:
    """A token, its node, and a signing request as PEM."""

    token: str
    node: str
    csr: str


@dataclass(frozen=True, slots=True, kw_only=True)
class RevocationOrder:
    """Which node is no longer trusted, and why."""

    node: _NodeInPath
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class RestoreRequest:
    """Which node is trusted again."""

    node: _NodeInPath
    repeated: Repeated = False


LIST_AGENTS = Operation(
    rpc=_SERVICE + "ListAgents",
    method="GET",
    path="/agents",
    request=EmptyRequest,
    answer=AgentList,
)
CREATE_ENROLMENT = Operation(
    rpc=_SERVICE + "CreateEnrolment",
    method="POST",
    path="/agents/enrolments",
    request=EnrolmentOrder,
    answer=Enrolment,
    # A repeated call makes a second token; the first expires unused.
    idempotent=True,
)
ENROL = Operation(
    rpc=_SERVICE + "Enrol",
    method="POST",
    path="/agents/enrol",
    request=EnrolmentClaim,
    answer=Credentials,
    largest_body_bytes=32 * 1024,
)
REVOKE_AGENT = Operation(
    rpc=_SERVICE + "RevokeAgent",
    method="POST",
    path="/agents/{name}/revoke",
    request=RevocationOrder,
    answer=Agent,
    idempotent=True,
)
RESTORE_AGENT = Operation(
    rpc=_SERVICE + "RestoreAgent",
    method="POST",
    path="/agents/{name}/restore",
    request=RestoreRequest,
    answer=Agent,
    # A repeated call has nothing to restore, which is no error.
    idempotent=True,
)


def list_agents() -> Call[AgentList]:
    """List every agent and whether it is trusted."""
    return LIST_AGENTS.call(EmptyRequest())


def create_enrolment(
    node: str, ttl_s: int = 0, *, again: bool = False, networks: tuple[str, ...] = ()
) -> Call[Enrolment]:
    """Make a token with which a node can enrol once, or each node of a set.

    A repeated call makes a second token; the first expires unused.
    """
    return CREATE_ENROLMENT.call(
        EnrolmentOrder(node=node, life_s=ttl_s, again=again, networks=networks)
    )


def revoke_agent(node: str, reason: str) -> Call[Agent]:
    """Refuse every certificate that the node has now."""
    return REVOKE_AGENT.call(RevocationOrder(node=node, reason=reason))


def restore_agent(node: str) -> Call[Agent]:
    """Remove a revocation and a quarantine; a repeated call is no error."""
    return RESTORE_AGENT.call(RestoreRequest(node=node))
