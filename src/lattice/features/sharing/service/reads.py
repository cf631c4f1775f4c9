"""Reads by others, recorded for the owner: `reads/ALLOCATION/READER`, one entry per hour.

A record is written by compare-and-swap before the read is answered. A reader who pages through
output causes one write in ten seconds, not one per page. Old hours of a key are merged, and keys
end after 30 days. The oldest keys are removed when there are too many. The server's own log keeps
every record.
"""

from __future__ import annotations

import hashlib
import json
from collections import OrderedDict
from collections.abc import Iterable
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from urllib.parse import quote

from lattice.access.journal import ActJournal
from lattice.base.clock import Clock
from lattice.base.errors import Unavailable
from lattice.domain.allocation import Allocation
from lattice.domain.sharing import ReadKind, ReadRecord, Standing
from lattice.domain.state import Delete, Entry, Expect, Put, StateStore
from lattice.features.sharing.model import ONE_READ_S, noted

READS = "reads/"
RETENTION = timedelta(days=30)
MOST_KEYS = 20_000
_MOST_REMEMBERED = 10_000
_LONGEST_READER = 200
_TRIES = 10
_SWEEP_EVERY_S = 3600.0
_SWEPT_AT_ONCE = 50


class WrittenReads:
    """Implements the port `ReadNotes`."""

    def __init__(self, state: StateStore, clock: Clock, journal: ActJournal | None = None) -> None:
        self._state = state
        self._clock = clock
        self._journal = journal
        self._lately: OrderedDict[tuple[str, ReadKind], float] = OrderedDict()
        self._keys = 0
        """The number of keys: the count at the last sweep plus those created here since."""
        self._swept_s = float("-inf")

    async def note(
        self,
        reader: str,
        standing: Standing,
        allocation: Allocation,
        kind: ReadKind,
        *,
        goes_on: bool = False,
        audited: bool = False,
    ) -> None:
        """Return when the read is recorded. Raises `Unavailable`."""
        name = _identity(allocation)
        key = f"{READS}{name}/{_word(reader)}"
        lately = self._lately.get((key, kind), float("-inf"))
        if self._clock.monotonic() - lately < ONE_READ_S:
            return
        now = self._clock.now()
        new = ReadRecord(allocation=name, reader=reader, standing=standing, first=now, last=now)
        try:
            await self._sweep()
            await self._write(key, new, kind, goes_on=goes_on)
        except Unavailable as problem:
            raise Unavailable(
                "This is another's output, and that you read it can't be written down now: "
                f"{problem.message}",
                hint="Nobody's output is shown to others unrecorded. Try again in a minute.",
            ) from None
        self._remember(key, kind)
        if self._journal is not None and not audited:
            self._journal.acted(
                kind.act,
                name,
                reader,
                standing,
                owner=allocation.user,
                tenant=allocation.tenant,
            )

    async def of(self, allocations: Iterable[Allocation]) -> tuple[ReadRecord, ...]:
        """Return the records of these allocations, newest first. Raises `Unavailable`."""
        found: list[ReadRecord] = []
        for allocation in allocations:
            if allocation.first_submitted is None:
                continue
            listing = await self._state.list(f"{READS}{allocation.ref}/")
            for entry in listing.entries:
                found.extend(records_of(entry))
        oldest = self._clock.now() - RETENTION
        recent = (each for each in found if each.last > oldest)
        return tuple(sorted(recent, key=lambda each: each.last, reverse=True))

    async def _write(self, key: str, new: ReadRecord, kind: ReadKind, *, goes_on: bool) -> None:
        for _ in range(_TRIES):
            entry = await self._state.get(key)
            before = records_of(entry) if entry is not None else ()
            value = _written(noted(before, new, kind, goes_on=goes_on))
            revision = entry.revision if entry is not None else 0
            if await self._state.commit([Expect(key, revision)], [Put(key, value)]) is not None:
                self._keys += entry is None
                return
        raise Unavailable("too many write at once.")

    def _remember(self, key: str, kind: ReadKind) -> None:
        self._lately[key, kind] = self._clock.monotonic()
        self._lately.move_to_end((key, kind))
        while len(self._lately) > _MOST_REMEMBERED:
            self._lately.popitem(last=False)

    async def _sweep(self) -> None:
        """Remove records that are too old, and the oldest if there are too many."""
        now = self._clock.monotonic()
        if now - self._swept_s < _SWEEP_EVERY_S and self._keys <= MOST_KEYS:
            return
        self._swept_s = now
        listing = await self._state.list(READS)
        by_age = sorted(listing.entries, key=_last)
        oldest = self._clock.now() - RETENTION
        # Remove a tenth more than necessary, so that the next read need not sweep again.
        most = MOST_KEYS - MOST_KEYS // 10
        too_many = len(by_age) - most if len(by_age) > MOST_KEYS else 0
        gone = [each for n, each in enumerate(by_age) if n < too_many or _last(each) <= oldest]
        self._keys = len(by_age) - len(gone)
        for at in range(0, len(gone), _SWEPT_AT_ONCE):
            part = gone[at : at + _SWEPT_AT_ONCE]
            with suppress(Unavailable):
                await self._state.commit(
                    [Expect(each.key, each.revision) for each in part],
                    [Delete(each.key) for each in part],
                )


def records_of(entry: Entry) -> tuple[ReadRecord, ...]:
    """Return the records of a key, oldest first; nothing if the value can't be parsed."""
    try:
        document = json.loads(entry.value)
        return tuple(
            ReadRecord(
                allocation=str(document["allocation"]),
                reader=str(document["reader"]),
                standing=Standing(standing),
                first=datetime.fromtimestamp(first, UTC),
                last=datetime.fromtimestamp(last, UTC),
                reads=int(reads),
                follows=int(follows),
                downloads=int(downloads),
            )
            for standing, first, last, reads, follows, downloads in document["hours"]
        )
    except (ValueError, KeyError, TypeError, OverflowError):
        return ()


def _written(records: tuple[ReadRecord, ...]) -> bytes:
    document = {
        "allocation": records[0].allocation,
        "reader": records[0].reader,
        "hours": [
            [
                each.standing.value,
                int(each.first.timestamp()),
                int(each.last.timestamp()),
                each.reads,
                each.follows,
                each.downloads,
            ]
            for each in records
        ],
    }
    return json.dumps(document, separators=(",", ":")).encode()


def _last(entry: Entry) -> datetime:
    records = records_of(entry)
    return records[-1].last if records else datetime.fromtimestamp(0, UTC)


def _identity(allocation: Allocation) -> str:
    if allocation.first_submitted is None:
        raise Unavailable(
            f"When {allocation.id} was first submitted is not known yet, and without that nobody "
            "could tell its owner that it was read.",
            hint="Try again in a minute: Slurm's accounting has it.",
        )
    return allocation.ref


def _word(reader: str) -> str:
    word = quote(reader, safe="")
    if len(word) <= _LONGEST_READER:
        return word
    return "sha256-" + hashlib.sha256(reader.encode()).hexdigest()
