"""The `audit` section of lattice-server's configuration."""

from __future__ import annotations

from dataclasses import dataclass

from lattice.base.config import ConfigReport
from lattice.base.setting import setting

SYSLOG = "syslog"


@dataclass(frozen=True, slots=True, kw_only=True)
class AuditSection:
    bucket: str | None = setting(
        None,
        "A bucket of its own for the archive of the audit log, with object lock, in the store of "
        "`objects`. Not set: the bucket of `objects`.",
    )
    retention_days: int = setting(
        2555,
        "How long the object lock of that bucket must keep objects at least. It is compared: the "
        "bucket itself has the retention.",
        least=0,
        most=36_500,
    )
    anchor: str = setting(
        "",
        "Where the newest hash is also written, so that a rolled-back log is noticed: `syslog`, "
        "or a file that the server can only append to. Empty: nowhere.",
    )


def judge_audit(audit: AuditSection, *, objects_in_s3: bool, report: ConfigReport) -> None:
    """Check rules between keys."""
    if audit.bucket is not None and not objects_in_s3:
        report.problem("audit.bucket", "needs objects.url with s3://", "objects.url")
    if audit.anchor not in {"", SYSLOG} and not audit.anchor.startswith("/"):
        report.problem("audit.anchor", "is `syslog` or the whole path of a file")
