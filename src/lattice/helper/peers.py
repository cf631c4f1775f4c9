"""What jobs send to each address and get from it by TCP, as the eBPF program knows it.

Closed connections are in a map of the kernel. Open ones are read on request. The kernel then walks
over the sockets of this network namespace, and writes a record for each that has an owner. From
kernel 5.19 on neither needs a capability, only the descriptors.
"""

from __future__ import annotations

import ctypes
import errno
import os
import struct
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass

from lattice.domain.counters import MOST_PEERS, PEERS, PeerCounters, Rows, peer_row
from lattice.helper.conversation import NoValues
from lattice.helper.latency import CALL_NUMBERS, LatencyGroup, LatencyMaps
from lattice.helper.privilege import Kernel

MOST_CLOSED = 4096
"""The size of the map `peers`."""
_LOOKUP_BATCH, _MAKE_ITERATOR = 24, 33
_PEER = struct.Struct("=Q16s")
_MOVED = struct.Struct("=QQ")
_RECORD = _PEER.size + _MOVED.size
_MOST_BYTES = 16 * 1024 * 1024
_PART = 256 * 1024


class _Batch(ctypes.Structure):
    _fields_ = (
        ("begin", ctypes.c_uint64),
        ("end", ctypes.c_uint64),
        ("keys", ctypes.c_uint64),
        ("values", ctypes.c_uint64),
        ("count", ctypes.c_uint32),
        ("map", ctypes.c_uint32),
        ("element_flags", ctypes.c_uint64),
        ("flags", ctypes.c_uint64),
    )


class _Iterator(ctypes.Structure):
    _fields_ = (("link", ctypes.c_uint32), ("flags", ctypes.c_uint32))


@dataclass(frozen=True, slots=True)
class PeerRecord:
    """What one job has moved to and from one address, over some of its connections."""

    job: int
    """The inode of its control group."""
    address: bytes
    sent: int
    received: int


class KernelPeers:
    """Reads the connections of all jobs. Raises `OSError`."""

    def __init__(self, kernel: Kernel, peers: int, link: int) -> None:
        """`peers` is the map, `link` that of the program that walks over sockets."""
        self._kernel = kernel
        self._number = CALL_NUMBERS.get(os.uname().machine)
        self._peers = peers
        self._link = link

    def __call__(self) -> list[PeerRecord]:
        # The closed ones first: one that ends meanwhile is missing once, and never there twice.
        return [*self._closed(), *self._open()]

    def _closed(self) -> Iterator[PeerRecord]:
        keys = ctypes.create_string_buffer(_PEER.size * MOST_CLOSED)
        values = ctypes.create_string_buffer(_MOVED.size * MOST_CLOSED)
        end = ctypes.c_uint64()
        asked = _Batch(
            end=ctypes.addressof(end),
            keys=ctypes.addressof(keys),
            values=ctypes.addressof(values),
            count=MOST_CLOSED,
            map=self._peers,
        )
        with suppress(FileNotFoundError):  # so the kernel marks the end
            self._bpf(_LOOKUP_BATCH, asked)
        pairs = zip(
            _PEER.iter_unpack(keys.raw[: asked.count * _PEER.size]),
            _MOVED.iter_unpack(values.raw[: asked.count * _MOVED.size]),
            strict=True,
        )
        for peer, moved in pairs:
            yield PeerRecord(*peer, *moved)

    def _open(self) -> Iterator[PeerRecord]:
        walk = self._bpf(_MAKE_ITERATOR, _Iterator(link=self._link))
        raw = bytearray()
        try:
            while part := os.read(walk, _PART):
                raw += part
                if len(raw) > _MOST_BYTES:
                    raise OSError(errno.EFBIG, "too many connections")
        finally:
            os.close(walk)
        for at in range(0, len(raw) - _RECORD + 1, _RECORD):
            peer = _PEER.unpack_from(raw, at)
            yield PeerRecord(*peer, *_MOVED.unpack_from(raw, at + _PEER.size))

    def _bpf(self, command: int, asked: ctypes.Structure) -> int:
        if self._number is None:
            raise OSError(0, "no number of the call bpf for this machine")
        size = ctypes.sizeof(asked)
        return self._kernel.call(self._number, command, ctypes.addressof(asked), size)


class JobPeers:
    """Reads `peers` for a conversation."""

    kinds = frozenset({PEERS})

    def __init__(
        self,
        records: Callable[[], Sequence[PeerRecord]] | None,
        group_of: Callable[[int], LatencyGroup | None],
        *,
        since: float = 0.0,
        reason: str = "",
    ) -> None:
        self._records = records
        self._group_of = group_of
        self._since = since
        self._reason = reason
        self.unread: Mapping[int, str] = {}
        """Always empty: no process is read."""

    def read(self, wanted: Collection[str], jobs: Sequence[int]) -> Mapping[str, dict[int, Rows]]:
        """Rows as in `lattice.domain.counters`; jobs not on this node are left out.

        Raises `NoValues`.
        """
        if self._records is None:
            raise NoValues(self._reason)
        groups = {job: group for job in jobs if (group := self._group_of(job)) is not None}
        try:
            records = self._records()
        except OSError as error:
            raise NoValues(f"the kernel refused: {error.strerror}") from error
        found = {job: self._rows(group, records) for job, group in groups.items()}
        return dict.fromkeys(wanted, found)

    def close(self) -> None:
        """Do nothing: the helper owns the descriptors, and the program continues."""

    def _rows(self, group: LatencyGroup, records: Sequence[PeerRecord]) -> Rows:
        """Of a job that is older than the program only the inode: some connections are missing."""
        if group.born < self._since:
            return [[group.inode]]
        moved: dict[bytes, tuple[int, int]] = {}
        for each in records:
            if each.job == group.inode:
                sent, received = moved.get(each.address, (0, 0))
                moved[each.address] = (sent + each.sent, received + each.received)
        most = sorted(moved.items(), key=lambda each: (-sum(each[1]), each[0]))[:MOST_PEERS]
        return [
            peer_row(group.inode, PeerCounters(address, sent, received))
            for address, (sent, received) in most
        ]


def job_peers(kernel: Kernel, latency: LatencyMaps) -> JobPeers:
    """With the program that was loaded for `latency`."""
    loaded = latency.loaded
    records = KernelPeers(kernel, loaded.peers, loaded.walk) if loaded is not None else None
    return JobPeers(records, latency.group_of, since=latency.since, reason=latency.reason)
