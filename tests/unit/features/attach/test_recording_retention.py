"""The end of recordings: after their retention, with an entry, and never before."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from lattice.base.errors import NotFound, Unavailable
from lattice.domain.audit import AuditAct
from lattice.domain.recording_proof import recording_removal, removal_event
from lattice.features.attach.service.recording_retention import RecordingRetention
from lattice.features.attach.service.recordings import PAST_RECORDINGS, Recordings
from tests.fakes.attached import ALICE
from tests.unit.features.attach.test_recorded import OTHER, SESSION, Site, close_site
from tests.unit.features.attach.test_replay import recorded, replay_of

DAY_S = 86_400.0


@pytest.fixture
async def site(tmp_path: Path) -> AsyncIterator[Site]:
    made = Site(tmp_path)
    yield made
    await close_site(made)


def retention_of(site: Site) -> RecordingRetention:
    return RecordingRetention(Recordings(site.state), site.store, site.trail, site.clock)


async def sweep(
    retention: RecordingRetention, days: int = 30, unfinished: frozenset[str] = frozenset()
) -> None:
    await retention.sweep(lambda _: days, unfinished.__contains__)


@pytest.mark.spec("LOG-8")
async def test_a_recording_goes_with_an_entry_when_its_retention_is_over(site: Site) -> None:
    await recorded(site, b"one", b"two")
    retention = retention_of(site)
    stored = dict(site.objects._objects)
    site.clock.ahead_s += 30 * DAY_S - 60
    await sweep(retention)
    await sweep(retention, 0)
    site.clock.ahead_s += 61
    await sweep(retention, unfinished=frozenset({site.job.ref}))
    assert site.objects._objects == stored
    assert site.acts(AuditAct.RECORDING_REMOVED) == []
    await sweep(retention)
    assert site.objects._objects == {}
    assert retention.removed_total == 1
    removal = recording_removal(site.trail.entries[-1])
    assert removal is not None
    assert (removal.name.session, removal.days) == (SESSION, 30)
    assert site.trail.events[-1].allocation == site.job.ref
    with pytest.raises(NotFound) as refused:
        await replay_of(site).read(ALICE, SESSION, 0)
    assert "recording-removed" in (refused.value.hint or "")
    await sweep(retention)
    assert len(site.acts(AuditAct.RECORDING_REMOVED)) == 1


async def test_without_its_entry_nothing_is_removed(site: Site) -> None:
    await recorded(site, b"one")
    stored = dict(site.objects._objects)
    site.clock.ahead_s += 31 * DAY_S
    site.trail.is_away = True
    await sweep(retention_of(site))
    assert site.objects._objects == stored
    assert site.state_keys(PAST_RECORDINGS) != []


async def test_an_interrupted_removal_is_done_again(
    site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    await recorded(site, b"one", b"two")
    recording = (await Recordings(site.state).of(SESSION)).name
    site.clock.ahead_s += 31 * DAY_S
    delete = site.objects.delete

    async def fails(key: str) -> None:
        if key.endswith("2"):
            raise Unavailable("The object store did not answer.")
        await delete(key)

    with monkeypatch.context() as patch:
        patch.setattr(site.objects, "delete", fails)
        await sweep(retention_of(site))
    assert len(site.objects._objects) == 1
    assert site.state_keys(PAST_RECORDINGS) != []
    await sweep(retention_of(site))
    assert site.objects._objects == {}
    assert site.state_keys(PAST_RECORDINGS) == []
    first, second = site.trail.events[-2:]
    assert first.event == second.event == removal_event(recording)


async def test_an_open_recording_stays(site: Site) -> None:
    await recorded(site, b"one")
    client = await site.entered(OTHER)
    await client.type(b"two")
    site.clock.ahead_s += 400 * DAY_S
    await sweep(retention_of(site))
    assert {key.split("/")[-2] for key in site.objects._objects} == {OTHER}
