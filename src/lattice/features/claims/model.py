"""Requests and answers of the feature. Pure."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Annotated

from lattice.base.operation import FieldRule
from lattice.domain.claim import ClaimStep, NodeClaim

LONGEST_REASON = 200
_LONGEST_SET = 16 * 1024


@dataclass(frozen=True, slots=True, kw_only=True)
class ClaimOrder:
    """Which nodes to claim, and why."""

    nodes: Annotated[str, FieldRule(longest=_LONGEST_SET)]
    """One node, or several in Slurm's notation: `n[1-3]`."""
    reason: Annotated[str, FieldRule(longest=LONGEST_REASON)] = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class ReleaseOrder:
    """Which claim to release: its id, or its nodes."""

    target: Annotated[str, FieldRule(longest=_LONGEST_SET)]


@dataclass(frozen=True, slots=True, kw_only=True)
class ClaimCard:
    """One claim."""

    id: str
    user: str
    tenant: str = ""
    nodes: str
    """In Slurm's notation."""
    step: ClaimStep
    since: datetime
    reason: str = ""
    reservation: str
    """Its name in Slurm."""

    @classmethod
    def of(cls, claim: NodeClaim) -> ClaimCard:
        return cls(
            id=claim.id,
            user=claim.user,
            tenant=claim.tenant,
            nodes=claim.folded,
            step=claim.step,
            since=datetime.fromtimestamp(claim.since, UTC),
            reason=claim.reason,
            reservation=claim.reservation.name,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class ClaimAnswer:
    """The claim after the act; `changed` is False if nothing had to be done."""

    claim: ClaimCard
    changed: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class ClaimList:
    """The claims that the caller may see, by their nodes."""

    claims: tuple[ClaimCard, ...] = ()
