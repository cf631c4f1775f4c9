"""The permissions. Every rpc names one of these in its proto; an rpc without one is refused.

The names equal those of `lattice.v1.Permission`; a test compares the two lists.
"""

from __future__ import annotations

from enum import StrEnum


class Permission(StrEnum):
    """What a call needs. `PUBLIC` needs no token; the policy has the roles of the others."""

    PUBLIC = "PUBLIC"
    IDENTIFIED = "IDENTIFIED"
    VIEW_ALLOCATIONS = "VIEW_ALLOCATIONS"
    READ_OUTPUT = "READ_OUTPUT"
    READ_MEASUREMENTS = "READ_MEASUREMENTS"
    """What is measured of a job."""
    ATTACH_ALLOCATION = "ATTACH_ALLOCATION"
    SUBMIT_ALLOCATION = "SUBMIT_ALLOCATION"
    CANCEL_ALLOCATION = "CANCEL_ALLOCATION"
    SHARE_ALLOCATION = "SHARE_ALLOCATION"
    VIEW_SHARES = "VIEW_SHARES"
    SWITCH_TELEMETRY = "SWITCH_TELEMETRY"
    """How often a job is sampled."""
    VIEW_NODES = "VIEW_NODES"
    DRAIN_NODES = "DRAIN_NODES"
    OPERATE_NODES = "OPERATE_NODES"
    CLAIM_NODES = "CLAIM_NODES"
    """Claim nodes for one's own sensitive work."""
    RELEASE_NODES = "RELEASE_NODES"
    VIEW_AUDIT = "VIEW_AUDIT"
    """Entries about oneself; reviewers see those of a tenant, or all."""
    REVIEW_AUDIT = "REVIEW_AUDIT"
    """Verify and export the audit log."""
    VIEW_TENANTS = "VIEW_TENANTS"
    """Limits of tenants, and what is in use of them."""
    MANAGE_TENANTS = "MANAGE_TENANTS"
    OBSERVE_SERVER = "OBSERVE_SERVER"
    ADMINISTER = "ADMINISTER"
    LOCK_ACCESS = "LOCK_ACCESS"
    """Lock users, nodes and terminals, and unlock them."""
    # For certificates on the agents' own listener, not for people. No token has one of these.
    AGENT = "AGENT"
    REPLICA = "REPLICA"
