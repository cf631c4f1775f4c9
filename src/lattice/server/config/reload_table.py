"""Which keys of lattice-server's configuration change while it runs.

docs/operate/configuration.md has the same table, which a test compares.
"""

from __future__ import annotations

from lattice.base.config import ConfigReport
from lattice.base.reload import ReloadTable
from lattice.server.config.load import judge
from lattice.server.config.sections import RateLimitsSection, ServerConfig
from lattice.server.config.sensitive_rules import serves_sensitive_work

_LIMITS = RateLimitsSection.__dataclass_fields__.keys() - {"public_per_minute"}

RELOADED: ReloadTable = {
    "api": (
        "public_names",
        "administrators",
        "munge_hours",
        "tenant_claim",
        "service_accounts",
    ),
    "slurm": ("poll_interval_s",),
    "vclusters": (),
    "logs": ("retention_days", "job_quota_mb", "tenants"),
    "sharing": ("usual_days", "longest_days"),
    "telemetry": ("mode", "debug_most"),
    "node_agent": ("degraded_after_s", "grace_period_s", "sensitive_grace_period_s"),
    "rate_limits": tuple(sorted(_LIMITS)),
    "diag": (),
    "log": ("level",),
}


def problems_of(config: ServerConfig, started_with: ServerConfig) -> tuple[str, ...]:
    """What is wrong with a configuration that was put together."""
    report = ConfigReport("")
    if serves_sensitive_work(config) and not serves_sensitive_work(started_with):
        report.problem("vclusters", "the first one for sensitive work takes a restart")
        return report.problems
    judge(config, report)
    return report.problems
