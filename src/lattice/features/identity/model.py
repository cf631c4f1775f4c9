"""Answers of the feature: pure data."""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import datetime

from lattice.domain.allocation import State


@dataclass(frozen=True, slots=True, kw_only=True)
class AuthDiscovery:
    """What a client needs to sign in. The first three are empty if the server has no provider."""

    idp_url: str
    client_id: str
    issuer: str
    munge: str = ""
    """The cluster's id, to sign in to by MUNGE on its hosts; empty: not offered."""
    slurm: str = ""
    """The same, to sign in to by a Slurm token."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SignedIn:
    """A token of the server's own for a Unix user."""

    token: str = field(repr=False)
    user: str
    lifetime_s: int


@dataclass(frozen=True, slots=True, kw_only=True)
class IssuedJobToken:
    """A token of one run of a job, for the agent of its node."""

    token: str = field(repr=False)
    lifetime_s: int


@dataclass(frozen=True, slots=True, kw_only=True)
class JobSelf:
    """What a job may know of itself without its owner's token."""

    cluster: str
    id: str
    allocation: str
    """The unambiguous name."""
    attempt: int
    job_id: int
    name: str
    user: str
    account: str
    tenant: str
    partition: str
    state: State
    nodes: str
    node_count: int
    started: datetime | None = None
    time_limit_s: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Fact:
    """One value that the server holds about the caller, and its source."""

    value: str
    source: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Identity:
    """The caller as the server sees it."""

    sub: str
    user: Fact
    tenant: Fact
    role: Fact
    scopes: tuple[str, ...]
    coordinates: tuple[str, ...]
    expires: datetime | None
    cluster: str
