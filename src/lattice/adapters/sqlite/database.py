"""The file itself: tables, transactions and their history. Blocking; for one thread."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from itertools import groupby
from pathlib import Path

from lattice.base.errors import ConfigurationError, Unavailable
from lattice.domain.state import Change, Changed, Compacted, Delete, Entry, Expect, LeaseGone, Put

FORMAT = 1
HISTORY_REVISIONS = 10_000
"""Revisions that can still be watched."""
_TRIM_EVERY = 100

_TABLES = """
CREATE TABLE counters (name TEXT PRIMARY KEY, value INTEGER NOT NULL) WITHOUT ROWID;
INSERT INTO counters VALUES ('revision', 1), ('compacted', 0), ('lease', 0);
CREATE TABLE entries (
  key TEXT PRIMARY KEY, value BLOB NOT NULL,
  revision INTEGER NOT NULL, created INTEGER NOT NULL, lease INTEGER NOT NULL
) WITHOUT ROWID;
CREATE INDEX entries_by_lease ON entries (lease) WHERE lease != 0;
CREATE TABLE history (
  revision INTEGER NOT NULL, place INTEGER NOT NULL, key TEXT NOT NULL,
  value BLOB, created INTEGER NOT NULL, lease INTEGER NOT NULL,
  PRIMARY KEY (revision, place)
) WITHOUT ROWID;
CREATE TABLE leases (id INTEGER PRIMARY KEY, ttl_s INTEGER NOT NULL);
"""

_ENTRY = "SELECT key, value, revision, created, lease FROM entries"
_LAST = "\x7f"
"""Sorts after every character of a key."""


class Database:
    """One open file. Every write is a transaction that is on disk when it returns."""

    def __init__(self, file: Path) -> None:
        file.touch(mode=0o600)
        self._file = file
        self._line = sqlite3.connect(file, isolation_level=None, check_same_thread=False)
        try:
            self._line.executescript("PRAGMA journal_mode=WAL; PRAGMA synchronous=FULL;")
            self._prepare()
        except sqlite3.DatabaseError as error:
            self._line.close()
            raise ConfigurationError(
                f"{file} can't be used as a database: {error}.",
                hint="Restore it from a copy, or give --single another folder.",
            ) from None

    def _prepare(self) -> None:
        (version,) = self._line.execute("PRAGMA user_version").fetchone()
        if version == 0:
            self._line.executescript(
                f"BEGIN IMMEDIATE; {_TABLES} PRAGMA user_version={FORMAT}; COMMIT;"
            )
        elif version != FORMAT:
            self._line.close()
            raise ConfigurationError(
                f"{self._file} has format {version}; this server knows format {FORMAT}.",
                hint="Use the version of lattice-server that wrote it, or a newer one.",
            )

    def close(self) -> None:
        self._line.close()

    @property
    def revision(self) -> int:
        return self._counter("revision")

    def get(self, key: str) -> Entry | None:
        with self._transaction("DEFERRED"):
            return self._get(key)

    def _get(self, key: str) -> Entry | None:
        row = self._line.execute(f"{_ENTRY} WHERE key = ?", (key,)).fetchone()
        return None if row is None else Entry(*row)

    def list(self, prefix: str) -> tuple[tuple[Entry, ...], int]:
        with self._transaction("DEFERRED"):
            found = self._line.execute(
                f"{_ENTRY} WHERE key >= ? AND key < ? ORDER BY key", (prefix, prefix + _LAST)
            )
            return tuple(Entry(*row) for row in found), self.revision

    def newer(self, prefix: str, after: int) -> tuple[tuple[Entry, ...], int, int]:
        under = (prefix, prefix + _LAST)
        with self._transaction("DEFERRED"):
            found = self._line.execute(
                f"{_ENTRY} WHERE key >= ? AND key < ? AND revision > ? ORDER BY key",
                (*under, after),
            )
            entries = tuple(Entry(*row) for row in found)
            query = "SELECT count(*) FROM entries WHERE key >= ? AND key < ?"
            ((count,),) = self._line.execute(query, under)
            return entries, count, self.revision

    def commit(self, expect: Sequence[Expect], changes: Sequence[Change]) -> int | None:
        """The new revision, or None if an expectation does not hold."""
        with self._transaction():
            for each in expect:
                entry = self._get(each.key)
                if (entry.revision if entry else 0) != each.revision:
                    return None
            for change in changes:
                if isinstance(change, Put) and change.lease and not self._lease(change.lease):
                    raise LeaseGone
            return self._apply(changes)

    def grant(self, ttl_s: int) -> int:
        with self._transaction():
            self._line.execute("UPDATE counters SET value = value + 1 WHERE name = 'lease'")
            number = self._counter("lease")
            self._line.execute("INSERT INTO leases VALUES (?, ?)", (number, ttl_s))
            return number

    def end_lease(self, number: int) -> int:
        """Delete the lease and all its keys in one revision; does nothing if it is gone."""
        with self._transaction():
            self._line.execute("DELETE FROM leases WHERE id = ?", (number,))
            under = self._line.execute(
                "SELECT key FROM entries WHERE lease = ? AND lease != 0 ORDER BY key", (number,)
            )
            return self._apply([Delete(key) for (key,) in under.fetchall()])

    def leases(self) -> tuple[int, ...]:
        with self._transaction("DEFERRED"):
            return tuple(number for (number,) in self._line.execute("SELECT id FROM leases"))

    def history(
        self, prefix: str, after: int, most: int
    ) -> tuple[tuple[tuple[Changed, ...], ...], int]:
        """Up to `most` revisions after one, and the last revision that was read."""
        with self._transaction("DEFERRED"):
            if after < self._counter("compacted"):
                raise Compacted
            reach = max(after, min(after + most, self.revision))
            rows = self._line.execute(
                "SELECT revision, key, value, created, lease FROM history"
                " WHERE revision > ? AND revision <= ? AND key >= ? AND key < ?"
                " ORDER BY revision, place",
                (after, reach, prefix, prefix + _LAST),
            )
            by_revision = groupby(rows, key=lambda row: row[0])
            return tuple(_batch(found) for _, found in by_revision), reach

    def compact(self, upto: int) -> None:
        with self._transaction():
            self._forget(upto)

    def _apply(self, changes: Iterable[Change]) -> int:
        revision = self.revision + 1
        index = 0
        for change in changes:
            before = self._get(change.key)
            row: tuple[bytes | None, int, int]
            if isinstance(change, Put):
                row = (change.value, before.created if before else revision, change.lease)
                self._line.execute(
                    "REPLACE INTO entries VALUES (?, ?, ?, ?, ?)",
                    (change.key, row[0], revision, *row[1:]),
                )
            elif before is None:
                continue
            else:
                row = (None, 0, 0)
                self._line.execute("DELETE FROM entries WHERE key = ?", (change.key,))
            self._line.execute(
                "INSERT INTO history VALUES (?, ?, ?, ?, ?, ?)", (revision, index, change.key, *row)
            )
            index += 1
        if index == 0:
            return revision - 1
        self._line.execute("UPDATE counters SET value = ? WHERE name = 'revision'", (revision,))
        if revision % _TRIM_EVERY == 0:
            self._forget(revision - HISTORY_REVISIONS)
        return revision

    def _forget(self, upto: int) -> None:
        if upto > self._counter("compacted"):
            self._line.execute("DELETE FROM history WHERE revision <= ?", (upto,))
            self._line.execute("UPDATE counters SET value = ? WHERE name = 'compacted'", (upto,))

    def _lease(self, number: int) -> bool:
        found = self._line.execute("SELECT 1 FROM leases WHERE id = ?", (number,)).fetchone()
        return found is not None

    def _counter(self, name: str) -> int:
        row = self._line.execute("SELECT value FROM counters WHERE name = ?", (name,)).fetchone()
        value: int = row[0]
        return value

    @contextmanager
    def _transaction(self, kind: str = "IMMEDIATE") -> Iterator[None]:
        try:
            self._line.execute(f"BEGIN {kind}")
            try:
                yield
            except BaseException:
                self._line.execute("ROLLBACK")
                raise
            self._line.execute("COMMIT")
        except sqlite3.Error as error:
            if self._line.in_transaction:
                self._line.execute("ROLLBACK")
            raise Unavailable(
                f"The state's database can't be used: {error}.",
                hint=f"An administrator looks at the disk of {self._file}.",
            ) from None


def _batch(rows: Iterable[tuple[int, str, bytes | None, int, int]]) -> tuple[Changed, ...]:
    return tuple(
        Changed(
            key, None if value is None else Entry(key, value, revision, created, lease), revision
        )
        for revision, key, value, created, lease in rows
    )
