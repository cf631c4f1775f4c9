"""The operation of the feature. Metrics and description are plain texts: see `wire`."""

from __future__ import annotations

from lattice.base.operation import Operation
from lattice.domain.request_fields import EmptyRequest
from lattice.features.health.model import Health

GET_HEALTH = Operation(
    rpc="lattice.v1.HealthService/GetHealth",
    method="GET",
    path="/healthz",
    request=EmptyRequest,
    answer=Health,
    at_root=True,
)
