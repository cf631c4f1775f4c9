"""Reads single entries of the log, each under a signature that this server trusts.

The signature of a batch covers all entries before it, by their links. So an entry is proven by the
first seal behind it that is signed with a key of the servers. Usually that is the seal of its own
batch. If the keys were exchanged since, the log is read on up to the first seal of a known key.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterable

from lattice.base.errors import DataUnavailable
from lattice.base.signatures import BadSignature, KeyRing
from lattice.domain.audit import AuditEntry, BadEntry
from lattice.domain.audit_chain import (
    LINK_HEX,
    SEAL,
    ChainPoint,
    entry_in,
    hash_of,
    link_of,
    read_seal,
    seal_message,
)
from lattice.domain.objects import NoObject
from lattice.features.audit.service.archive import BadSegment
from lattice.features.audit.service.head import AuditHead
from lattice.features.audit.service.reader import AuditReader


class SignedEntries:
    """The port `AuditEntries`."""

    def __init__(self, reader: AuditReader, keys: Iterable[bytes]) -> None:
        """`keys` are the public keys of the servers."""
        self._reader = reader
        self._keys = KeyRing(keys)

    async def entry(self, sequence: int) -> AuditEntry | None:
        newest = await self._reader.newest()
        if newest is None or not 0 < sequence <= newest[0].newest.sequence:
            return None
        search = _Search(newest[0].cluster, sequence, self._keys)
        try:
            async for before, text in self._pieces(*newest, sequence):
                found = await asyncio.to_thread(search.read, before, text)
                if found is not None:
                    return found
        except (_Changed, NoObject, BadSegment, BadEntry):
            pass
        raise DataUnavailable(
            f"Entry {sequence} of the audit log was changed, or is missing.",
            hint="`lattice audit verify` names the first bad entry.",
        )

    async def _pieces(
        self, head: AuditHead, retained: bytes, sequence: int
    ) -> AsyncIterator[tuple[ChainPoint, bytes]]:
        """The log from the piece with this entry on, each with the point before it."""
        if sequence <= head.archived.sequence:
            for name in await self._reader.segments(head):
                if name.last >= sequence:
                    segment = await self._reader.segment(name)
                    yield segment.before, segment.text
        yield head.archived, retained


class _Changed(Exception):
    """The chain is not as it was written."""


class _Search:
    """Finds an entry, and then the seal that proves it."""

    def __init__(self, cluster: str, sequence: int, keys: KeyRing) -> None:
        self._cluster = cluster
        self._sequence = sequence
        self._keys = keys
        self._line = b""
        self._point = ChainPoint(0, b"")

    def read(self, before: ChainPoint, text: bytes) -> AuditEntry | None:
        """Read the next piece. Returns the entry once it is proven."""
        if self._line and before != self._point:
            raise _Changed
        self._point = before
        for line in text.splitlines(keepends=True):
            if line.startswith(SEAL):
                if self._line and self._proves(line):
                    return entry_in(self._line)
            else:
                self._follow(line)
        return None

    def _follow(self, line: bytes) -> None:
        number = self._point.sequence + 1
        link = _link(line)
        # Links before the entry need no check: that of the entry covers them.
        if self._line or number == self._sequence:
            content = line.rstrip(b"\n")[LINK_HEX + 1 :]
            if link != link_of(self._point.link, hash_of(content)):
                raise _Changed
        if number == self._sequence:
            self._line = line
        self._point = ChainPoint(number, link)

    def _proves(self, line: bytes) -> bool:
        """True if a known key has signed this point; False if the key is not known."""
        seal = read_seal(line)
        if seal is None or seal.point != self._point:
            raise _Changed
        if seal.key not in self._keys.names:
            return False
        try:
            self._keys.verify(seal.key, seal_message(self._cluster, seal.point), seal.signature)
        except BadSignature:
            raise _Changed from None
        return True


def _link(line: bytes) -> bytes:
    try:
        return bytes.fromhex(line[:LINK_HEX].decode("ascii"))
    except ValueError:
        raise _Changed from None
