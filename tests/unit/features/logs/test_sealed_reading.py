"""Stored output of sensitive jobs: sealed in a bucket of its own, and never shown if changed."""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta

import pytest

from lattice.access.allocation_finder import AllocationFinder
from lattice.access.grants import GrantSigner
from lattice.access.output import OutputAccess
from lattice.access.sensitive_acts import SensitiveActs
from lattice.base.errors import DataUnavailable, Unavailable
from lattice.base.signatures import SigningKey
from lattice.domain.attempts import attempts_of
from lattice.domain.audit import AuditAct, SensitiveAuditRequired
from lattice.domain.logchunk import BadChunk
from lattice.domain.objects import NoObject, ObjectStore, key_of
from lattice.domain.sealed import SEGMENT_BYTES, plain_bytes
from lattice.domain.sensitive import SensitiveWork
from lattice.domain.vcluster import Vcluster, VclusterKind, Vclusters
from lattice.features.logs.model import GapCause, LogGap, LogNote, LogQuery
from lattice.features.logs.service.archive import Archive
from lattice.features.logs.service.key_retention import KeyRetention
from lattice.features.logs.service.live_feeds import Feeds
from lattice.features.logs.service.log_keys import AttemptName
from lattice.features.logs.service.log_service import LogService
from lattice.features.logs.service.metadata import Summaries
from lattice.features.logs.service.retention import Removals, Retention, RetentionRules
from lattice.features.logs.service.seal import METADATA, Seals
from lattice.features.logs.service.sealed_objects import (
    ChangedObject,
    ObjectsByAllocation,
    SealedObjects,
    allocation_of,
)
from lattice.foundation.attempt_finder import AttemptFinder
from lattice.foundation.data_keys import DataKeys
from tests.fakes.claimed_nodes import FixedClaims, node_claim
from tests.fakes.in_memory_objects import InMemoryObjectStore
from tests.fakes.in_memory_site_keys import InMemorySiteKeys
from tests.fakes.manual_clock import ManualClock
from tests.fakes.required_trail import RequiredTrail
from tests.fakes.sharing import sharing_parts
from tests.unit.features.logs.test_reading import ALICE, NoNodes, Site, noise, numbered, texts_of

DAY_S = 86_400.0
MARKER = b"patient 4711"


class SealedSite(Site):
    """One finished job with a data key, an ordinary bucket and the sensitive one."""

    def __init__(self) -> None:
        self._stored: ObjectStore | None = None
        self.signer = GrantSigner(SigningKey.generate(), ManualClock())
        super().__init__(self.signer)

    def stored(self) -> ObjectStore:
        if self._stored is None:
            self.site_keys = InMemorySiteKeys()
            self.bucket = InMemoryObjectStore(self.clock)
            self.data_keys = self.server()
            sealed = SealedObjects(self.bucket, self.data_keys)
            self._stored = ObjectsByAllocation(self.objects, sealed, self.data_keys)
        return self._stored

    def server(self) -> DataKeys:
        async def cluster() -> str:
            return "c1"

        return DataKeys(self.state, self.site_keys, cluster, self.clock)

    @property
    def job(self) -> AttemptName:
        (found,) = self.scheduler.allocations
        return AttemptName(found, attempts_of(found)[0])

    async def seal(self) -> None:
        """Summarise the attempt and sign what is stored."""
        stored = self.stored()
        seals = Seals(stored, self.signer, self.signer.public_keys)
        assert await Summaries(stored, self.scheduler, self.clock, seals).write(self.job)

    def chunk_keys(self) -> list[str]:
        return [each for each in sorted(self.bucket._objects) if each.endswith(".zst")]

    def change(self, key: str, change: Callable[[bytes], bytes]) -> None:
        body, modified = self.bucket._objects[key]
        self.bucket._objects[key] = change(body), modified


@pytest.fixture
async def site() -> SealedSite:
    made = SealedSite()
    await made.data_keys.key_of(made.job.allocation)
    return made


def flipped(position: float) -> Callable[[bytes], bytes]:
    def change(body: bytes) -> bytes:
        at = int(position * (len(body) - 1))
        return body[:at] + bytes([body[at] ^ 1]) + body[at + 1 :]

    return change


@pytest.mark.spec("LOG-8")
async def test_what_is_read_is_what_was_written(site: SealedSite) -> None:
    await site.put("n1", numbered(100, MARKER.decode()))
    assert await site.texts() == [f"{MARKER.decode()} {number}" for number in range(100)]
    assert site.objects._objects == {}
    assert site.bucket._objects
    for body, _ in site.bucket._objects.values():
        assert MARKER not in body
        assert b"\x28\xb5\x2f\xfd" not in body, "a frame of zstd"


