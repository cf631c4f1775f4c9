"""The configuration of lattice-agent: every key, its type, and its text for the reference.

One file a process. Every key is optional if a flag or the node itself gives the value. What the
agent can detect has no key.
"""
# ruff: noqa: RUF009 - `setting` declares a field, as `dataclasses.field` does.

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from lattice.base.logsection import LogSection
from lattice.base.setting import required, setting
from lattice.domain.spiffe import DEFAULT_PATH
from lattice.observe.thresholds import Thresholds

_USUAL = Thresholds()
_MS_PER_S = 1000.0


@dataclass(frozen=True, slots=True, kw_only=True)
class BootstrapSection:
    cert: Path | None = setting(
        None, "A certificate that names this node, PEM.", env="LATTICE_BOOTSTRAP_CERT"
    )
    key: Path | None = setting(None, "Its private key, PEM.", env="LATTICE_BOOTSTRAP_KEY")
    ca: Path | None = setting(
        None,
        "The authorities to believe, PEM: of the servers' certificates when enrolling, of the "
        "cluster with a certificate made elsewhere.",
        env="LATTICE_BOOTSTRAP_CA",
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class SpireSection:
    socket: str = setting(
        "",
        "SPIRE's Workload API, `unix:///run/spire/agent.sock`. Empty: `SPIFFE_ENDPOINT_SOCKET` of "
        "the environment, or no SPIRE. Needs `bootstrap.ca`.",
        env="LATTICE_SPIRE_SOCKET",
    )
    path: str = setting(
        DEFAULT_PATH,
        "The path of this node's SPIFFE ID; `{node}` is its name in Slurm. The same as "
        "`api.spiffe.path` of the servers.",
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class HelperSection:
    socket: Path = setting(
        Path("/run/lattice/helper.sock"),
        "lattice-helper of this node, which does what only root may. Without it the agent does "
        "the rest and says what it can't.",
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class SlurmdSection:
    spool_dir: Path | None = setting(
        None, "slurmd's SlurmdSpoolDir on this node. Not set: cgroups alone tell of jobs."
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class AgentLogsSection:
    spool_mb: int = setting(
        2048,
        "How much of what jobs wrote may wait on this node to be stored. When that is full, no "
        "more is read until there is room: the jobs' own files keep it.",
        least=16,
    )
    job_quota_mb: int = setting(
        10_240,
        "How much of what one job writes on this node is kept; 0: all of it. What comes after is "
        "counted and shown as a gap of that size. The job's own file is not touched.",
        least=0,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class AgentTelemetrySection:
    enabled: bool = setting(True, "Whether this node's jobs are measured.")
    buffer_mb: int = setting(
        32,
        "How much of what was measured may wait in memory while no server takes it, 15 minutes at "
        "most. What has no room goes oldest first, and is counted.",
        least=1,
    )
    dcgm_url: str = setting(
        "",
        "A DCGM exporter that already runs on this node, `http://127.0.0.1:9400`. Empty: none.",
    )
    remote_write: str = setting(
        "",
        "Where samples are written without going over the servers: a vmagent or a store, "
        "`http://127.0.0.1:8429/api/v1/write`. In force once a server says whose the jobs are "
        "(its `telemetry.nodes_write`). Empty: everything goes over the servers.",
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class GpusSection:
    devices: tuple[str, ...] = setting(
        (),
        "What each of Slurm's GPU numbers on this node is, in their order: `/dev/nvidia3`, or the "
        "UUID of a card or of a MIG instance. Empty: the number is that of `/dev/nvidiaN`.",
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class SliceSection:
    name: str = required("Its name, as owners see it.")
    gpus: tuple[int, ...] = required(
        "Its GPUs by Slurm's numbers on this node. A job is in the slice if it has all of them."
    )
    address: str = required("The guest's SSH server, `10.0.8.2` or `10.0.8.2:22`.")
    host_key: str = required("The guest's host key, `ssh-ed25519 AAAA…`.")
    key_file: Path = required("The agent's private key for the guest.")
    user: str = setting("lattice", "The guest's account whose key forces the reading program.")
    timeout_s: float = setting(
        3.0, "How long a guest may take, until that is told.", least=0.5, most=10
    )
    cards: tuple[str, ...] = setting(
        (), "The UUIDs of its GPUs. Empty: those that its guest reports."
    )
    bridge: str = setting("", "The node's bridge to the guest, as operators see it.")
    netdata: str = setting(
        "", "A Netdata of this node, `http://n1:19999`, as operators see it. Nobody else does."
    )
    card_memory_gb: float | None = setting(
        None, "Memory of each of its GPUs in the guest, GiB. Not set: it is not checked.", least=1
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class MetricsSection:
    listen: str = setting(
        "",
        "Where `/metrics` is served: `unix:/run/lattice/agent-metrics.sock`, or a loopback address "
        "such as `127.0.0.1:9105`, which every account of the node reaches. Empty: nowhere.",
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class JobsSection:
    socket: str = setting(
        "",
        "Where jobs may ask who they are and report events, without their owner's token: "
        "`/run/lattice-agent/job.sock`. Every account of the node reaches it, and the kernel says "
        "who asks. Empty: nowhere.",
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class AlertsSection:
    gpu_idle_percent: float = setting(
        _USUAL.gpu_idle_percent, "A GPU that is used less is idle.", least=0, most=100
    )
    gpu_idle_s: float = setting(_USUAL.gpu_idle_s, "For how long, until that is told.", least=1)
    gpu_hang_percent: float = setting(
        _USUAL.gpu_hang_percent,
        "A GPU that seems used more, with power near idle and no progress of the job, hangs.",
        least=0,
        most=100,
    )
    gpu_hang_s: float = setting(_USUAL.gpu_hang_s, "For how long, until that is told.", least=1)
    gpu_memory_percent: float = setting(
        _USUAL.gpu_memory_percent, "A GPU whose memory is fuller is told of.", least=0, most=100
    )
    network_error_percent: float = setting(
        _USUAL.network_error_percent, "More packets lost to errors are told of.", least=0, most=100
    )
    io_p99_ms: float = setting(
        _USUAL.io_alert_p99_s * _MS_PER_S,
        "Reads and writes of which one in a hundred takes longer are told of.",
        least=0,
    )
    io_jump: float = setting(
        _USUAL.io_jump_ratio,
        "So many times longer than in the job's own past is told of too.",
        least=1,
    )
    power_throttle_s: float = setting(
        _USUAL.power_throttle_s,
        "How long a card may be held at its power limit untold.",
        least=0,
    )

    @property
    def thresholds(self) -> Thresholds:
        """The defaults with the values of this section."""
        return Thresholds(
            gpu_idle_percent=self.gpu_idle_percent,
            gpu_idle_s=self.gpu_idle_s,
            gpu_hang_percent=self.gpu_hang_percent,
            gpu_hang_s=self.gpu_hang_s,
            gpu_memory_percent=self.gpu_memory_percent,
            network_error_percent=self.network_error_percent,
            io_alert_p99_s=self.io_p99_ms / _MS_PER_S,
            io_jump_ratio=self.io_jump,
            power_throttle_s=self.power_throttle_s,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class ExpectedSection:
    gpu_count: int | None = setting(None, "How many GPUs the node should have.", least=0)
    gpu_type: str = setting("", "Which kind they should be.")
    cpu_cores: int | None = setting(None, "How many cores it should have, or threads.", least=1)
    memory_gb: int | None = setting(
        None,
        "How many GiB of memory it should have; a tenth more or less is no difference.",
        least=1,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class AgentConfig:
    """The whole configuration."""

    node_id: str = setting("", "The node's name in Slurm. Empty: its host name, without domain.")
    quorum_endpoint: tuple[str, ...] = setting(
        (),
        "Servers where the agent enrols: their port for services, `https://host:50051`.",
    )
    replicas: tuple[str, ...] = setting(
        (),
        "Servers the agent links to: their port for agents, `host:50052`. Empty: those a server "
        "names at enrolment, or port 50052 of `quorum_endpoint`.",
    )
    state_dir: Path = setting(
        Path("/var/lib/lattice-agent"), "Where the agent keeps its own certificate."
    )
    enrol_token_file: Path | None = setting(
        None, "A one-time token (`lattice admin enrol NODE`), read when there is no certificate."
    )
    join_key_file: Path = setting(
        Path("/etc/lattice/join.key"),
        "The line of `lattice admin enrol`, with servers, authority and token in one. Read if it "
        "is there; what is set here goes first.",
    )
    bootstrap: BootstrapSection = setting(
        BootstrapSection(), "Certificates made elsewhere, and whom to believe."
    )
    spiffe: SpireSection = setting(SpireSection(), "A certificate from SPIRE, where there is one.")
    helper: HelperSection = setting(HelperSection(), "The privileged part, where there is one.")
    slurmd: SlurmdSection = setting(SlurmdSection(), "Slurm on this node.")
    logs: AgentLogsSection = setting(AgentLogsSection(), "What jobs write.")
    telemetry: AgentTelemetrySection = setting(AgentTelemetrySection(), "What jobs use.")
    alerts: AlertsSection = setting(
        AlertsSection(), "From where on those who watch a job are told."
    )
    gpus: GpusSection = setting(GpusSection(), "Which GPU is which.")
    slices: tuple[SliceSection, ...] = setting(
        (), "Virtual machines on this node with GPUs of their own. Their guests measure the jobs."
    )
    metrics: MetricsSection = setting(
        MetricsSection(), "The same for a scraper on this node, and the agent's own figures."
    )
    jobs: JobsSection = setting(JobsSection(), "What jobs may ask for themselves.")
    expected: ExpectedSection = setting(
        ExpectedSection(), "What the node should have; a difference is a warning."
    )
    log: LogSection = setting(LogSection(), "What the agent says of itself.")
