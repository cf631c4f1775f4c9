"""A backup of the agreed state: a signed manifest, and parts with the records. Pure.

    manifest = `LB1`, key name, signature (base64), newline; then JSON.
    part     = a zstd frame of JSON lines, a record each.

The manifest names the cluster, the revision, and size and SHA-256 of every part. So a changed, a
missing or an exchanged part is noticed before a record of it is used. Names of parts are made from
the name of the backup; nothing in a backup names a file.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import json
import re
from collections.abc import Iterable, Iterator
from datetime import datetime
from typing import Annotated, NamedTuple

import msgspec

from lattice.base.packed_text import BadPackedText, expanded
from lattice.base.signatures import BadSignature, KeyRing, SigningKey
from lattice.base.zstd import zstd
from lattice.domain.cluster_record import CLUSTER_KEY
from lattice.domain.objects import key_of
from lattice.domain.state import Entry, check_key, check_value

ROOT = "state-backups"
"""The first part of every key of a backup."""
FORMAT = 1
PART_BYTES = 4 * 1024 * 1024
"""Of the plain text of a part, less its last record."""
_MOST_PARTS = 10_000
_LARGEST_PLAIN_BYTES = 16 * 1024 * 1024
LARGEST_MANIFEST_BYTES = 4 * 1024 * 1024
_LONGEST_HEAD = 160
_DOMAIN = b"lattice backup 1\n"
_MARK = b"LB1 "
_NAME = re.compile(r"\d{8}T\d{6}Z-(scheduled|hand)-[0-9a-f]{8}", re.ASCII)

_Size = Annotated[int, msgspec.Meta(ge=0, lt=1 << 53)]
_Sha = Annotated[str, msgspec.Meta(pattern="^[0-9a-f]{64}$")]


class BadBackup(Exception):
    """The first thing that is wrong with a backup, as text for people."""


class StateRecord(NamedTuple):
    """A key and its value."""

    key: str
    value: bytes


class BackupPart(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One part, as the manifest describes it."""

    size_bytes: _Size
    plain_bytes: _Size
    records: _Size
    sha256: _Sha


