"""What the feature answers: pure data."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime


@dataclass(frozen=True, slots=True, kw_only=True)
class AuthDiscovery:
    """What a client needs to sign in. Empty strings: the server has no provider."""

    idp_url: str
    client_id: str
    issuer: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Fact:
    """One thing the server holds true of the caller, and what it took it from."""

    value: str
    source: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Identity:
    """Who the server takes the caller for."""

    sub: str
    user: Fact
    tenant: Fact
    role: Fact
    scopes: tuple[str, ...]
    coordinates: tuple[str, ...]
    expires: datetime | None
    cluster: str
