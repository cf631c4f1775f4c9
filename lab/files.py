"""Files and folders that belong to an account."""

from __future__ import annotations

import os
import pwd
import secrets
from pathlib import Path


def give(path: Path, owner: str) -> None:
    """Hand a file or folder (not what is in it) to an account and its group."""
    account = pwd.getpwnam(owner)
    os.chown(path, account.pw_uid, account.pw_gid)


def owned_folder(path: Path, owner: str) -> Path:
    path.mkdir(mode=0o755, parents=True, exist_ok=True)
    give(path, owner)
    return path


def secret(path: Path, size_bytes: int, owner: str) -> None:
    """Random bytes that only the owner reads; made once."""
    if not path.exists():
        path.touch(mode=0o600)
        path.write_bytes(secrets.token_bytes(size_bytes))
    give(path, owner)
