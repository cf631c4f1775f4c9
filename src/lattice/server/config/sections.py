"""The configuration of lattice-server: every section and key, typed, with its reference text.

Names are part of the interface and stay. Rules between keys are in `load`; `lattice.base.config`
reads the file. Nothing here opens a socket or keeps state. Sections that belong to Slurm are
accepted and not read; a warning names their place.
"""
# ruff: noqa: RUF009 - `setting` declares a field, as `dataclasses.field` does.

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TypeVar

from lattice.base.logsection import LogSection
from lattice.base.setting import Secret, Unread, required, setting
from lattice.domain.presence import Times
from lattice.domain.scheduler import JobListSource
from lattice.domain.vcluster import Vcluster, VclusterKind, Vclusters
from lattice.features.attach.section import AttachSection
from lattice.features.audit.section import AuditSection
from lattice.features.diag.section import DiagSection
from lattice.features.logs.section import LogsSection
from lattice.features.nodes.service.drains import DrainTerms
from lattice.features.sharing.section import SharingSection
from lattice.features.state.section import BackupSection
from lattice.features.submit.section import UenvSection
from lattice.server.config.api_section import ApiSection
from lattice.server.config.engine_sections import ObjectsSection, RunsSection, TelemetrySection
from lattice.server.config.sensitive_section import SensitiveSection

T = TypeVar("T")


@dataclass(frozen=True, slots=True, kw_only=True)
class ClusterSection:
    name: str = setting("", "The cluster's name. Empty: the name Slurm has for it.")


@dataclass(frozen=True, slots=True, kw_only=True)
class IdentitySection:
    ca_cert: Path | None = setting(
        None, "The cluster's own authority for nodes and replicas, PEM; the same on every replica."
    )
    ca_key: Path | None = setting(None, "Its private key, PEM.")
    trust: Path | None = setting(
        None, "Further authorities of this cluster to believe, PEM: the one before, or to come."
    )
    grant_key: Path | None = setting(
        None, "The key that signs what agents are asked to do: Ed25519, PEM; on every replica."
    )
    previous_grant_keys: tuple[Path, ...] = setting(
        (), "Other keys agents still or already believe, PEM of the public halves."
    )
    certificate_life_h: float = setting(
        24.0, "How long certificates of nodes and replicas live.", least=0.1, most=24 * 90
    )
    development_token: Secret | None = setting(
        None,
        "One token with which any agent may enrol as any node: development alone, and only "
        "while `api.agent_listen` is loopback.",
        env="LATTICE_AGENT_TOKEN",
    )

    @property
    def is_set(self) -> bool:
        """True if agents are served."""
        return self.ca_cert is not None