async def test_the_summary_is_sealed_too(site: SealedSite) -> None:
    """It has digests of the text, which would let somebody guess it."""
    await site.put("n1", numbered(70))
    await site.seal()
    (key,) = [each for each in site.bucket._objects if each.endswith(METADATA)]
    assert b"sha256" not in site.bucket._objects[key][0]
    assert b"sha256" in await site.stored().read(key)
    assert site.objects._objects == {}


@pytest.mark.parametrize("position", [0.0, 0.3, 0.9, 0.985, 1.0])
@pytest.mark.parametrize("sealed", [False, True])
async def test_a_changed_bit_is_named_and_nothing_of_the_chunk_is_shown(
    site: SealedSite, position: float, sealed: bool
) -> None:
    await site.put("n1", numbered(90, MARKER.decode()))
    if sealed:
        await site.seal()
    site.change(site.chunk_keys()[1], flipped(position))
    page = await site.page()
    whole = [f"{MARKER.decode()} {number}" for number in range(90)]
    # Without a summary nobody knows whether the first line after the hole is whole.
    assert texts_of(page) == whole[:30] + whole[60 if sealed else 61 :]
    gaps = [each for each in page.records if isinstance(each, LogGap)]
    assert len(gaps) == 1
    notes = [each.words for each in page.records if isinstance(each, LogNote)]
    assert any("1 object was changed in the object store" in each for each in notes), notes
    if sealed:
        assert gaps[0].cause is GapCause.TAMPERED


@pytest.mark.parametrize("sealed", [False, True])
async def test_a_change_after_a_read_is_shown_as_a_gap(site: SealedSite, sealed: bool) -> None:
    await site.put("n1", numbered(90, MARKER.decode()))
    if sealed:
        await site.seal()
    assert len(await site.texts()) == 90
    key = site.chunk_keys()[1]
    before = site.bucket._objects[key]
    site.change(key, flipped(0.0))
    page = await site.page()
    assert f"{MARKER.decode()} 45" not in texts_of(page)
    assert [each.cause for each in page.records if isinstance(each, LogGap)] == [GapCause.TAMPERED]
    site.bucket._objects[key] = before
    assert len(await site.texts()) == 90


@pytest.mark.spec("LOG-8")
async def test_swapped_chunks_do_not_open(site: SealedSite) -> None:
    await site.put("n1", numbered(90))
    first, second, _ = site.chunk_keys()
    objects = site.bucket._objects
    objects[first], objects[second] = objects[second], objects[first]
    assert await site.texts() == [f"line {number}" for number in range(61, 90)]


async def test_a_cut_chunk_does_not_open(site: SealedSite) -> None:
    await site.put("n1", numbered(60))
    site.change(site.chunk_keys()[0], lambda body: body[:-7])
    assert await site.texts() == [f"line {number}" for number in range(31, 60)]


async def test_a_changed_summary_is_named(site: SealedSite) -> None:
    await site.put("n1", numbered(30))
    await site.seal()
    (key,) = [each for each in site.bucket._objects if each.endswith(METADATA)]
    site.change(key, flipped(0.5))
    page = await site.page()
    notes = [each.words for each in page.records if isinstance(each, LogNote)]
    assert any("the seal of these logs does not hold" in each for each in notes), notes
    await site.seal()


async def test_with_another_key_nothing_is_shown(site: SealedSite) -> None:
    await site.put("n1", numbered(30))
    other = SealedSite()
    await other.data_keys.key_of(other.job.allocation)
    for key, (body, _) in site.bucket._objects.items():
        parts = key.split("/")
        parts[4] = other.job.prefix.split("/")[4]
        await other.bucket.put("/".join(parts), body)
    with pytest.raises(DataUnavailable):
        await other.page()


@pytest.mark.spec("LOG-8")
async def test_a_range_costs_the_segments_that_it_touches(site: SealedSite) -> None:
    await site.put("n1", [(n, noise(n) + b" %d\n" % n) for n in range(12_000)], chunk_lines=6000)
    since, until = site.began + timedelta(seconds=3000), site.began + timedelta(seconds=3003)
    await site.page(since=since, until=until)
    before = site.bucket.read_bytes
    texts = await site.texts(since=since, until=until)
    assert [int(each.rsplit(" ", 1)[1]) for each in texts] == list(range(3000, 3004))
    assert site.bucket.read_bytes - before < 4 * SEGMENT_BYTES
    assert sum(len(body) for body, _ in site.bucket._objects.values()) > 7 * SEGMENT_BYTES


