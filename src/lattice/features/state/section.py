"""The `backup` section of lattice-server's configuration."""
# ruff: noqa: RUF009 - `setting` declares a field, as `dataclasses.field` does.

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from lattice.base.config import ConfigReport
from lattice.base.setting import setting


@dataclass(frozen=True, slots=True, kw_only=True)
class BackupSection:
    folder: Path | None = setting(
        None,
        "A folder for backups of the agreed state, on another disk. Not set: the object store, "
        "below `state-backups/`.",
    )
    every_h: float = setting(
        0.0,
        "How often one server makes a backup, in hours; 0: only `lattice admin backup` does.",
        least=0,
        most=24 * 31,
    )
    keep: int = setting(
        14,
        "How many scheduled backups are kept. Those made by hand stay until they are deleted.",
        least=1,
        most=10_000,
    )


def judge_backup(backup: BackupSection, report: ConfigReport) -> None:
    """Check the folder."""
    if backup.folder is not None and not backup.folder.is_absolute():
        report.problem("backup.folder", "must be an absolute path")
