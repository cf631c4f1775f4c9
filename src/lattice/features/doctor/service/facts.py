"""What the shell of the server knows and can measure, for the checks: data and one port.

The foundation has the ports that all features share. This port has the rest: the engines' own
descriptions of themselves, the files of the server, and its process.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Protocol

from lattice.base.reload import ReloadOutcome
from lattice.domain.node import Node
from lattice.domain.object_lock import ObjectLock
from lattice.domain.presence import PresenceReading
from lattice.domain.quorum import QuorumMember


@dataclass(frozen=True, slots=True, kw_only=True)
class ControllerFacts:
    """slurmctld, as it describes itself."""

    release: str
    cluster: str


@dataclass(frozen=True, slots=True, kw_only=True)
class SchemaFacts:
    """The schema version in use for each side of slurmrestd, and how it is read."""

    live: str
    live_read_as: str
    past: str
    past_read_as: str


@dataclass(frozen=True, slots=True, kw_only=True)
class RightFacts:
    """What the server's account may read in Slurm."""

    hidden: str | None
    """What Slurm hides and what to do; None if it hides nothing."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StateFacts:
    """The agreed state's store."""

    lasts: bool
    single: bool
    """One server with a database of its own."""
    size_bytes: int | None = None
    """Of the database of a single server."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BackupFacts:
    """The scheduled backups of the state."""

    every_h: float
    newest: datetime | None
    """None: there is none."""
    location: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class LockFacts:
    """The object lock of the audit log's bucket."""

    bucket: str
    lock: ObjectLock
    least_days: float
    """How long the site wants objects to be kept."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RetentionFacts:
    """The object lock of the bucket of sensitive work, and when Lattice removes from it."""

    bucket: str
    lock: ObjectLock
    removed_days: int
    """The shortest retention of a tenant."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FolderFacts:
    """The file system of a folder."""

    folder: str
    free_bytes: int
    total_bytes: int
    read_only: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class CertificateFacts:
    """A certificate in a file. `fault` says what breaks its chain; empty if nothing does."""

    file: str
    expires: datetime
    names: tuple[str, ...] = ()
    links: int = 1
    """Certificates in the chain."""
    fault: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class SignInFacts:
    """How people prove who they are."""

    mode: str
    """`issuer`, `hmac`, `munge`, `slurm` or `none`."""
    munge: bool = False
    """People sign in by MUNGE, too."""
    slurm_tokens: bool = False
    """The same, by Slurm tokens."""
    encrypts: bool = True
    loopback: bool = False
    development_token: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class ProcessFacts:
    """The process of the server."""

    open_files: int
    most_files: int
    longest_pause_s: float | None
    """Of the event loop in the last minutes; None if it is not measured."""
    failures: Mapping[str, int]
    """Of background loops since the start."""
    failed_s_ago: Mapping[str, float]
    """How long ago the last failure of each loop was."""
    reload: ReloadOutcome | None = None
    """What the last reload of the configuration did; None if there was none."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplicaFacts:
    """Another server of the cluster. `reason`: why it can't be reached from here."""

    id: str
    reason: str = ""
    version: str = ""
    """As it recorded it; empty for one that is too old to do so."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AgentTrust:
    """What the servers decided about one node's certificates."""

    node: str
    expires: datetime | None = None
    issued: datetime | None = None
    revoked: str = ""
    """Why and by whom; empty if it is not revoked."""
    quarantine: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class AgentsFacts:
    """Every agent, with the nodes of Slurm. `nodes` is None while Slurm has not answered."""

    version: str
    """Of this server."""
    nodes: tuple[Node, ...] | None
    presences: PresenceReading
    trust: tuple[AgentTrust, ...]


class Inspection(Protocol):
    """The measurements that need the shell. Each may raise, and `NotUsed` if there is no part."""

    @property
    def state(self) -> StateFacts: ...

    @property
    def sign_in(self) -> SignInFacts: ...

    def process(self) -> ProcessFacts: ...

    def people_names(self) -> tuple[str, ...]:
        """The names by which clients reach this server, as far as they are configured."""

    async def controller(self) -> ControllerFacts:
        """Asks slurmctld."""

    async def controller_ahead_s(self) -> float | None:
        """How far slurmctld's clock is ahead, to a second; None if it does not report its time."""

    async def accounting(self) -> str:
        """Asks slurmdbd; returns its release, empty if it names none."""

    async def schemas(self) -> SchemaFacts:
        """Asks slurmrestd."""

    async def rights(self) -> RightFacts:
        """Asks slurmctld and slurmdbd."""

    async def backups(self) -> BackupFacts:
        """Raises `NotUsed` if none are scheduled."""

    async def members(self) -> tuple[QuorumMember, ...]:
        """Asks every member of etcd."""

    async def object_folder(self) -> FolderFacts:
        """The disk of the object store, if that is a folder."""

    async def archive_lock(self) -> LockFacts:
        """The object lock of the audit log's own bucket. Raises `NotUsed` if it has none."""

    async def sensitive_lock(self) -> RetentionFacts:
        """The lock of the bucket of sensitive work. Raises `NotUsed` if nothing is removed."""

    async def state_folder(self) -> FolderFacts: ...

    async def log_folder(self) -> FolderFacts: ...

    async def people_certificate(self) -> CertificateFacts:
        """The certificate of the listeners for people."""

    async def authority(self) -> CertificateFacts:
        """The cluster's own authority."""

    async def provider_keys(self) -> int:
        """Fetches the identity provider's keys; returns how many can be used."""

    async def munge(self) -> str:
        """Encodes and decodes a credential as the server's own user, and returns that user."""

    async def token_judge(self) -> str:
        """Checks that the slurmrestd that judges Slurm tokens wants one; returns its address."""

    async def replicas(self) -> tuple[ReplicaFacts, ...]:
        """Calls every other server."""

    async def echo(self, node: str) -> float:
        """Opens a stream to a node's agent by a grant, and back; returns the seconds it took."""

    async def trust(self) -> tuple[AgentTrust, ...]:
        """What is decided about certificates of nodes."""
