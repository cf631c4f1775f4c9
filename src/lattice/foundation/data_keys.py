"""The data keys of sensitive allocations: made at first need, stored wrapped, destroyed at the end.

    sensitive/keys/ALLOCATION     the id of the key, and its secret wrapped by a key of the site

A server that needs the key of an allocation first creates its record, if absent. So all servers
have the same key, also if they ask at the same time. The wrapped secret is bound to the cluster and
the allocation: a record that was moved to another allocation does not open.

Secrets are cached, because a key service may take a tenth of a second. A server forgets the key of
an allocation when nobody used it for some minutes, and soon after the allocation has ended. Then
it also forgets a key that is used all the time, since another server may have destroyed it.

Every method raises `Unavailable` while the agreed state or the key service does not answer, and
`DataUnavailable` for a record that was changed.
"""

from __future__ import annotations

import asyncio
import hashlib
import logging
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Container, Iterable
from contextlib import suppress
from dataclasses import dataclass
from datetime import datetime

import msgspec

from lattice.base.clock import Clock
from lattice.base.errors import DataUnavailable, LatticeError, Unavailable
from lattice.base.failpoints import failpoint
from lattice.domain.allocation import Allocation
from lattice.domain.audit import AuditAct, AuditEvent, AuditTrail
from lattice.domain.sealed import KEY_ID_BYTES, DataKey, binding
from lattice.domain.site_keys import SiteKeys, WrappedKey
from lattice.domain.state import Delete, Expect, Put, StateStore

_log = logging.getLogger("lattice.sensitive")

KEYS = "sensitive/keys/"
UNUSED_S = 300.0
"""An unused secret stays in memory for so long while its allocation runs."""
ENDED_S = 30.0
"""The same once the allocation has ended."""
ENDED_MOST_S = 120.0
"""After the end a secret that is in use is fetched again: the key may have been destroyed."""
CHECK_EVERY_S = 10.0
WRAP_CHECK_EVERY_S = 600.0
_MOST_CACHED = 512
_MOST_KNOWN = 20_000
_ABSENT_S = 2.0
"""How long an absent record counts as absent without another question."""
_SILENT_S = 5.0
_BOUND = "lattice data key 1"


class KeyRecord(msgspec.Struct, frozen=True):
    """What is stored of a data key."""

    id: str
    """In hex."""
    site_key: str
    secret: bytes
    tenant: str
    account: str
    owner: str
    made: datetime


@dataclass(slots=True)
class _Cached:
    key: DataKey
    used_s: float
    over_s: float = float("inf")
    """Since when the allocation is known to have ended."""


@dataclass(slots=True)
class DataKeyCounts:
    """Counted since the start of the server."""

    made_total: int = 0
    unwrapped_total: int = 0
    wrapped_again_total: int = 0
    destroyed_total: int = 0
    failures_total: int = 0


