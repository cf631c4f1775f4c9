"""Answers of the feature: pure data."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime


@dataclass(frozen=True, slots=True, kw_only=True)
class AuthDiscovery:
    """What a client needs to sign in. All fields are empty if the server has no provider."""

    idp_url: str
    client_id: str
    issuer: str


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
