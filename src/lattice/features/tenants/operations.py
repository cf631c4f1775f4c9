"""The operations of the feature, and the functions that build calls of them. No I/O."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Annotated, TypeAlias

from lattice.base.call import Call
from lattice.base.operation import FieldRule, Operation
from lattice.domain.request_fields import EmptyRequest
from lattice.features.tenants.model import TenantCard, TenantList

_SERVICE = "lattice.v1.TenantService/"
_ACT_TIMEOUT_S = 30.0

_Name: TypeAlias = Annotated[str, FieldRule(longest=256)]
_Count: TypeAlias = Annotated[int | None, FieldRule(least=-1, most=10_000_000)]


@dataclass(frozen=True, slots=True, kw_only=True)
class TenantRequest:
    """Names the tenant."""

    name: _Name


@dataclass(frozen=True, slots=True, kw_only=True)
class TenantOrder:
    """A new tenant. A limit that is not set, or -1, is none."""

    name: _Name
    max_nodes: _Count = None
    max_gpus: _Count = None
    max_jobs: _Count = None


@dataclass(frozen=True, slots=True, kw_only=True)
class TenantUpdate:
    """New limits. What is not set stays as it is; -1 takes a limit away."""

    name: _Name
    max_nodes: _Count = None
    max_gpus: _Count = None
    max_jobs: _Count = None


LIST_TENANTS = Operation(
    rpc=_SERVICE + "ListTenants",
    method="GET",
    path="/admin/tenants",
    request=EmptyRequest,
    answer=TenantList,
)
GET_TENANT = Operation(
    rpc=_SERVICE + "GetTenant",
    method="GET",
    path="/admin/tenants/{name}",
    request=TenantRequest,
    answer=TenantCard,
)
CREATE_TENANT = Operation(
    rpc=_SERVICE + "CreateTenant",
    method="POST",
    path="/admin/tenants",
    request=TenantOrder,
    answer=TenantCard,
    timeout_s=_ACT_TIMEOUT_S,
)
UPDATE_TENANT = Operation(
    rpc=_SERVICE + "UpdateTenant",
    method="PUT",
    path="/admin/tenants/{name}",
    request=TenantUpdate,
    answer=TenantCard,
    timeout_s=_ACT_TIMEOUT_S,
    idempotent=True,
)


def list_tenants() -> Call[TenantList]:
    """List the tenants that the caller may see, with their limits and what is in use."""
    return LIST_TENANTS.call(EmptyRequest())


def get_tenant(name: str) -> Call[TenantCard]:
    """Get one tenant with its projects and users."""
    return GET_TENANT.call(TenantRequest(name=name))


def create_tenant(
    name: str,
    *,
    max_nodes: int | None = None,
    max_gpus: int | None = None,
    max_jobs: int | None = None,
) -> Call[TenantCard]:
    """Make a tenant: a top account in Slurm. A limit that is not given is none."""
    return CREATE_TENANT.call(
        TenantOrder(name=name, max_nodes=max_nodes, max_gpus=max_gpus, max_jobs=max_jobs)
    )


def update_tenant(
    name: str,
    *,
    max_nodes: int | None = None,
    max_gpus: int | None = None,
    max_jobs: int | None = None,
) -> Call[TenantCard]:
    """Change limits of a tenant. What is not given stays; -1 takes a limit away."""
    return UPDATE_TENANT.call(
        TenantUpdate(name=name, max_nodes=max_nodes, max_gpus=max_gpus, max_jobs=max_jobs)
    )


SDK: Mapping[str, Callable[..., object]] = {
    "tenants": list_tenants,
    "tenant": get_tenant,
    "create_tenant": create_tenant,
    "update_tenant": update_tenant,
}
"""The verbs of the SDK, and the functions that make their calls."""