@dataclass(frozen=True, slots=True, kw_only=True)
class SlurmSection:
    rest_url: str | None = setting(
        None, "slurmrestd: `unix:/path/to/socket`, `http://…` or `https://…`. Must be set."
    )
    token_file: Path | None = setting(
        None,
        "A Slurm token (`scontrol token`), read again when it changes.",
        env="LATTICE_SLURM_TOKEN_FILE",
    )
    user: str | None = setting(None, "The user that token belongs to.")
    config_file: Path | None = setting(
        None, "slurm.conf for Slurm's own commands. Not set: Slurm finds its own."
    )
    bin_dir: Path | None = setting(None, "Folder of Slurm's commands. Not set: the PATH.")
    poll_interval_s: float = setting(
        1.0, "How often slurmctld is asked what has changed.", least=0.2, most=300
    )
    job_list: JobListSource = setting(
        JobListSource.AUTO,
        "Who prints the list of jobs: `rest` (slurmrestd), `squeue`, or `auto`: `squeue` from "
        "2 000 jobs on, if Slurm shows it all jobs.",
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class GateSection:
    socket: Path | None = setting(
        None,
        "Socket of the lattice-helper beside this server, which submits and cancels as the "
        "caller, and changes nodes and tenants. Not set: nothing of that can be done.",
        env="LATTICE_GATE_SOCKET",
    )
    grant_key: Path | None = setting(
        None,
        "The key that signs what the gate is asked: Ed25519, PEM; the gate knows its public half. "
        "Not set: `identity.grant_key`.",
    )
    own_network: bool = setting(
        False,
        "The gate runs in a network namespace of its own, so that people's profiles don't reach "
        "this host's loopback. Without it engines on loopback must ask for a credential.",
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class VclusterEntry:
    name: str = required("What people call it.")
    kind: VclusterKind = required(
        "`hpc`, `service`, `interactive`, or `sensitive`, which needs what "
        "docs/operate/sensitive.md lists."
    )
    partition: str = required("The Slurm partition it is a view of.")
    qos: str = setting("", "Only jobs of this QOS. Empty: any.")


@dataclass(frozen=True, slots=True, kw_only=True)
class PeerEntry:
    id: int = required("Number of the member.")
    address: str = required("Its address.")


@dataclass(frozen=True, slots=True, kw_only=True)
class QuorumSection:
    endpoints: tuple[str, ...] = setting((), "The members of etcd, as URLs.")
    ca: Path | None = setting(None, "Authority that signed etcd's certificates, PEM.")
    cert: Path | None = setting(None, "The server's certificate for etcd, PEM.")
    key: Path | None = setting(None, "Its key, PEM.")
    node_id: int | None = setting(None, "Accepted; Raft's members are etcd's.", least=0)
    data_dir: Path | None = setting(None, "Accepted; Raft's state is etcd's.")
    peers: tuple[PeerEntry, ...] = setting((), "Accepted; Raft's members are etcd's.")


@dataclass(frozen=True, slots=True, kw_only=True)
class StorageSection:
    s3_endpoint: str | None = setting(None, "The object store, as a URL.")
    bucket: str | None = setting(None, "Bucket for logs and reports.")
    sensitive_bucket: str | None = setting(
        None, "Refused: the bucket of sensitive work is named in `sensitive.bucket`."
    )
    region: str | None = setting(None, "Region, for stores that have them.")
    access_key: Secret | None = setting(None, "Access key.", env="LATTICE_S3_ACCESS_KEY")
    secret_key: Secret | None = setting(None, "Secret key.", env="LATTICE_S3_SECRET_KEY")
    nfs_home: Path | None = setting(None, "Where homes are mounted.")
    nfs_work: Path | None = setting(None, "Where the shared work space is mounted.")


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeAgentSection:
    heartbeat_interval_s: float | None = setting(
        None, "Refused: links are pinged every 5 s, whatever stands here.", least=1, most=60
    )
    degraded_after_s: float = setting(
        30.0, "Silence after which a node is Degraded.", least=2, most=3600
    )
    grace_period_s: float = setting(90.0, "Silence after which a node is Down.", least=5, most=3600)
    sensitive_grace_period_s: float | None = setting(
        None,
        "Silence after which a node is Down that is claimed or has sensitive work. Not set: 600, "
        "or `grace_period_s` if that is longer.",
        least=5,
        most=7200,
    )
    drain_failed: bool = setting(
        False, "Drain a node in Slurm whose GPUs are in `failure`. Only a person puts it back."
    )
    drain_after_s: float = setting(
        60.0, "For how long they have to be so before that.", least=0, most=3600
    )
    drain_most_per_hour: int = setting(
        4,
        "How many nodes are drained so within an hour at most, by all servers together.",
        least=1,
        most=500,
    )

    @property
    def times(self) -> Times:
        """After which silence a node gets which state."""
        given, least = self.sensitive_grace_period_s, self.grace_period_s
        of_sensitive_work = max(Times().sensitive_down_after_s, least) if given is None else given
        return Times(self.degraded_after_s, least, of_sensitive_work)

    @property
    def drain_terms(self) -> DrainTerms | None:
        """The terms for the feature; None: the site drains nodes itself."""
        if not self.drain_failed:
            return None
        return DrainTerms(after_s=self.drain_after_s, most_per_hour=self.drain_most_per_hour)


def _at_once(default: T, doc: str) -> T:
    return setting(default, doc, least=0, most=10_000)


def _per_minute(default: T, doc: str) -> T:
    return setting(default, doc, least=0, most=1_000_000)


@dataclass(frozen=True, slots=True, kw_only=True)
class UserLimits:
    attach_max_concurrent: int | None = _at_once(None, "Terminals open at once.")
    stream_logs_max_concurrent: int | None = _at_once(None, "Log streams open at once.")
    stream_metrics_max_concurrent: int | None = _at_once(None, "Metric streams at once.")
    query_metrics_per_minute: int | None = _per_minute(None, "Metric questions.")
    diagnostics_per_minute: int | None = _per_minute(None, "Diagnoses.")
    compare_per_minute: int | None = _per_minute(None, "Comparisons.")
    submit_per_minute: int | None = _per_minute(None, "Submissions.")
    cancel_per_minute: int | None = _per_minute(None, "Cancellations.")
    query_audit_per_minute: int | None = _per_minute(None, "Audit queries.")
    review_audit_per_minute: int | None = _per_minute(None, "Audit verifications and exports.")


@dataclass(frozen=True, slots=True, kw_only=True)
class RateLimitsSection:
    attach_max_concurrent: int = _at_once(5, "Terminals one caller may have open.")
    stream_logs_max_concurrent: int = _at_once(10, "Log streams one caller may have open.")
    stream_metrics_max_concurrent: int = _at_once(5, "Metric streams one caller may have.")
    query_metrics_per_minute: int = _per_minute(60, "Metric questions.")
    diagnostics_per_minute: int = _per_minute(30, "Diagnoses.")
    compare_per_minute: int = _per_minute(10, "Comparisons.")
    submit_per_minute: int = _per_minute(120, "Submissions.")
    cancel_per_minute: int = _per_minute(300, "Cancellations.")
    query_audit_per_minute: int = _per_minute(60, "Audit queries.")
    review_audit_per_minute: int = _per_minute(6, "Audit verifications and exports.")
    public_per_minute: int = setting(
        1200,
        "Calls that need no token, of one address to one replica. Behind a proxy that is the "
        "proxy's address, so all clients together.",
        least=1,
        most=1_000_000,
    )
    users: Mapping[str, UserLimits] = setting({}, "Other limits for single callers, by `sub`.")


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerConfig:
    """The whole configuration, and what comes from elsewhere: the last three fields."""

    cluster: ClusterSection = setting(ClusterSection(), "The cluster this server speaks for.")
    api: ApiSection = setting(ApiSection(), "Listeners, TLS and sign-in.")
    identity: IdentitySection = setting(
        IdentitySection(), "Certificates of nodes and replicas, and what agents believe."
    )
    slurm: SlurmSection = setting(SlurmSection(), "The scheduler.")
    gate: GateSection = setting(GateSection(), "The submit gate: sbatch and scancel as the caller.")
    uenv: UenvSection = setting(
        UenvSection(), "Slurm's plugin that mounts images for whole jobs, if the site has one."
    )
    vclusters: tuple[VclusterEntry, ...] = setting((), "Named views of partitions.")
    quorum: QuorumSection = setting(
        QuorumSection(),
        "Agreement: the site's etcd. Begun once with `--bootstrap`; not with `--single`.",
    )
    objects: ObjectsSection = setting(
        ObjectsSection(), "The object store: where logs are kept when their jobs are over."
    )
    logs: LogsSection = setting(LogsSection(), "How long what jobs wrote is kept.")
    backup: BackupSection = setting(
        BackupSection(), "Backups of the agreed state: where, how often, and how many are kept."
    )
    storage: StorageSection = setting(
        StorageSection(),
        "Accepted with a warning, not used: the object store is named in `objects`.",
    )
    telemetry: TelemetrySection = setting(
        TelemetrySection(), "The metric store, and how closely jobs are measured."
    )
    runs: RunsSection = setting(
        RunsSection(), "Where trainings log their runs: the site's MLflow server."
    )
    node_agent: NodeAgentSection = setting(
        NodeAgentSection(), "When a node whose agent is silent counts as lost."
    )
    rate_limits: RateLimitsSection = setting(
        RateLimitsSection(),
        "What one caller may have open and ask for, over all replicas.",
        alias="rate_limit",
    )
    sharing: SharingSection = setting(
        SharingSection(), "How long owners may let others read what their jobs wrote."
    )
    audit: AuditSection = setting(
        AuditSection(), "The audit log: its archive, and what is written outside."
    )
    sensitive: SensitiveSection = setting(
        SensitiveSection(), "Sensitive work: its bucket, and the site's keys that seal it."
    )
    attach: AttachSection = setting(AttachSection(), "Terminals in running jobs.")
    diag: DiagSection = setting(
        DiagSection(), "What `lattice diag` measures jobs against, and which rules are in force."
    )
    log: LogSection = setting(LogSection(), "The server's own log.")
    network: Unread = setting(Unread(), "Accepted, not read: Slurm's switch plugin gives out VNIs.")
    checkpoint: Unread = setting(
        Unread(), "Accepted, not read: Slurm's preemption and the application do this."
    )
    scheduling: Unread = setting(
        Unread(), "Accepted, not read: `SchedulerParameters` in slurm.conf."
    )
    accounting: Unread = setting(Unread(), "Accepted, not read: slurmdbd accounts for work.")
    federation: Unread = setting(Unread(), "Accepted, not read: Slurm's own federation does this.")
    compat: Unread = setting(Unread(), "Accepted, not read: the scheduler is Slurm itself.")
    single: Path | None = field(default=None)
    """The folder of a server without etcd, as `--single` names it."""
    warnings: tuple[str, ...] = field(default=())
    """From the rules, for the log."""
    file: Path = field(default=Path("/etc/lattice/server.yaml"))
    """The file itself."""

    @property
    def views(self) -> Vclusters:
        return Vclusters(
            tuple(
                Vcluster(each.name, each.kind, each.partition, each.qos) for each in self.vclusters
            )
        )
