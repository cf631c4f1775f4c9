"""The operations of the feature, and the functions that build calls of them. No I/O."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from lattice.base.call import Call
from lattice.base.operation import Operation
from lattice.domain.request_fields import EmptyRequest
from lattice.features.state.model import (
    Backup,
    BackupCheck,
    BackupList,
    BackupReference,
    QuorumStatus,
    RestorePlan,
)

_SERVICE = "lattice.v1.StateService/"
_LONG_S = 120.0
"""A backup is read or written as a whole."""

GET_QUORUM = Operation(
    rpc=_SERVICE + "GetQuorum",
    method="GET",
    path="/raft/status",
    request=EmptyRequest,
    answer=QuorumStatus,
)
LIST_BACKUPS = Operation(
    rpc=_SERVICE + "ListBackups",
    method="GET",
    path="/admin/backups",
    request=EmptyRequest,
    answer=BackupList,
    timeout_s=_LONG_S,
)
CREATE_BACKUP = Operation(
    rpc=_SERVICE + "CreateBackup",
    method="POST",
    path="/admin/backup",
    request=EmptyRequest,
    answer=Backup,
    timeout_s=_LONG_S,
)
VERIFY_BACKUP = Operation(
    rpc=_SERVICE + "VerifyBackup",
    method="GET",
    path="/admin/backup/verify",
    request=BackupReference,
    answer=BackupCheck,
    timeout_s=_LONG_S,
)
VERIFY_BACKUP_BY_POST = Operation(
    rpc=_SERVICE + "VerifyBackup",
    method="POST",
    path="/admin/backup/verify",
    request=BackupReference,
    answer=BackupCheck,
    timeout_s=_LONG_S,
    rest_id="PostVerifyBackup",
)
RESTORE_BACKUP = Operation(
    rpc=_SERVICE + "RestoreBackup",
    method="POST",
    path="/admin/restore",
    request=BackupReference,
    answer=RestorePlan,
    timeout_s=_LONG_S,
    # It only checks and plans; a repeated call plans the same.
    idempotent=True,
)


def get_quorum() -> Call[QuorumStatus]:
    """The members behind the agreed state: leader, term, index, health and sizes."""
    return GET_QUORUM.call(EmptyRequest())


def list_backups() -> Call[BackupList]:
    """List the backups of the agreed state, the newest first."""
    return LIST_BACKUPS.call(EmptyRequest())


def create_backup() -> Call[Backup]:
    """Back the agreed state up now."""
    return CREATE_BACKUP.call(EmptyRequest())


def verify_backup(path: str = "") -> Call[BackupCheck]:
    """Read a backup and check all of it; the newest one without a name."""
    return VERIFY_BACKUP.call(BackupReference(path=path))


def restore_backup(path: str = "") -> Call[RestorePlan]:
    """Check a backup, and plan or order its restore; the newest one without a name."""
    return RESTORE_BACKUP.call(BackupReference(path=path))


SDK: Mapping[str, Callable[..., object]] = {
    "quorum": get_quorum,
    "backups": list_backups,
    "create_backup": create_backup,
    "verify_backup": verify_backup,
    "restore_backup": restore_backup,
}
"""Method names of the SDK, and the functions that build their calls."""