class DataKeys:
    """One for each server. Its loops run while the server does."""

    def __init__(
        self,
        state: StateStore,
        site_keys: SiteKeys,
        cluster: Callable[[], Awaitable[str]],
        clock: Clock,
        unfinished: Callable[[], Container[str] | None] = lambda: None,
    ) -> None:
        """`cluster` returns the id of the cluster.

        `unfinished` returns the allocations that Slurm has unfinished; None if it does not answer.
        """
        self._state = state
        self._site_keys = site_keys
        self._cluster = cluster
        self._clock = clock
        self._unfinished = unfinished
        self._cached: OrderedDict[str, _Cached] = OrderedDict()
        self._known: OrderedDict[str, float] = OrderedDict()
        """Allocations with a record: infinity. Those without one: until when that is assumed."""
        self._silent_until_s = 0.0
        self._turns: dict[str, asyncio.Lock] = {}
        self._wrap_now = asyncio.Event()
        self.counts = DataKeyCounts()
        self.trouble = ""
        """Why keys can't be wrapped again; empty if they can."""

    async def key_of(self, allocation: Allocation) -> DataKey:
        """The key, made now if there is none."""
        ref = named(allocation)
        found = await self._existing(ref)
        return found if found is not None else await self._made(ref, allocation)

    async def existing(self, ref: str) -> DataKey:
        """The key of an allocation. Raises `DataUnavailable` if there is none."""
        found = await self._existing(ref)
        if found is None:
            raise DataUnavailable(
                f"There is no data key of {ref}: it was destroyed, or never made.",
                hint="What was sealed with it can't be read by anybody.",
            )
        return found

    async def is_sealed(self, ref: str) -> bool:
        """True if there is a key for this allocation.

        After the state did not answer it raises `Unavailable` at once for some seconds. Readers of
        ordinary work ask this often, and need not wait.
        """
        until_s, now = self._known.get(ref, 0.0), self._clock.monotonic()
        if ref in self._cached or until_s == float("inf"):
            return True
        if until_s > now:
            return False
        if now < self._silent_until_s:
            raise Unavailable(
                "The agreed state does not answer, so nobody knows which work is sealed.",
                hint="Try again in a few seconds.",
            )
        try:
            return await self._record(ref) is not None
        except Unavailable:
            self._silent_until_s = self._clock.monotonic() + _SILENT_S
            raise

    @property
    def cached(self) -> tuple[str, ...]:
        """The allocations whose secrets are in memory."""
        return tuple(self._cached)

    async def bound(self, ref: str) -> bytes:
        """What the wrapped key of an allocation is bound to."""
        return binding(_BOUND, await self._cluster(), ref)

    async def cluster(self) -> str:
        """The id of the cluster, which every sealing names."""
        return await self._cluster()

    async def run(self) -> None:
        """Forget keys that are not needed any more, until cancelled."""
        while True:
            self.forget_unused()
            await asyncio.sleep(CHECK_EVERY_S)

    def forget_unused(self) -> None:
        """Drop the secrets that nobody used for a while, and those of allocations long over."""
        if not self._cached:
            return
        now, unfinished = self._clock.monotonic(), self._unfinished()
        for ref, each in tuple(self._cached.items()):
            is_over = unfinished is not None and ref not in unfinished
            each.over_s = min(each.over_s, now) if is_over else float("inf")
            is_unused = now - each.used_s >= (ENDED_S if is_over else UNUSED_S)
            if is_unused or now - each.over_s >= ENDED_MOST_S:
                del self._cached[ref]

    def wrap_soon(self) -> None:
        """Compare all keys with the site's newest one now; usually it is done every ten minutes."""
        self._wrap_now.set()

    async def run_wrapping(self) -> None:
        """Wrap keys again after each change of the site's key, until cancelled."""
        while True:
            self._wrap_now.clear()
            try:
                await self.wrap_again()
                self.trouble = ""
            except LatticeError as error:
                if error.message != self.trouble:
                    _log.warning("data keys are not wrapped again: %s", error.message)
                self.trouble = error.message
            with suppress(TimeoutError):
                async with asyncio.timeout(WRAP_CHECK_EVERY_S):
                    await self._wrap_now.wait()

    async def wrap_again(self) -> int:
        """Wrap each key with the newest key of the site; returns how many were wrapped.

        A record that can't be unwrapped stays as it is, and does not stop the others.
        """
        newest = await self._site_keys.newest()
        done, left = 0, ""
        for key, record, revision in await self._records():
            if record.site_key == newest:
                continue
            ref = key.removeprefix(KEYS)
            try:
                bound = await self.bound(ref)
                old = WrappedKey(record.site_key, record.secret)
                again = await self._site_keys.wrap(await self._site_keys.unwrap(old, bound), bound)
            except LatticeError as error:
                self.counts.failures_total += 1
                left = error.message
                continue
            new = msgspec.structs.replace(record, site_key=again.site_key, secret=again.secret)
            change = Put(key, msgspec.json.encode(new))
            if await self._state.commit([Expect(key, revision)], [change]) is not None:
                done += 1
        self.counts.wrapped_again_total += done
        if done:
            _log.info("%d data keys wrapped with the site's key %s", done, newest)
        if left:
            raise Unavailable(left, hint="Data keys of an older site key are not wrapped again.")
        return done

    async def records(self) -> tuple[tuple[str, KeyRecord], ...]:
        """Every allocation with a key."""
        return tuple((key.removeprefix(KEYS), record) for key, record, _ in await self._records())

    async def destroy(self, ref: str, reason: str, trail: AuditTrail) -> bool:
        """Delete the key for ever; it is in the audit log first. False if there is none.

        Raises `SensitiveAuditRequired` if that can't be recorded; then the key stays.
        """
        entry = await self._state.get(KEYS + ref)
        if entry is None:
            return False
        record = _read(entry.value)
        # The same event on every server and on each retry.
        name = f"destroy {await self._cluster()} {ref} {entry.created}"
        await trail.require(
            AuditEvent(
                event=hashlib.sha256(name.encode()).hexdigest(),
                act=AuditAct.KEY_DESTROYED,
                allocation=ref,
                owner=record.owner if record else "",
                of_tenant=record.tenant if record else "",
                detail=reason,
            )
        )
        failpoint("keys.destroy.audited")
        if (
            await self._state.commit([Expect(entry.key, entry.revision)], [Delete(entry.key)])
            is None
        ):
            raise Unavailable(f"The data key of {ref} was changed meanwhile.", hint="Try again.")
        self._cached.pop(ref, None)
        self._known.pop(ref, None)
        self.counts.destroyed_total += 1
        _log.info("the data key of allocation %s is destroyed: %s", ref, reason)
        return True

    async def _existing(self, ref: str) -> DataKey | None:
        now = self._clock.monotonic()
        cached = self._cached.get(ref)
        if cached is None:
            # One question for all who wait.
            try:
                async with self._turns.setdefault(ref, asyncio.Lock()):
                    cached = self._cached.get(ref) or await self._unwrapped(ref)
            finally:
                self._turns.pop(ref, None)
        if cached is None:
            return None
        cached.used_s = now
        if ref in self._cached:
            # What was not used for longest is forgotten first.
            self._cached.move_to_end(ref)
        return cached.key

    async def _unwrapped(self, ref: str) -> _Cached | None:
        record = await self._record(ref)
        if record is None:
            return None
        wrapped = WrappedKey(record.site_key, record.secret)
        secret = await self._site_keys.unwrap(wrapped, await self.bound(ref))
        self.counts.unwrapped_total += 1
        return self._keep(ref, DataKey(bytes.fromhex(record.id), secret))

    async def _record(self, ref: str) -> KeyRecord | None:
        entry = await self._state.get(KEYS + ref)
        if entry is None:
            self._know(ref, self._clock.monotonic() + _ABSENT_S)
            return None
        self._know(ref, float("inf"))
        record = _read(entry.value)
        if record is None:
            raise DataUnavailable(
                f"The record of the data key of {ref} can't be read.",
                hint="An administrator restores the agreed state from a backup.",
            )
        return record

    async def _made(self, ref: str, allocation: Allocation) -> DataKey:
        key = DataKey.new()
        wrapped = await self._site_keys.wrap(key.secret, await self.bound(ref))
        record = KeyRecord(
            id=key.id.hex(),
            site_key=wrapped.site_key,
            secret=wrapped.secret,
            tenant=allocation.tenant or "",
            account=allocation.account,
            owner=allocation.user,
            made=self._clock.now(),
        )
        path = KEYS + ref
        change = Put(path, msgspec.json.encode(record))
        if await self._state.commit([Expect(path, 0)], [change]) is None:
            # Another server was first; its key counts.
            return await self.existing(ref)
        self.counts.made_total += 1
        self._know(ref, float("inf"))
        return self._keep(ref, key).key

    def _keep(self, ref: str, key: DataKey) -> _Cached:
        cached = self._cached[ref] = _Cached(key, self._clock.monotonic())
        self._cached.move_to_end(ref)
        while len(self._cached) > _MOST_CACHED:
            self._cached.popitem(last=False)
        return cached

    def _know(self, ref: str, until_s: float) -> None:
        self._known[ref] = until_s
        self._known.move_to_end(ref)
        while len(self._known) > _MOST_KNOWN:
            self._known.popitem(last=False)

    async def _records(self) -> Iterable[tuple[str, KeyRecord, int]]:
        listing = await self._state.list(KEYS)
        found = ((each, _read(each.value)) for each in listing.entries)
        return [(each.key, record, each.revision) for each, record in found if record is not None]


def named(allocation: Allocation) -> str:
    """The identity of an allocation, which every sealing names.

    Raises `Unavailable` while Slurm has not said when it was first submitted.
    """
    if allocation.first_submitted is None:
        raise Unavailable(
            f"Slurm has not said yet when allocation {allocation.id} was first submitted.",
            hint="Sensitive work is sealed with a key of its allocation. Try again in a minute.",
        )
    return allocation.ref


def _read(value: bytes) -> KeyRecord | None:
    try:
        record = msgspec.json.decode(value, type=KeyRecord)
        if len(bytes.fromhex(record.id)) != KEY_ID_BYTES:
            return None
    except (msgspec.MsgspecError, UnicodeDecodeError, ValueError, RecursionError):
        return None
    return record
