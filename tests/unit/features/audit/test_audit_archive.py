"""The archive of the audit log: nothing lost or doubled by a crash, every damage named."""

from __future__ import annotations

import pytest

from lattice.base.clock import SystemClock
from lattice.base.signatures import SigningKey
from lattice.base.zstd import zstd
from lattice.domain.audit_anchor import anchor_text, read_anchors
from lattice.domain.audit_chain import ChainPoint
from lattice.domain.objects import NoObject
from lattice.features.audit.model import AuditVerdict
from lattice.features.audit.service import archive as archive_module
from lattice.features.audit.service.archive import (
    Archiver,
    AuditArchive,
    BadSegment,
    Segment,
    SegmentName,
    unpack,
)
from lattice.features.audit.service.head import BLOCKS
from lattice.features.audit.service.reader import AuditReader, Verification
from tests.fakes.audit import CLUSTER, AuditReplica, attach, audit_replica
from tests.fakes.in_memory_objects import InMemoryObjectStore
from tests.fakes.in_memory_state import InMemoryStateStore

CLOCK = SystemClock()
KEY, OTHER = SigningKey.generate(), SigningKey.generate()


class Site:
    """A state store and an object store with one log; every batch has two entries."""

    def __init__(self) -> None:
        self.state = InMemoryStateStore(CLOCK)
        self.objects = InMemoryObjectStore(CLOCK)
        self.replica: AuditReplica = audit_replica(self.state, CLOCK, KEY)
        self.archive = AuditArchive(self.objects)

    async def record(self, first: int, last: int) -> None:
        for n in range(first, last, 2):
            await self.replica.chain.append([attach(f"e{n}"), attach(f"e{n + 1}")])

    def archiver(self) -> Archiver:
        chain = self.replica.chain.another()
        return Archiver(self.state, self.archive, chain, retained=4, segment=6)

    async def archive_all(self) -> None:
        archiver = self.archiver()
        while await archiver.step():
            pass

    async def verify(self, anchors: dict[int, bytes] | None = None) -> AuditVerdict:
        reader = AuditReader(self.state, self.archive)
        return await Verification(reader, frozenset({KEY.name}), anchors or {}).run()

    async def keys(self) -> list[str]:
        return [each.key async for each in self.objects.listing("audit/")]


@pytest.fixture
async def site() -> Site:
    made = Site()
    await made.record(0, 30)
    await made.archive_all()
    return made


@pytest.mark.spec("AUDIT-2")
async def test_older_entries_move_to_the_archive_and_the_chain_goes_on(site: Site) -> None:
    await site.record(30, 40)
    verdict = await site.verify()
    assert verdict.ok, verdict.problem
    assert verdict.entries == 41
    assert verdict.segments == 4
    assert len((await site.state.list(BLOCKS)).entries) <= 10


