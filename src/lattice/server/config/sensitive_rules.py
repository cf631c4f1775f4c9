"""What a site needs before it can have a vCluster for sensitive work.

Each of these protects something that would be open without it, so a server does not start without
one of them. Whether the engines do what they promise is checked while it runs.
"""

from __future__ import annotations

from collections.abc import Iterator

from lattice.base.config import ConfigReport
from lattice.domain.vcluster import VclusterKind
from lattice.server.config.api_section import AuthMode
from lattice.server.config.sections import ServerConfig

_NEEDS = "a sensitive vCluster needs"


def serves_sensitive_work(config: ServerConfig) -> bool:
    """True if one of its vClusters is for sensitive work."""
    return any(each.kind is VclusterKind.SENSITIVE for each in config.vclusters)


def judge_sensitive_work(config: ServerConfig, report: ConfigReport) -> None:
    """Report each setting that is missing for it, and each that would open it."""
    if not serves_sensitive_work(config):
        return
    for path, text in (*_lacks(config), *_opens(config), *_outlives(config)):
        report.problem(path, text, "vclusters", path.partition(".")[0])
    if not config.audit.anchor:
        text = "is not set, and there is sensitive work: nobody notices a log that was rolled back"
        report.warning("audit.anchor", text)


def _lacks(config: ServerConfig) -> Iterator[tuple[str, str]]:
    identity, sensitive = config.identity, config.sensitive
    if not config.quorum.endpoints:
        text = "claims, keys and the audit log are agreed on there. A server with --single has none"
        yield "quorum.endpoints", f"{_NEEDS} etcd: {text}"
    if identity.ca_cert is None:
        yield "identity.ca_cert", f"{_NEEDS} it: keys reach nodes over their certificates"
    if identity.grant_key is None:
        yield "identity.grant_key", f"{_NEEDS} it: the audit log is signed with it"
    if config.gate.socket is None:
        yield "gate.socket", f"{_NEEDS} it: claimed nodes are reserved in Slurm through the gate"
    if config.audit.bucket is None:
        yield "audit.bucket", f"{_NEEDS} it: a bucket with object lock, for older entries"
    if sensitive.bucket is None:
        yield "sensitive.bucket", f"{_NEEDS} it: a bucket of its own, for what its jobs write"
    if not sensitive.has_keys:
        yield "sensitive.keys_file", f"{_NEEDS} it, or sensitive.pkcs11_module: the site's keys"


def _opens(config: ServerConfig) -> Iterator[tuple[str, str]]:
    if config.api.auth is AuthMode.NONE:
        yield "api.oidc_issuer", f"{_NEEDS} it, or another way to sign in"
    if config.identity.development_token is not None:
        text = "is not for a site with sensitive work: who has it gets the keys of any node"
        yield "identity.development_token", text
    if config.api.insecure:
        yield (
            "api.insecure",
            "is not for a site with sensitive work: it would be sent in plain text",
        )


def _outlives(config: ServerConfig) -> Iterator[tuple[str, str]]:
    longest = config.logs.rules.longest
    if config.audit.retention_days < longest:
        text = (
            f"is shorter than the {longest} days of logs.retention_days or logs.tenants: "
            "recordings would outlive the entries that prove them"
        )
        yield "audit.retention_days", text
