"""Single entries of the log: each is proven by a signature, or not returned."""

from __future__ import annotations

import pytest

from lattice.base.clock import SystemClock
from lattice.base.errors import DataUnavailable
from lattice.base.signatures import SigningKey
from lattice.base.zstd import zstd
from lattice.features.audit.service.archive import Archiver, AuditArchive
from lattice.features.audit.service.entries import SignedEntries
from lattice.features.audit.service.reader import AuditReader
from tests.fakes.audit import AuditReplica, attach, audit_replica
from tests.fakes.in_memory_objects import InMemoryObjectStore
from tests.fakes.in_memory_state import InMemoryStateStore

CLOCK = SystemClock()
OLD, NEW, FORGER = SigningKey.generate(), SigningKey.generate(), SigningKey.generate()


class Log:
    """Entries that are signed with the old key, then with the new one."""

    def __init__(self) -> None:
        self.state = InMemoryStateStore(CLOCK)
        self.objects = InMemoryObjectStore(CLOCK)
        self.archive = AuditArchive(self.objects)

    async def record(self, replica: AuditReplica, names: str) -> None:
        for name in names:
            await replica.chain.append([attach(f"{name}1"), attach(f"{name}2")])

    async def archive_all(self, replica: AuditReplica) -> None:
        archiver = Archiver(
            self.state, self.archive, replica.chain.another(), retained=4, segment=6
        )
        while await archiver.step():
            pass

    def entries(self, *keys: SigningKey) -> SignedEntries:
        reader = AuditReader(self.state, self.archive)
        return SignedEntries(reader, [each.public for each in keys])


@pytest.fixture
async def log() -> Log:
    made = Log()
    old = audit_replica(made.state, CLOCK, OLD, (NEW.public,))
    await made.record(old, "abcdefgh")
    await made.archive_all(old)
    new = audit_replica(made.state, CLOCK, NEW)
    await made.record(new, "stuvwxyz")
    await made.archive_all(new)
    return made


@pytest.mark.parametrize("keys", [(OLD, NEW), (NEW,)], ids=["both keys", "the new key alone"])
async def test_each_entry_is_found(log: Log, keys: tuple[SigningKey, ...]) -> None:
    entries = log.entries(*keys)
    found = [await entries.entry(number) for number in range(1, 34)]
    assert [each.sequence for each in found if each] == list(range(1, 34))
    # The first entry names the keys.
    assert [each.event for each in found if each][1:] == [
        f"{name}{n}" for name in "abcdefghstuvwxyz" for n in (1, 2)
    ]


async def test_there_is_no_entry_of_another_number(log: Log) -> None:
    entries = log.entries(NEW)
    for number in (0, -1, 34, 10**18):
        assert await entries.entry(number) is None
    assert (
        await SignedEntries(AuditReader(InMemoryStateStore(CLOCK), None), [NEW.public]).entry(1)
        is None
    )


async def test_a_changed_entry_is_not_returned(log: Log) -> None:
    (key, *_) = [each.key async for each in log.objects.listing("audit/")]
    body = zstd.decompress(await log.objects.read(key))
    await log.objects.put(key, zstd.compress(body.replace(b'"n1"', b'"n2"', 2)))
    blocks = [each for each in log.state.space.entries if each.startswith("audit/block/")]
    last = blocks[-1]
    value = log.state.space.entries[last].value
    await log.state.put(last, value.replace(b'"n1"', b'"n2"', 1))
    for number in (2, 32):
        with pytest.raises(DataUnavailable, match=f"Entry {number} of the audit log was changed"):
            await log.entries(OLD, NEW).entry(number)
    assert await log.entries(OLD, NEW).entry(12)


async def test_a_log_of_another_key_proves_nothing() -> None:
    log = Log()
    await log.record(audit_replica(log.state, CLOCK, FORGER), "abc")
    with pytest.raises(DataUnavailable):
        await log.entries(OLD, NEW).entry(3)


async def test_a_segment_that_gives_itself_other_numbers_proves_nothing(log: Log) -> None:
    (key, *_) = [each.key async for each in log.objects.listing("audit/")]
    body = zstd.decompress(await log.objects.read(key))
    await log.objects.put(key, zstd.compress(body.replace(b'"first":1', b'"first":3', 1)))
    with pytest.raises(DataUnavailable):
        await log.entries(OLD, NEW).entry(4)
