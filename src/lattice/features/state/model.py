"""Requests and answers of the feature. Pure."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime

from lattice.domain.quorum import QuorumMember


@dataclass(frozen=True, slots=True, kw_only=True)
class QuorumStatus:
    """The store of the agreed state, as its members report it now."""

    store: str
    """`etcd`, `single` (one server with a database of its own) or `temporary`."""
    healthy: bool
    """The members agree: enough of them answer, and they know a leader."""
    note: str = ""
    """What limits it, for people."""
    cluster: str = ""
    """The id of the cluster; empty if it could not be read."""
    epoch: int = 0
    """How often the state was restored from a backup."""
    leader: str = ""
    term: int = 0
    index: int = 0
    needed: int = 0
    """How many members must answer."""
    may_fail: int = 0
    """How many more members may fail."""
    size_bytes: int = 0
    """Of the largest database."""
    alarms: tuple[str, ...] = ()
    members: tuple[QuorumMember, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class BackupReference:
    """Which backup: its name, or its path below the configured place. Empty: the newest."""

    path: str = ""
    backup_path: str = ""

    @property
    def text(self) -> str:
        return self.path or self.backup_path


@dataclass(frozen=True, slots=True, kw_only=True)
class Backup:
    """A backup, as its manifest describes it."""

    name: str
    taken: datetime
    by: str = ""
    """The subject of who asked for it; empty if it was scheduled."""
    cluster: str
    epoch: int
    revision: int
    records: int
    size_bytes: int
    version: str
    store: str


@dataclass(frozen=True, slots=True, kw_only=True)
class ListedBackup:
    """A backup as it is stored. Its content was not read."""

    name: str
    taken: datetime
    size_bytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class BackupList:
    """The backups, the newest first."""

    location: str
    every_h: float = 0.0
    """How often one is made; 0: only by hand."""
    keep: int = 0
    """How many scheduled ones are kept."""
    backups: tuple[ListedBackup, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class BackupCheck:
    """Whether a backup can be restored; if not, the first thing that is wrong."""

    name: str
    sound: bool
    problem: str = ""
    backup: Backup | None = None
    """None if its manifest can't be trusted."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RestorePlan:
    """How the state is restored from a backup that was checked."""

    backup: Backup
    by_server: bool
    """The server restores it by itself when it is restarted; otherwise people take the steps."""
    steps: tuple[str, ...]
    lost: str
    """What is lost by it, for people."""
