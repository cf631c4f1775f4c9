"""The answers of the feature: pure data."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime

from lattice.domain.node import UNREPORTED, AgentFacts, AgentLink
from lattice.domain.source import Source


@dataclass(frozen=True, slots=True, kw_only=True)
class Enrolment:
    """A token for a node, or for each of a set of nodes. Only this answer has it."""

    node: str
    token: str
    expires: datetime
    join_key: str = ""
    """The line with token, servers and authority, for the node's `join_key_file`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Credentials:
    """What a node needs to connect and to verify the server. Nothing in it is secret."""

    cluster: str
    node: str
    certificate: str
    authorities: str
    grant_keys: tuple[str, ...]
    replicas: tuple[str, ...]
    not_after: datetime


@dataclass(frozen=True, slots=True, kw_only=True)
class ClusterStatement:
    """What `Credentials` has beside a certificate, for the node and the nonce that asked."""

    cluster: str
    node: str
    nonce: str
    authorities: str
    grant_keys: tuple[str, ...]
    replicas: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Agent:
    """One node's agent: its link, its certificate and whether it is trusted."""

    node: str
    link: AgentLink = AgentLink.NEVER
    replica: str = ""
    since: datetime | None = None
    version: str = ""
    certificate_expires: datetime | None = None
    revoked: datetime | None = None
    revoked_by: str = ""
    revoked_reason: str = ""
    quarantined: datetime | None = None
    quarantine: str = ""
    lacks: tuple[str, ...] = ()
    """What is wrong with the agent or its certificate, and what to do."""
    facts: AgentFacts = UNREPORTED
    """What a linked agent measured of itself."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AgentList:
    """Every agent that ever had a certificate, a link or a refusal."""

    agents: tuple[Agent, ...]
    sources: tuple[Source, ...]
