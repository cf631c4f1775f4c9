"""Recordings are verified with the log: every harm is named, and nothing is called whole unseen."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from datetime import datetime, timedelta

import pytest

from lattice.base.errors import Unavailable
from lattice.base.signatures import SigningKey
from lattice.domain.audit import AuditEntry
from lattice.domain.recording import LARGEST_CHUNK_BYTES
from lattice.domain.recording_path import RecordingPath
from lattice.features.audit.model import AuditVerdict
from lattice.features.audit.service import recordings as recordings_module
from lattice.features.audit.service.archive import Archiver, AuditArchive
from lattice.features.audit.service.reader import AuditReader, Verification
from lattice.features.audit.service.recordings import RecordingCheck
from lattice.foundation.recording_store import RecordingStore
from tests.fakes.audit import attach, audit_replica
from tests.fakes.finished_recordings import FinishedRecording, finished_recording
from tests.fakes.in_memory_objects import InMemoryObjectStore
from tests.fakes.in_memory_state import InMemoryStateStore
from tests.fakes.manual_clock import ManualClock

KEY = SigningKey.generate()
DAY_S = 86_400.0


class Site:
    """A log and a sensitive bucket with recordings that the log names."""

    def __init__(self) -> None:
        self.clock = ManualClock()
        self.state = InMemoryStateStore(self.clock)
        self.archive = AuditArchive(InMemoryObjectStore(self.clock))
        self.bucket = InMemoryObjectStore(self.clock)
        self.store: RecordingStore | None = RecordingStore(self.bucket)
        self.chain = audit_replica(self.state, self.clock, KEY).chain

    async def recorded(self, *recordings: FinishedRecording) -> None:
        for each in recordings:
            for key, chunk in zip(each.keys, each.chunks, strict=True):
                await self.bucket.put(key, chunk)
            await self.chain.append([each.end])

    async def removed(self, recording: FinishedRecording, days: int = 30) -> None:
        await self.chain.append([recording.removal(days)])
        for key in recording.keys:
            await self.bucket.delete(key)

    async def archive_all(self) -> None:
        archiver = Archiver(self.state, self.archive, self.chain.another(), retained=2, segment=4)
        while await archiver.step():
            pass

    async def verify(
        self,
        shows: Callable[[AuditEntry], bool] = lambda _: True,
        since: datetime | None = None,
    ) -> AuditVerdict:
        check = RecordingCheck(self.store, self.clock, shows, since)
        reader = AuditReader(self.state, self.archive)
        return await Verification(reader, frozenset({KEY.name}), {}, check).run()


ONE, TWO, THREE = finished_recording(1), finished_recording(2, 40), finished_recording(3, 1)


@pytest.fixture
async def site() -> Site:
    made = Site()
    await made.recorded(ONE, TWO, THREE)
    return made


@pytest.mark.spec("AUDIT-4")
async def test_whole_recordings_are_counted_also_of_archived_entries(site: Site) -> None:
    for n in range(10):
        await site.chain.append([attach(f"a{n}"), attach(f"b{n}")])
    await site.archive_all()
    verdict = await site.verify()
    assert (verdict.ok, verdict.recordings, verdict.recordings_unchecked) == (True, 3, 0)
    assert verdict.segments > 0
    assert verdict.damaged == ()


async def _missing(site: Site) -> int:
    await site.bucket.delete(TWO.keys[7])
    return 7


async def _cut(site: Site) -> int:
    for each in TWO.keys[30:]:
        await site.bucket.delete(each)
    return 30


async def _gone(site: Site) -> int:
    for each in TWO.keys:
        await site.bucket.delete(each)
    return 0


async def _changed(site: Site) -> int:
    body = TWO.chunks[7]
    await site.bucket.put(TWO.keys[7], body[:-9] + bytes([body[-9] ^ 1]) + body[-8:])
    return 7


async def _last_changed(site: Site) -> int:
    body = TWO.chunks[-1]
    await site.bucket.put(TWO.keys[-1], body[:-9] + bytes([body[-9] ^ 1]) + body[-8:])
    return 39


async def _several(site: Site) -> int:
    """The first of them is named, also if they are read at once."""
    body = TWO.chunks[9]
    await site.bucket.put(TWO.keys[9], body[:-9] + bytes([body[-9] ^ 1]) + body[-8:])
    await site.bucket.delete(TWO.keys[11])
    await site.bucket.delete(TWO.keys[12])
    return 9


async def _swapped(site: Site) -> int:
    await site.bucket.put(TWO.keys[7], TWO.chunks[8])
    await site.bucket.put(TWO.keys[8], TWO.chunks[7])
    return 7


async def _of_another(site: Site) -> int:
    await site.bucket.put(TWO.keys[0], ONE.chunks[0])
    return 0


async def _huge(site: Site) -> int:
    await site.bucket.put(TWO.keys[7], bytes(LARGEST_CHUNK_BYTES + 1))
    return 7


async def _replaced_whole(site: Site) -> int:
    """Another recording of the same length under the same name, sealed with the same key."""
    other = finished_recording(2, 39)
    await site.bucket.delete(TWO.keys[-1])
    for key, chunk in zip(other.keys, other.chunks, strict=True):
        await site.bucket.put(key, chunk)
    return 39


@pytest.mark.spec("AUDIT-4")
@pytest.mark.threat("audit-log")
@pytest.mark.parametrize(
    "harm",
    [
        _missing,
        _cut,
        _gone,
        _changed,
        _last_changed,
        _several,
        _swapped,
        _of_another,
        _huge,
        _replaced_whole,
    ],
)
async def test_the_first_bad_chunk_is_named(
    site: Site, harm: Callable[[Site], Awaitable[int]]
) -> None:
    chunk = await harm(site)
    verdict = await site.verify()
    assert not verdict.ok
    assert verdict.first_bad is None
    assert (verdict.recordings, verdict.recordings_damaged) == (2, 1)
    (found,) = verdict.damaged
    assert (found.session, found.chunk) == (TWO.path.name.session, chunk)
    assert found.allocation == TWO.path.name.allocation
    assert found.entry == 3
    assert found.problem


async def test_what_lies_beside_the_chunks_is_none_of_them(site: Site) -> None:
    for name in ("x", "9" * 30, "0000000000-1", "0000000040"):
        await site.bucket.put(f"{TWO.path.prefix}/{name}", b"x")
    assert (await site.verify()).ok


@pytest.mark.spec("LOG-8")
async def test_a_removed_recording_is_not_missing(site: Site) -> None:
    site.clock.advance(30 * DAY_S)
    await site.removed(TWO)
    for n in range(10):
        await site.chain.append([attach(f"a{n}"), attach(f"b{n}")])
    await site.archive_all()
    verdict = await site.verify()
    assert verdict.ok
    assert (verdict.recordings, verdict.recordings_removed) == (2, 1)


async def test_one_that_was_removed_too_early_is_named(site: Site) -> None:
    site.clock.advance(29 * DAY_S)
    await site.removed(TWO)
    (found,) = (await site.verify()).damaged
    assert found.session == TWO.path.name.session
    assert found.problem == "it was removed before its retention of 30 days was over"


async def test_the_removal_of_one_does_not_excuse_another(site: Site) -> None:
    site.clock.advance(30 * DAY_S)
    await site.removed(ONE)
    await _gone(site)
    verdict = await site.verify()
    assert [each.session for each in verdict.damaged] == [TWO.path.name.session]


async def test_a_later_session_of_the_same_id_excuses_nothing(site: Site) -> None:
    await _gone(site)
    again = finished_recording(9, session=TWO.path.name.session)
    await site.recorded(again)
    site.clock.advance(30 * DAY_S)
    await site.removed(again)
    verdict = await site.verify()
    assert [each.allocation for each in verdict.damaged] == [TWO.path.name.allocation]
    assert (verdict.recordings, verdict.recordings_removed) == (2, 1)


async def test_a_removal_while_the_log_is_read_is_seen(site: Site) -> None:
    site.clock.advance(30 * DAY_S)

    class Slow(RecordingStore):
        async def first_chunks(
            self, path: RecordingPath, count: int
        ) -> AsyncIterator[tuple[int, bytes]]:
            if path == ONE.path:
                await site.removed(TWO)
            async for each in super().first_chunks(path, count):
                yield each

    site.store = Slow(site.bucket)
    verdict = await site.verify()
    assert verdict.ok, verdict
    assert verdict.recordings_removed == 1


async def test_after_a_flood_of_entries_nobody_is_accused(site: Site) -> None:
    site.clock.advance(30 * DAY_S)

    class Slow(RecordingStore):
        async def first_chunks(
            self, path: RecordingPath, count: int
        ) -> AsyncIterator[tuple[int, bytes]]:
            if path == ONE.path:
                await site.removed(TWO)
                for n in range(20):
                    await site.chain.append([attach(f"a{n}"), attach(f"b{n}")])
                await site.archive_all()
            async for each in super().first_chunks(path, count):
                yield each

    site.store = Slow(site.bucket)
    verdict = await site.verify()
    assert verdict.ok, verdict
    assert (verdict.recordings, verdict.recordings_unchecked) == (2, 1)


@pytest.mark.spec("AUDIT-4")
async def test_without_the_bucket_nothing_is_called_whole(site: Site) -> None:
    site.bucket.away = True
    verdict = await site.verify()
    assert verdict.ok
    assert (verdict.recordings, verdict.recordings_unchecked) == (0, 3)
    assert "did not answer" in verdict.unchecked_because
    site.bucket.away = False
    site.store = None
    verdict = await site.verify()
    assert (verdict.recordings, verdict.recordings_unchecked) == (0, 3)
    assert verdict.unchecked_because == "this server has no bucket of sensitive work"


async def test_a_bucket_that_goes_away_is_not_asked_for_each(site: Site) -> None:
    asked: list[str] = []

    class Away(InMemoryObjectStore):
        async def read(self, key: str, begin: int = 0, end: int | None = None) -> bytes:
            asked.append(f"{key} {begin} {end}")
            raise Unavailable("The object store does not answer.")

    site.store = RecordingStore(Away(site.clock))
    assert (await site.verify()).recordings_unchecked == 3
    assert all(each.startswith(ONE.path.prefix) for each in asked)


async def test_what_would_take_too_long_is_not_checked(
    site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(recordings_module, "PATIENCE_S", -1.0)
    verdict = await site.verify()
    assert (verdict.recordings, verdict.recordings_unchecked) == (0, 3)
    assert "too long" in verdict.unchecked_because


async def test_a_later_day_leaves_out_earlier_recordings(site: Site) -> None:
    site.clock.advance(DAY_S)
    await _gone(site)
    four = finished_recording(4)
    await site.recorded(four)
    verdict = await site.verify(since=site.clock.now() - timedelta(hours=1))
    assert (verdict.ok, verdict.recordings) == (True, 1)


async def test_others_recordings_are_neither_read_nor_named(site: Site) -> None:
    await site.recorded(finished_recording(5, tenant="biology"))
    await _gone(site)
    verdict = await site.verify(lambda entry: entry.of_tenant == "biology")
    assert (verdict.ok, verdict.recordings, verdict.damaged) == (True, 1, ())


async def test_a_recording_behind_a_broken_entry_is_not_believed(site: Site) -> None:
    """What a changed log says of a recording counts for nothing."""
    await site.archive_all()
    entries = site.state.space.entries
    for key in [each for each in entries if each.startswith("audit/block/")]:
        value = entries[key].value.replace(b"recording of 40 chunks", b"recording of 41 chunks")
        await site.state.put(key, value)
    verdict = await site.verify()
    assert verdict.first_bad == 3
    assert verdict.recordings == 0


async def test_an_entry_of_another_event_names_no_recording(site: Site) -> None:
    """A terminal of ordinary work ends with an entry too, whose text has parts of its user."""
    forged = attach("e1", act=ONE.end.act, detail=ONE.end.detail, target="c0ffee")
    await site.chain.append([forged])
    assert (await site.verify()).recordings == 3
