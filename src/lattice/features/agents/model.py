"""What the feature answers: pure data."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime

from lattice.domain.node import AgentLink
from lattice.domain.source import Source


@dataclass(frozen=True, slots=True, kw_only=True)
class Enrolment:
    """A token for one node, shown this once."""

    node: str
    token: str
    expires: datetime


@dataclass(frozen=True, slots=True, kw_only=True)
class Credentials:
    """What a node needs to speak, and to know whom it speaks to. Nothing in it is secret."""

    cluster: str
    node: str
    certificate: str
    authorities: str
    grant_keys: tuple[str, ...]
    replicas: tuple[str, ...]
    not_after: datetime


@dataclass(frozen=True, slots=True, kw_only=True)
class Agent:
    """One node's agent: whether it is there, and whether it is believed."""

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


@dataclass(frozen=True, slots=True, kw_only=True)
class AgentList:
    """Every agent that was ever certified, seen or refused."""

    agents: tuple[Agent, ...]
    sources: tuple[Source, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class EnrolmentOrder:
    """Asks for a token. `life_s` 0: an hour."""

    node: str
    life_s: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class EnrolmentClaim:
    """A token, the node it is for, and a signing request as PEM."""

    token: str
    node: str
    csr: str


@dataclass(frozen=True, slots=True, kw_only=True)
class RevocationOrder:
    """Why a node is believed no more."""

    reason: str
