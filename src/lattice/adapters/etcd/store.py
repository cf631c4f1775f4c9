"""`EtcdStateStore`: the port `StateStore` over etcd's members. Reads are linearizable.

All keys are under one root, so a site's etcd can serve other programs too, and a role can be
limited to it.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager

from lattice.adapters.etcd.lease import EtcdLease
from lattice.adapters.etcd.members import (
    HAS_LEADER,
    READ_ATTEMPT_S,
    TOTAL_S,
    WRITE_ATTEMPT_S,
    EtcdTls,
    Member,
    Members,
)
from lattice.adapters.etcd.watch import EtcdWatch
from lattice.adapters.etcd.wire import rpc_pb2 as pb
from lattice.base.clock import Clock
from lattice.domain.quorum import QuorumMember
from lattice.domain.state import (
    Change,
    Changed,
    Entry,
    Expect,
    Listing,
    NewerKeys,
    Put,
    check_commit,
    check_key,
    check_lease,
    check_prefix,
    check_value,
)

ROOT = "/lattice/"
_LISTED_AT_ONCE = 1000
"""So that a long list does not hold up the event loop."""


@asynccontextmanager
async def open_etcd(
    endpoints: Sequence[str], tls: EtcdTls, clock: Clock, *, root: str = ROOT
) -> AsyncIterator[EtcdStateStore]:
    """The store over these members; sends nothing yet."""
    members = Members(endpoints, tls, clock)
    async with store_of(members, clock, root=root) as store:
        yield store


@asynccontextmanager
async def store_of(
    members: Members, clock: Clock, *, root: str = ROOT
) -> AsyncIterator[EtcdStateStore]:
    """The store over given members; they are closed with it."""
    store = EtcdStateStore(members, clock, root=root)
    try:
        yield store
    finally:
        await store.aclose()
        await members.aclose()


class EtcdStateStore:
    """Owns the tasks that renew its leases; the creator closes the members."""

    def __init__(self, members: Members, clock: Clock, *, root: str = ROOT) -> None:
        self._members = members
        self._clock = clock
        self._root = root.encode("ascii")
        self._keeping: set[asyncio.Task[None]] = set()

    async def members(self, within_s: float) -> tuple[QuorumMember, ...]:
        """What each member of etcd reports of itself."""
        return await self._members.statuses(within_s)

    async def aclose(self) -> None:
        """Stop renewing leases; those not released expire."""
        keeping = tuple(self._keeping)
        for task in keeping:
            task.cancel()
        await asyncio.gather(*keeping, return_exceptions=True)

    async def get(self, key: str) -> Entry | None:
        """The current value of the key."""
        check_key(key)
        answer = await self._range(pb.RangeRequest(key=self._whole(key)))
        return self._entry(answer.kvs[0]) if answer.kvs else None

    async def list(self, prefix: str) -> Listing:
        """Every key that begins with the prefix, sorted by key."""
        check_prefix(prefix)
        start = self._whole(prefix)
        request = pb.RangeRequest(key=start, range_end=_after_all(start), limit=_LISTED_AT_ONCE)
        entries: list[Entry] = []
        while True:
            answer = await self._range(request, whole=not prefix)
            entries += map(self._entry, answer.kvs)
            if not request.revision:
                # All parts are of one revision.
                request.revision = answer.header.revision
            if not answer.more:
                return Listing(tuple(entries), request.revision)
            request.key = answer.kvs[-1].key + b"\0"

    async def newer(self, prefix: str, after: int) -> NewerKeys:
        """Those of them that changed after a revision. Deleted ones show only in the count."""
        check_prefix(prefix)
        start = self._whole(prefix)
        answer = await self._range(
            pb.RangeRequest(key=start, range_end=_after_all(start), min_mod_revision=after + 1)
        )
        entries = tuple(map(self._entry, answer.kvs))
        return NewerKeys(entries, answer.count, answer.header.revision)

    async def put(self, key: str, value: bytes, lease: int = 0) -> int:
        """Set it unconditionally. Not sent twice: after `Unavailable` it may have happened."""
        check_key(key)
        check_value(key, value)
        request = pb.PutRequest(key=self._whole(key), value=value, lease=lease)

        async def send(member: Member, timeout_s: float) -> int:
            answer = await member.kv.Put(request, timeout=timeout_s, metadata=HAS_LEADER)
            return answer.header.revision

        return await self._members.ask(send, repeatable=False, attempt_s=WRITE_ATTEMPT_S)

    async def commit(self, expect: Sequence[Expect], changes: Sequence[Change]) -> int | None:
        """One transaction of etcd. It is not sent twice either."""
        check_commit(expect, changes)
        request = pb.TxnRequest(
            compare=[self._compare(each) for each in expect],
            success=[self._operation(each) for each in changes],
        )

        async def send(member: Member, timeout_s: float) -> int | None:
            answer = await member.kv.Txn(request, timeout=timeout_s, metadata=HAS_LEADER)
            return answer.header.revision if answer.succeeded else None

        return await self._members.ask(send, repeatable=False, attempt_s=WRITE_ATTEMPT_S)

    async def lease(self, ttl_s: int) -> EtcdLease:
        """Create a lease. One with a lost answer expires by itself."""
        check_lease(ttl_s)
        request = pb.LeaseGrantRequest(TTL=ttl_s)

        async def send(member: Member, timeout_s: float) -> tuple[int, float]:
            sent_s = self._clock.monotonic()
            answer = await member.lease.LeaseGrant(request, timeout=timeout_s, metadata=HAS_LEADER)
            return answer.ID, sent_s

        number, sent_s = await self._members.ask(send, repeatable=True, attempt_s=WRITE_ATTEMPT_S)
        lease = EtcdLease(self._members, self._clock, number, ttl_s, sent_s)
        task = asyncio.create_task(lease.keep(), name=f"etcd lease {number:x}")
        self._keeping.add(task)
        task.add_done_callback(self._keeping.discard)
        return lease

    @asynccontextmanager
    async def watch(
        self, prefix: str, after: int
    ) -> AsyncIterator[AsyncIterator[tuple[Changed, ...]]]:
        """Waits while no member can be reached, and then continues."""
        check_prefix(prefix)
        start = self._whole(prefix)
        watch = EtcdWatch(self._members, start, _after_all(start), after, self._entry)
        batches = watch.batches()
        try:
            yield batches
        finally:
            await batches.aclose()

    async def compact(self, revision: int) -> None:
        """Delete the history before a revision. etcd can be configured to do this by itself."""

        async def send(member: Member, timeout_s: float) -> None:
            request = pb.CompactionRequest(revision=revision, physical=True)
            await member.kv.Compact(request, timeout=timeout_s, metadata=HAS_LEADER)

        await self._members.ask(send, repeatable=False, attempt_s=WRITE_ATTEMPT_S)

    async def _range(self, request: pb.RangeRequest, *, whole: bool = False) -> pb.RangeResponse:
        """`whole`: all keys, as for a backup: one member may take all the time there is."""

        async def send(member: Member, timeout_s: float) -> pb.RangeResponse:
            return await member.kv.Range(request, timeout=timeout_s, metadata=HAS_LEADER)

        return await self._members.ask(
            send, repeatable=True, attempt_s=TOTAL_S if whole else READ_ATTEMPT_S
        )

    def _whole(self, key: str) -> bytes:
        return self._root + key.encode("ascii")

    def _entry(self, found: pb.KeyValue) -> Entry:
        return Entry(
            key=found.key[len(self._root) :].decode("ascii", "replace"),
            value=found.value,
            revision=found.mod_revision,
            created=found.create_revision,
            lease=found.lease,
        )

    def _compare(self, each: Expect) -> pb.Compare:
        return pb.Compare(
            target=pb.Compare.MOD, key=self._whole(each.key), mod_revision=each.revision
        )

    def _operation(self, change: Change) -> pb.RequestOp:
        key = self._whole(change.key)
        if isinstance(change, Put):
            put = pb.PutRequest(key=key, value=change.value, lease=change.lease)
            return pb.RequestOp(request_put=put)
        return pb.RequestOp(request_delete_range=pb.DeleteRangeRequest(key=key))


def _after_all(prefix: bytes) -> bytes:
    """The first key after all that begin with the prefix. Keys are ASCII, so the last byte fits."""
    return prefix[:-1] + bytes([prefix[-1] + 1])