@pytest.mark.spec("AUDIT-2")
@pytest.mark.parametrize(
    "where", ["audit.segment.planned", "audit.segment.written", "audit.segment.recorded"]
)
async def test_a_crash_between_the_steps_loses_and_doubles_nothing(
    where: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    site = Site()
    await site.record(0, 30)

    class Crash(Exception):
        pass

    def die(name: str) -> None:
        if name == where:
            raise Crash

    with monkeypatch.context() as patched:
        patched.setattr(archive_module, "failpoint", die)
        with pytest.raises(Crash):
            await site.archive_all()
    assert (await site.verify()).ok
    await site.record(30, 32)
    await site.archive_all()
    verdict = await site.verify()
    assert verdict.ok, verdict.problem
    assert verdict.entries == 33


@pytest.mark.spec("AUDIT-2")
async def test_two_archivers_make_the_same_segments(site: Site) -> None:
    await site.record(30, 60)
    one, other = site.archiver(), site.archiver()
    for _ in range(20):
        await one.step()
        await other.step()
    verdict = await site.verify()
    assert verdict.ok, verdict.problem
    assert verdict.entries == 61


@pytest.mark.spec("AUDIT-2")
async def test_a_batch_that_a_crash_left_behind_is_not_read_and_is_removed(site: Site) -> None:
    (first, *_) = [each async for each in site.objects.listing("audit/")]
    text = unpack(await site.objects.read(first.key)).text
    await site.state.put(f"{BLOCKS}{1:020d}", text.splitlines(keepends=True)[0])
    assert (await site.verify()).ok
    await site.record(30, 50)
    await site.archive_all()
    assert f"{BLOCKS}{1:020d}" not in [e.key for e in (await site.state.list(BLOCKS)).entries]


@pytest.mark.threat(21, "audit-log")
@pytest.mark.spec("AUDIT-3")
async def test_a_deleted_segment_is_named(site: Site) -> None:
    keys = await site.keys()
    await site.objects.delete(keys[1])
    verdict = await site.verify()
    assert not verdict.ok
    assert verdict.first_bad == int(keys[1].rpartition("/")[2][:20])


@pytest.mark.threat(21, "audit-log")
@pytest.mark.spec("AUDIT-3")
async def test_a_deleted_last_segment_is_named(site: Site) -> None:
    keys = await site.keys()
    await site.objects.delete(keys[-1])
    assert (await site.verify()).first_bad == int(keys[-1].rpartition("/")[2][:20])


@pytest.mark.threat(21, "audit-log")
@pytest.mark.spec("AUDIT-3")
async def test_a_changed_segment_is_named(site: Site) -> None:
    key = (await site.keys())[1]
    body = zstd.decompress(await site.objects.read(key))
    first = int(key.rpartition("/")[2][:20])
    await site.objects.put(key, zstd.compress(body.replace(b'"alice"', b'"allice"', 1)))
    assert (await site.verify()).first_bad == first
    await site.objects.put(key, b"no zstd")
    assert (await site.verify()).first_bad == first
    await site.objects.put(key, zstd.compress(body[: body.rindex(b"=")]))
    assert (await site.verify()).first_bad is not None


@pytest.mark.threat(21, "audit-log")
@pytest.mark.spec("AUDIT-3")
async def test_a_rolled_back_state_is_found_by_the_archive_and_by_an_anchor() -> None:
    site = Site()
    await site.record(0, 10)
    old = {each.key: each.value for each in (await site.state.list("")).entries}
    await site.record(10, 30)
    await site.archive_all()
    anchors = {31: site.replica.chain.batches[-1].end.link}
    for each in (await site.state.list("")).entries:
        site.state.space.entries.pop(each.key)
    for key, value in old.items():
        await site.state.put(key, value)
    verdict = await site.verify(anchors)
    assert verdict.first_bad == 12
    verdict = await site.verify()
    assert not verdict.ok
    assert "rolled back" in verdict.problem


@pytest.mark.threat(21, "audit-log")
@pytest.mark.spec("AUDIT-3")
async def test_entries_that_are_archived_while_the_log_is_read_are_not_missing(
    site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    read = AuditArchive.read
    moved: list[bool] = []

    async def busy(archive: AuditArchive, name: SegmentName) -> Segment:
        if not moved:
            moved.append(True)
            await site.record(30, 60)
            await site.archive_all()
        return await read(archive, name)

    monkeypatch.setattr(AuditArchive, "read", busy)
    verdict = await site.verify()
    assert verdict.ok, verdict.problem
    assert moved


@pytest.mark.spec("AUDIT-3")
async def test_a_log_signed_by_no_server_is_found() -> None:
    site = Site()
    site.replica = audit_replica(site.state, CLOCK, OTHER)
    await site.record(0, 4)
    verdict = await site.verify()
    assert not verdict.ok
    assert "no server" in verdict.problem


@pytest.mark.threat(21, "audit-log")
@pytest.mark.spec("AUDIT-3")
async def test_an_emptied_state_is_found_by_an_anchor() -> None:
    verdict = await Site().verify({7: b"x" * 32})
    assert not verdict.ok
    assert verdict.first_bad == 1


def test_anchors_are_read_from_a_file_and_from_syslog() -> None:
    point = ChainPoint(5, bytes(32))
    line = anchor_text(CLOCK.now(), CLUSTER, point)
    found = read_anchors([line, f"Mar  1 host x: {line}", "other", line[:-1] + "z"], CLUSTER)
    assert found == {5: point.link}
    assert read_anchors([line], "another") == {}


async def test_a_segment_that_is_no_zstd_is_bad() -> None:
    for body in (b"", b"x", zstd.compress(b""), zstd.compress(b"{}\n")):
        with pytest.raises(BadSegment):
            unpack(body)


async def test_a_missing_segment_has_no_content(site: Site) -> None:
    (name, *_) = await site.archive.names(CLUSTER)
    await site.objects.delete(name.key)
    with pytest.raises(NoObject):
        await site.archive.read(name)