async def test_sizes_are_those_of_the_text(site: SealedSite) -> None:
    key = f"{site.job.prefix}/stdout/n1/chunk_000001.log.zst"
    await site.stored().put_new(key, b"x" * 100_000)
    (info,) = [each async for each in site.stored().listing(f"{site.job.prefix}/")]
    assert info.size_bytes == 100_000
    assert plain_bytes(len(site.bucket._objects[key][0])) == 100_000


@pytest.mark.spec("LOG-8")
async def test_a_read_while_the_key_service_is_away_says_so(site: SealedSite) -> None:
    await site.put("n1", numbered(30))
    site.clock.advance(DAY_S)
    site.data_keys.forget_unused()
    site.site_keys.away = True
    with pytest.raises((Unavailable, DataUnavailable), match="key service"):
        await site.page()
    site.site_keys.away = False
    assert len(await site.texts()) == 30


async def test_ordinary_jobs_are_read_without_state_and_without_keys(site: SealedSite) -> None:
    key = "physics/research/9/logs/1700000000-1/stdout/n1/chunk_000001.log.zst"
    await site.objects.put(key, b"x")
    site.state.away = site.site_keys.away = True
    assert await site.stored().read(key) == b"x"
    # But nobody knows now that it is no sealed one.
    with pytest.raises(Unavailable):
        await site.stored().put(key, b"y")


async def test_a_sealed_object_is_told_from_an_absent_one(site: SealedSite) -> None:
    key = f"{site.job.prefix}/stdout/n1/chunk_000001.log.zst"
    with pytest.raises(NoObject):
        await site.stored().read(key)
    await site.bucket.put(key, b"plain text that somebody put there")
    with pytest.raises(ChangedObject):
        await site.stored().read(key)
    assert issubclass(ChangedObject, BadChunk)


def audited(site: SealedSite, trail: RequiredTrail) -> LogService:
    """The same service at a site where the job's vCluster is sensitive."""
    views = Vclusters((Vcluster("batch", VclusterKind.SENSITIVE, "batch"),))
    sharing = sharing_parts(site.state)
    sensitive = SensitiveWork(views, FixedClaims((node_claim("alice", "n1", "n2"),)))
    acts = SensitiveActs(sensitive, trail)
    finder = AllocationFinder(site.scheduler, site.clock, sharing.shares, sensitive, acts)
    return LogService(
        site.scheduler,
        OutputAccess(finder, sharing.notes, site.clock, acts=acts),
        Archive(site.stored()),
        Feeds(NoNodes(), None, site.clock, AttemptFinder(site.scheduler, site.clock).of),  # type: ignore[arg-type]
        site.clock,
        removals=Removals(site.stored()),
    )


@pytest.mark.parametrize("read", ["page", "stream", "streams", "raw"])
async def test_nothing_is_read_before_the_read_is_in_the_audit_log(
    site: SealedSite, read: str
) -> None:
    await site.put("n1", numbered(30))
    trail = RequiredTrail()
    service = audited(site, trail)

    async def act() -> None:
        if read == "page":
            await service.page(ALICE, "7", LogQuery())
        elif read == "stream":
            async for _ in await service.stream(ALICE, "7", LogQuery()):
                break
        elif read == "streams":
            await service.streams(ALICE, "7", LogQuery())
        else:
            await service.raw(ALICE, "7", LogQuery(), "batch")

    trail.is_away = True
    before = site.bucket.reads
    with pytest.raises(SensitiveAuditRequired):
        await act()
    assert site.bucket.reads == before
    trail.is_away = False
    await act()
    assert site.bucket.reads > before
    (event,) = trail.events
    assert (event.act, event.allocation) == (AuditAct.LOG_READ, site.job.allocation.ref)


def retention(site: SealedSite, trail: RequiredTrail, days: int = 30) -> Retention:
    keys = KeyRetention(site.data_keys, site.bucket, trail, site.clock)
    return Retention(site.objects, site.scheduler, site.clock, RetentionRules(days, {}), keys)


