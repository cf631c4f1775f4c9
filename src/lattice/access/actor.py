"""The actor: the verified caller, and the origin of each fact about it. Pure.

Claims are read here only after the token has been verified. This module interprets them, and does
not check that they are true.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from enum import StrEnum
from typing import Any

from lattice.access.tokens import OWN_ISSUER


class Role(StrEnum):
    """The roles, in the order in which the first match wins."""

    SYSTEM_ADMIN = "SystemAdmin"
    TENANT_ADMIN = "TenantAdmin"
    OPERATOR = "Operator"
    CLAIMING_USER = "ClaimingUser"
    READ_ONLY = "ReadOnly"
    COMPLIANCE_REVIEWER = "ComplianceReviewer"
    USER = "User"


_BY_SCOPE: tuple[tuple[str, Role], ...] = (
    ("admin", Role.SYSTEM_ADMIN),
    ("system:admin", Role.SYSTEM_ADMIN),
    ("tenant:admin", Role.TENANT_ADMIN),
    ("operator", Role.OPERATOR),
    ("sensitive:claim", Role.CLAIMING_USER),
    ("readonly", Role.READ_ONLY),
    ("compliance:review", Role.COMPLIANCE_REVIEWER),
)
_BY_CLAIM: tuple[tuple[str, Role], ...] = (
    ("pact-platform-admin", Role.SYSTEM_ADMIN),
    ("system-admin", Role.SYSTEM_ADMIN),
    ("tenant-admin", Role.TENANT_ADMIN),
    ("operator", Role.OPERATOR),
)
_ROLE_CLAIMS = ("pact_role", "lattice_role")
_OWN_SOURCES = {"munge": "signed in by MUNGE", "slurm": "signed in by a Slurm token"}
"""By the first part of `sub`, in tokens that servers issued themselves."""

READ_SCOPE = "allocations:read"
ATTACH_SCOPE = "allocations:attach"
WRITE_SCOPE = "allocations:write"


@dataclass(frozen=True, slots=True, kw_only=True)
class Actor:
    """The caller. `user` is the Unix user, empty for a caller that owns nothing.

    `tenant` is the token's value. For a tenant admin the policy falls back to Slurm's accounts. The
    `*_from` fields name the claim that a value came from.
    """

    sub: str
    user: str = ""
    tenant: str = ""
    role: Role = Role.USER
    scopes: frozenset[str] = frozenset()
    user_from: str = ""
    tenant_from: str = ""
    role_from: str = ""
    expires: datetime | None = None


@dataclass(frozen=True, slots=True)
class ClaimNames:
    """The claims with the Unix user and the tenant, and the users of service accounts."""

    user: str = "preferred_username"
    tenant: str = "tenant"
    service_accounts: Mapping[str, str] | None = None


def actor_from(claims: Mapping[str, Any], names: ClaimNames) -> Actor:
    """The actor for verified claims."""
    scopes = scopes_of(claims)
    role, role_from = _role_of(scopes, claims)
    sub = str(claims["sub"])
    user, user_from = _user_of(sub, claims, names)
    tenant = claims.get(names.tenant)
    tenant = tenant if isinstance(tenant, str) else ""
    return Actor(
        sub=sub,
        user=user,
        tenant=tenant,
        role=role,
        scopes=scopes,
        user_from=user_from,
        tenant_from=f"claim {names.tenant}" if tenant else "",
        role_from=role_from,
        expires=_expiry_of(claims),
    )


def _expiry_of(claims: Mapping[str, Any]) -> datetime | None:
    moment = claims.get("exp")
    return datetime.fromtimestamp(moment, UTC) if isinstance(moment, int) else None


def scopes_of(claims: Mapping[str, Any]) -> frozenset[str]:
    """The token's scopes: `scope` as one string (RFC 8693), or `scp` as a list (some providers)."""
    scope = claims.get("scope")
    if isinstance(scope, str):
        return frozenset(scope.split())
    listed = claims.get("scp")
    if isinstance(listed, str):
        return frozenset(listed.split())
    if isinstance(listed, list):
        return frozenset(each for each in listed if isinstance(each, str))
    return frozenset()


def _role_of(scopes: frozenset[str], claims: Mapping[str, Any]) -> tuple[Role, str]:
    for scope, role in _BY_SCOPE:
        if scope in scopes:
            return role, f"scope {scope}"
    for claim in _ROLE_CLAIMS:
        for value, role in _BY_CLAIM:
            if claims.get(claim) == value:
                return role, f"claim {claim}"
    return Role.USER, "default"


def _user_of(sub: str, claims: Mapping[str, Any], names: ClaimNames) -> tuple[str, str]:
    # A mapped service account is that user and no other, whatever its token claims.
    mapped = (names.service_accounts or {}).get(sub)
    if mapped is not None:
        return mapped, "service_accounts in the server's configuration"
    if _is_service(claims):
        return "", ""
    user = claims.get(names.user)
    if not isinstance(user, str) or not user:
        return "", ""
    if claims.get("iss") == OWN_ISSUER and (source := _OWN_SOURCES.get(sub.partition(":")[0])):
        return user, source
    return user, f"claim {names.user}"


def _is_service(claims: Mapping[str, Any]) -> bool:
    # With client credentials the client is its own subject (RFC 9068, section 2.2). Keycloak gives
    # the service account an artificial user name with this prefix.
    if claims.get("sub") in (claims.get("client_id"), claims.get("azp")):
        return True
    return str(claims.get("preferred_username", "")).startswith("service-account-")
