"""The operations of the feature, and the functions that build calls of them. No I/O."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Annotated, TypedDict, Unpack

from lattice.base.call import Call
from lattice.base.operation import FieldRule, Operation
from lattice.domain.audit import AuditAct, AuditOutcome
from lattice.features.audit.model import (
    USUAL_ROWS,
    AuditExportPart,
    AuditPage,
    AuditQuery,
    AuditVerdict,
    AuditVerifyQuery,
)

_SERVICE = "lattice.v1.AuditService/"
_WHOLE_LOG_S = 900.0
"""Reading all of a large log takes minutes, and so do its recordings."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AuditExportQuery:
    """The next part of an export."""

    cursor: Annotated[str, FieldRule(pattern=r"([0-9]{1,18}:[0-9TZ:-]{20})?")] = ""


QUERY_AUDIT = Operation(
    rpc=_SERVICE + "QueryAudit",
    method="GET",
    path="/audit/logs",
    request=AuditQuery,
    answer=AuditPage,
    timeout_s=60.0,
)
VERIFY_AUDIT = Operation(
    rpc=_SERVICE + "VerifyAudit",
    method="GET",
    path="/audit/verify",
    request=AuditVerifyQuery,
    answer=AuditVerdict,
    timeout_s=_WHOLE_LOG_S,
    stops_with_caller=True,
)
EXPORT_AUDIT = Operation(
    rpc=_SERVICE + "ExportAudit",
    method="GET",
    path="/audit/export",
    request=AuditExportQuery,
    answer=AuditExportPart,
    timeout_s=60.0,
)


class AuditFilter(TypedDict, total=False):
    """Conditions; a missing one is none."""

    user: str
    allocation: str
    owner: str
    node: str
    tenant: str
    act: AuditAct | None
    outcome: AuditOutcome | None
    since: datetime | None
    until: datetime | None


def query_audit(
    *, limit: int = USUAL_ROWS, cursor: str = "", **conditions: Unpack[AuditFilter]
) -> Call[AuditPage]:
    """List entries of the audit log that the caller may see, newest first."""
    return QUERY_AUDIT.call(AuditQuery(limit=limit, cursor=cursor, **conditions))


def verify_audit(since: datetime | None = None) -> Call[AuditVerdict]:
    """Verify the whole audit log, and compare it with the anchors outside.

    Recordings that it names are checked too; with `since` those that were closed since then.
    """
    return VERIFY_AUDIT.call(AuditVerifyQuery(since=since))


def export_audit(cursor: str = "") -> Call[AuditExportPart]:
    """Get the next lines of a signed bundle of the audit log."""
    return EXPORT_AUDIT.call(AuditExportQuery(cursor=cursor))


SDK: Mapping[str, Callable[..., object]] = {
    "audit_logs": query_audit,
    "audit_verify": verify_audit,
    "audit_export": export_audit,
}
"""Method names of the SDK, and the functions that build their calls."""