@pytest.mark.spec("LOG-8")
async def test_at_the_end_of_the_retention_the_key_is_destroyed_too(site: SealedSite) -> None:
    await site.put("n1", numbered(70))
    await site.seal()
    copies = dict(site.bucket._objects)
    trail = RequiredTrail()
    sweeping = retention(site, trail)
    site.clock.advance(30 * DAY_S - 1)
    await sweeping.sweep()
    assert len(await site.texts()) == 70
    assert trail.events == []
    site.clock.advance(2)
    site.scheduler.read()
    await sweeping.sweep()
    assert site.bucket._objects == {}
    (event,) = trail.events
    assert (event.act, event.allocation) == (AuditAct.KEY_DESTROYED, site.job.allocation.ref)
    with pytest.raises(DataUnavailable, match="removed after 30 days"):
        await site.reading.page(ALICE, "7", LogQuery())
    # Somebody had copies: nobody can open them.
    site.bucket._objects.update(copies)
    for server in (site.data_keys, site.server()):
        store = SealedObjects(site.bucket, server)
        for key in copies:
            with pytest.raises(DataUnavailable, match="destroyed"):
                await store.read(key)


async def test_a_key_stays_as_long_as_something_of_the_allocation_is_stored(
    site: SealedSite,
) -> None:
    tenant, account, job, *_ = site.job.prefix.split("/")
    allocation = site.job.allocation.ref
    recording = key_of(tenant, account, job, "recordings", allocation, "s1", "0000000001")
    other = key_of(tenant, account, job, "recordings", f"{job}@1", "s2", "0000000001")
    for each in (recording, other):
        await site.bucket.put(each, b"sealed")
    trail = RequiredTrail()
    site.clock.advance(400 * DAY_S)
    site.scheduler.read()
    await retention(site, trail).sweep()
    assert trail.events == []
    await site.bucket.delete(recording)
    await retention(site, trail).sweep()
    assert len(trail.events) == 1


async def test_recordings_are_removed_before_the_key_is_asked_for(site: SealedSite) -> None:
    tenant, account, job, *_ = site.job.prefix.split("/")
    ref = site.job.allocation.ref
    recording = key_of(tenant, account, job, "recordings", ref, "s1", "0000000001")
    await site.bucket.put(recording, b"sealed")
    asked: list[tuple[int, bool]] = []

    class Recordings:
        async def sweep(
            self, days_of: Callable[[str], int], unfinished: Callable[[str], bool]
        ) -> None:
            asked.append((days_of(tenant), unfinished(ref)))
            await site.bucket.delete(recording)

    trail = RequiredTrail()
    keys = KeyRetention(site.data_keys, site.bucket, trail, site.clock, Recordings())
    site.clock.advance(31 * DAY_S)
    site.scheduler.read()
    assert await keys.sweep(lambda _: 30, lambda _: False) == 1
    assert asked == [(30, False)]
    assert [each.act for each in trail.events] == [AuditAct.KEY_DESTROYED]


async def test_the_key_of_a_job_that_runs_for_long_stays(site: SealedSite) -> None:
    trail = RequiredTrail()
    site.clock.advance(400 * DAY_S)
    site.scheduler.read()
    keys = KeyRetention(site.data_keys, site.bucket, trail, site.clock)
    assert await keys.sweep(lambda _: 30, lambda ref: ref == site.job.allocation.ref) == 0
    assert await keys.sweep(lambda _: 0, lambda _: False) == 0
    assert await keys.sweep(lambda _: 30, lambda _: False) == 1


async def test_without_its_entry_no_key_is_destroyed_and_others_go_on(site: SealedSite) -> None:
    trail = RequiredTrail()
    trail.is_away = True
    site.clock.advance(400 * DAY_S)
    site.scheduler.read()
    await retention(site, trail).sweep()
    assert await site.data_keys.existing(site.job.allocation.ref)
    trail.is_away = False
    await retention(site, trail).sweep()
    assert len(trail.events) == 1


@pytest.mark.parametrize(
    ("key", "ref"),
    [
        ("physics/research/7/logs/1700000000-1/stdout/n1/chunk_000001.log.zst", "7@1700000000"),
        ("physics/research/7_3/logs/1700000000-2/", "7_3@1700000000"),
        ("physics/research/7%2B1/logs/1700000000-2/x", "7+1@1700000000"),
        ("physics/research/7/logs/", ""),
        ("physics/research/7/summary/1700000000-1/x", ""),
        ("backups/a", ""),
        ("", ""),
    ],
)
def test_the_allocation_of_a_key(key: str, ref: str) -> None:
    assert allocation_of(key) == ref
