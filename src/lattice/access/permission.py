"""The permissions. Every rpc names one of these in its proto; what names none is refused.

The names equal those of `lattice.v1.Permission`; a test holds the two lists together.
"""

from __future__ import annotations

from enum import StrEnum


class Permission(StrEnum):
    """What a call needs. The first two need no role, the others stand in the policy's table."""

    PUBLIC = "PUBLIC"
    IDENTIFIED = "IDENTIFIED"
    VIEW_ALLOCATIONS = "VIEW_ALLOCATIONS"
    READ_OUTPUT = "READ_OUTPUT"
    """What a job wrote, and what was measured of it."""
    ATTACH_ALLOCATION = "ATTACH_ALLOCATION"
    SUBMIT_ALLOCATION = "SUBMIT_ALLOCATION"
    CANCEL_ALLOCATION = "CANCEL_ALLOCATION"
    SHARE_ALLOCATION = "SHARE_ALLOCATION"
    VIEW_SHARES = "VIEW_SHARES"
    SWITCH_TELEMETRY = "SWITCH_TELEMETRY"
    """How closely a job is measured."""
    VIEW_NODES = "VIEW_NODES"
    DRAIN_NODES = "DRAIN_NODES"
    OPERATE_NODES = "OPERATE_NODES"
    CLAIM_NODES = "CLAIM_NODES"
    REVIEW_AUDIT = "REVIEW_AUDIT"
    MANAGE_TENANTS = "MANAGE_TENANTS"
    OBSERVE_SERVER = "OBSERVE_SERVER"
    ADMINISTER = "ADMINISTER"
    LOCK_ACCESS = "LOCK_ACCESS"
    """Shut users, nodes and terminals out of Lattice, and let them in again."""
    # Not people: certificates, on the agents' own listener. No token ever holds one of these.
    AGENT = "AGENT"
    REPLICA = "REPLICA"
