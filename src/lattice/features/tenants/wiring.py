"""Wires the feature: its service and its operations."""

from __future__ import annotations

from lattice.base.operation import AnyBinding
from lattice.domain.tenants import LimitChange
from lattice.features.tenants.operations import (
    CREATE_TENANT,
    GET_TENANT,
    LIST_TENANTS,
    UPDATE_TENANT,
    TenantOrder,
    TenantUpdate,
)
from lattice.features.tenants.service import TenantService
from lattice.foundation.foundation import Foundation
from lattice.foundation.wiring import Wiring


def bindings(service: TenantService) -> tuple[AnyBinding, ...]:
    return (
        LIST_TENANTS.to(lambda actor, _: service.tenants(actor)),
        GET_TENANT.to(lambda actor, asked: service.tenant(actor, asked.name)),
        CREATE_TENANT.to(lambda actor, asked: service.create(actor, asked.name, _change(asked))),
        UPDATE_TENANT.to(lambda actor, asked: service.update(actor, asked.name, _change(asked))),
    )


def _change(asked: TenantOrder | TenantUpdate) -> LimitChange:
    return LimitChange(max_nodes=asked.max_nodes, max_gpus=asked.max_gpus, max_jobs=asked.max_jobs)


def wire(foundation: Foundation) -> Wiring:
    service = TenantService(foundation.scheduler, foundation.tenants, foundation.journal)
    return Wiring(bindings=bindings(service))