class BackupManifest(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """What a backup holds and where it comes from."""

    format: int
    name: str
    cluster: str
    epoch: _Size
    """How often the state had been restored before."""
    taken: datetime
    revision: _Size
    records: _Size
    version: str
    """Of Lattice."""
    store: str
    """`etcd` or `single`."""
    by: str
    """The subject of who asked for it; empty if it was scheduled."""
    parts: tuple[BackupPart, ...]

    @property
    def size_bytes(self) -> int:
        """Of all parts, as they are stored."""
        return sum(each.size_bytes for each in self.parts)


class BackupSigner:
    """Signs manifests with the key of grants, and also trusts keys before it."""

    def __init__(self, key: SigningKey, also_trusted: Iterable[bytes] = ()) -> None:
        self._key = key
        self._ring = KeyRing((key.public, *also_trusted))

    def signed(self, manifest: BackupManifest) -> bytes:
        """The manifest as it is stored."""
        body = msgspec.json.encode(manifest)
        signature = base64.b64encode(self._key.sign(_DOMAIN + body))
        return b"%s%s %s\n%s" % (_MARK, self._key.name.encode(), signature, body)

    def opened(self, name: str, stored: bytes) -> BackupManifest:
        """The manifest of the backup with this name. Raises `BadBackup`."""
        head, newline, body = stored.partition(b"\n")
        if not newline or not head.startswith(_MARK) or len(head) > _LONGEST_HEAD:
            raise BadBackup("its manifest is not one of Lattice")
        try:
            key, signature = head.removeprefix(_MARK).decode("ascii").split(" ")
            self._ring.verify(key, _DOMAIN + body, base64.b64decode(signature, validate=True))
        except BadSignature as bad:
            raise BadBackup(f"its manifest is not trusted: {bad}") from None
        except (ValueError, binascii.Error):
            raise BadBackup("the signature of its manifest can't be read") from None
        try:
            manifest = msgspec.json.decode(body, type=BackupManifest)
        except (msgspec.DecodeError, ValueError):
            raise BadBackup("its manifest is damaged, or of another version of Lattice") from None
        if manifest.format != FORMAT or len(manifest.parts) > _MOST_PARTS:
            raise BadBackup(f"its format is {manifest.format}; this Lattice reads {FORMAT}")
        if manifest.name != name:
            raise BadBackup(f"its manifest belongs to another backup, {manifest.name[:60]!a}")
        return manifest


def backup_name(taken: datetime, kind: str, random_hex: str) -> str:
    """The name of a new backup; names sort by time. `kind` is `scheduled` or `hand`."""
    name = f"{taken:%Y%m%dT%H%M%SZ}-{kind}-{random_hex}"
    assert is_backup_name(name), name
    return name


def is_backup_name(text: str) -> bool:
    """True for a name that `backup_name` could have made."""
    if not _NAME.fullmatch(text):
        return False
    try:
        taken_at(text)
    except ValueError:
        return False
    return True


def is_scheduled(name: str) -> bool:
    return "-scheduled-" in name


def taken_at(name: str) -> datetime:
    """When the backup was taken, by its name."""
    return datetime.strptime(f"{name[:15]}+0000", "%Y%m%dT%H%M%S%z")


def manifest_key(name: str) -> str:
    return key_of(ROOT, name, "manifest")


def part_key(name: str, number: int) -> str:
    return key_of(ROOT, name, f"part-{number:05}")


def packed(entries: Iterable[Entry]) -> Iterator[tuple[BackupPart, bytes]]:
    """The parts of a backup. Keys under a lease are left out: they end with their holder."""
    lines: list[bytes] = []
    size_bytes = 0
    for entry in entries:
        if entry.lease:
            continue
        record = {"key": entry.key, "value": base64.b64encode(entry.value).decode()}
        lines.append(json.dumps(record, separators=(",", ":")).encode() + b"\n")
        size_bytes += len(lines[-1])
        if size_bytes >= PART_BYTES:
            yield _part(lines)
            lines, size_bytes = [], 0
    if lines:
        yield _part(lines)


def _part(lines: list[bytes]) -> tuple[BackupPart, bytes]:
    plain = b"".join(lines)
    body = zstd.compress(plain)
    digest = hashlib.sha256(body).hexdigest()
    return BackupPart(len(body), len(plain), len(lines), digest), body


def unpacked(number: int, part: BackupPart, body: bytes) -> tuple[StateRecord, ...]:
    """The records of a part. Raises `BadBackup` if it is not what the manifest says."""
    if len(body) != part.size_bytes:
        raise BadBackup(f"part {number} has {len(body)} bytes instead of {part.size_bytes}")
    if hashlib.sha256(body).hexdigest() != part.sha256:
        raise BadBackup(f"part {number} was changed: its SHA-256 differs from the manifest")
    if part.plain_bytes > _LARGEST_PLAIN_BYTES:
        raise BadBackup(f"part {number} is too large")
    try:
        plain = expanded(body, part.plain_bytes)
        records = tuple(map(_record, plain.splitlines()))
    except BadPackedText:
        raise BadBackup(f"part {number} can't be unpacked") from None
    except Exception as bad:  # noqa: BLE001 - whatever a crafted line causes
        raise BadBackup(f"part {number} has a record that can't be read ({bad})") from None
    if len(records) != part.records:
        raise BadBackup(f"part {number} has {len(records)} records instead of {part.records}")
    return records


def _record(line: bytes) -> StateRecord:
    found = json.loads(line)
    if not isinstance(found, dict) or set(found) != {"key", "value"}:
        raise ValueError("not a key and a value")
    key, value = found["key"], base64.b64decode(found["value"], validate=True)
    check_key(key)
    check_value(key, value)
    return StateRecord(key, value)


def check_records(manifest: BackupManifest, records: Iterable[StateRecord]) -> StateRecord:
    """The record of the cluster. Raises `BadBackup` if the records are not of the manifest."""
    cluster: StateRecord | None = None
    before, count = "", 0
    for each in records:
        if each.key <= before:
            raise BadBackup(f"its records are out of order at {each.key[:60]}")
        before, count = each.key, count + 1
        if each.key == CLUSTER_KEY:
            cluster = each
    if count != manifest.records:
        raise BadBackup(f"it has {count} records instead of {manifest.records}")
    if cluster is None:
        raise BadBackup("it has no record of a cluster")
    return cluster
