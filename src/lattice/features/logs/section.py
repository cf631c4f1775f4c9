"""The section `logs` of the server's configuration: retention and quota."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from lattice.base.setting import setting
from lattice.features.logs.service.retention import RetentionRules

_MOST_DAYS = 36_500


@dataclass(frozen=True, slots=True, kw_only=True)
class TenantLogs:
    retention_days: int | None = setting(
        None,
        "How many days this tenant's logs are kept; 0: for ever. Not set: as for all.",
        least=0,
        most=_MOST_DAYS,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class LogsSection:
    retention_days: int = setting(
        0,
        "How many days logs are kept after an attempt has ended; 0: for ever.",
        least=0,
        most=_MOST_DAYS,
    )
    job_quota_mb: int = setting(
        10_240,
        "How much of what one job writes on one node is stored, as it is stored; 0: all of it. "
        "No lower than `logs.job_quota_mb` of the agents: what is refused here waits there.",
        least=0,
        most=1 << 30,
    )
    tenants: Mapping[str, TenantLogs] = setting({}, "Otherwise for single tenants, by name.")
    seal_keys: tuple[Path, ...] = setting(
        (), "Keys of grants that sealed logs before, PEM of the public halves."
    )

    @property
    def job_quota_bytes(self) -> int:
        return self.job_quota_mb * 1024 * 1024

    @property
    def rules(self) -> RetentionRules:
        """The retention rules of this section."""
        own = {
            name: each.retention_days
            for name, each in self.tenants.items()
            if each.retention_days is not None
        }
        return RetentionRules(self.retention_days, own)
