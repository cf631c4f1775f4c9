"""Replaces the database of a single server by a new one, all at once.

The new one is written beside it and synced first. The old one stays in the folder under another
name. An interruption leaves either the old one or the new one.
"""

from __future__ import annotations

import os
import shutil
import sqlite3
from collections.abc import Awaitable, Callable
from contextlib import closing, suppress
from pathlib import Path

from lattice.adapters.sqlite.store import SqliteStateStore, locked, open_sqlite

DATABASE = "state.db"
_BESIDE = ("-wal", "-shm")


def stored_value(folder: Path, key: str) -> bytes | None:
    """A value of the database, without opening it as a store. None: no such key, or it is damaged.

    It changes nothing, and does not lock the folder.
    """
    file = folder / DATABASE
    if not file.exists():
        return None
    try:
        with closing(sqlite3.connect(f"{file.absolute().as_uri()}?mode=ro", uri=True)) as line:
            row = line.execute("SELECT value FROM entries WHERE key = ?", (key,)).fetchone()
    except sqlite3.DatabaseError:
        return None
    return None if row is None else bytes(row[0])


async def replace_database(
    folder: Path, fill: Callable[[SqliteStateStore], Awaitable[None]], *, suffix: str
) -> Path | None:
    """Fill a new database, then let it take the name of the old one. Returns the old one's name.

    Raises `ConfigurationError` if a server uses the folder, and whatever `fill` raises. Then the
    old database is untouched.
    """
    with locked(folder):
        beside = folder / "state.new"
        shutil.rmtree(beside, ignore_errors=True)
        try:
            async with open_sqlite(beside) as store:
                await fill(store)
            _sync(beside / DATABASE)
            return _exchange(folder, beside / DATABASE, suffix)
        finally:
            shutil.rmtree(beside, ignore_errors=True)


def _exchange(folder: Path, new: Path, suffix: str) -> Path | None:
    old = folder / DATABASE
    before: Path | None = None
    if old.exists():
        _write_back(old)
        before = folder / f"{DATABASE}.{suffix}"
        os.link(old, before)
        for each in _BESIDE:
            with suppress(FileNotFoundError):
                (folder / f"{DATABASE}{each}").rename(f"{before}{each}")
    new.replace(old)
    _sync(folder)
    return before


def _write_back(file: Path) -> None:
    """Bring what is in the log of the database into its file. A damaged database stays as it is."""
    with suppress(sqlite3.DatabaseError), closing(sqlite3.connect(file)) as line:
        line.execute("PRAGMA wal_checkpoint(TRUNCATE)")


def _sync(path: Path) -> None:
    handle = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
