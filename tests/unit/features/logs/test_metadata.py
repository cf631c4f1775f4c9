"""What is summed up of an attempt: when, from what, and by whom."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from lattice.access.grants import GrantSigner
from lattice.adapters.objects.folder import FolderObjectStore
from lattice.base.errors import Unavailable
from lattice.base.signatures import SigningKey
from lattice.domain.allocation import State
from lattice.domain.attempts import attempts_of
from lattice.domain.logs import Gap, GapCause, LogKind, Position
from lattice.domain.objects import ObjectStore
from lattice.features.logs.service import metadata
from lattice.features.logs.service.log_keys import AttemptName
from lattice.features.logs.service.metadata import FIRST_CHECK_S, LATER_CHECK_S, Summaries
from lattice.features.logs.service.seal import METADATA, Seals
from tests.fakes.manual_clock import ManualClock
from tests.unit.features.logs.test_reading import Site, numbered

SIGNER = GrantSigner(SigningKey.generate(), ManualClock())


class Written(Site):
    """A finished attempt in the store, and what sums it up."""

    def __init__(self, objects: ObjectStore | None = None) -> None:
        super().__init__()
        if objects is not None:
            self.objects: Any = objects
        self.summaries = self.replica()

    def replica(self) -> Summaries:
        return Summaries(self.objects, self.scheduler, self.clock, self.seals)

    @property
    def seals(self) -> Seals:
        return Seals(self.objects, SIGNER, SIGNER.public_keys)

    async def vouch(self, node: str) -> None:
        """A server took what this node brought."""
        async for each in self.objects.listing(f"{self.name.prefix}/stdout/{node}/"):
            await self.seals.note_late(self.name, each.key, await self.objects.read(each.key))

    @property
    def name(self) -> AttemptName:
        (job,) = self.scheduler.allocations
        return AttemptName(job, attempts_of(job)[0])

    async def read(self) -> dict[str, Any]:
        content = json.loads(await self.objects.read(f"{self.name.prefix}/{METADATA}"))
        assert isinstance(content, dict)
        return content

    async def exists(self) -> bool:
        keys = [each.key async for each in self.objects.listing(self.name.prefix)]
        return f"{self.name.prefix}/{METADATA}" in keys


@pytest.fixture(params=["memory", "folder"])
def site(request: pytest.FixtureRequest, tmp_path: Path) -> Written:
    return Written(FolderObjectStore(tmp_path) if request.param == "folder" else None)


@pytest.mark.spec("LOG-1")
async def test_everything_in_it_stands_in_the_chunks(site: Written) -> None:
    gap = Gap(Position(14, 2), GapCause.TRUNCATED, 99, site.ms(2.5))
    await site.put("n1", numbered(70), gaps=(gap,))
    await site.put("n2", numbered(5, "err"), kind=LogKind.STDERR, source="0.3")
    assert await site.summaries.write(site.name)
    found = await site.read()
    out, err = found["streams"]
    text = b"".join(line for _, line in numbered(70))
    assert found["allocation"] == site.name.allocation.ref
    assert (found["attempt"], found["nodes"]) == (1, ["n1", "n2"])
    assert (out["bytes"], out["lines"], out["source"]) == (len(text), 70, "batch")
    assert (err["stream"], err["rank"], err["lines"]) == ("stderr", 3, 5)
    assert found["lines"] == 75
    assert [each["key"] for each in out["chunks"]] == [
        f"stdout/n1/chunk_{number:06d}.log.zst" for number in (1, 2, 3)
    ]
    ends = [
        (each["offset"] + each["bytes"], each["line"] + each["lines"]) for each in out["chunks"]
    ]
    assert ends[-1] == (len(text), 70)
    assert [(each["cause"], each["lost_bytes"], each["line"]) for each in out["gaps"]] == [
        ("truncated", 99, 2)
    ]
    assert (found["first"], found["last"]) == (out["first"], out["last"])


@pytest.mark.spec("LOG-1")
async def test_not_before_every_stream_has_its_end(site: Written) -> None:
    await site.put("n1", numbered(70))
    folder = f"{site.name.prefix}/stdout/n1"
    last = await site.objects.read(f"{folder}/chunk_000003.log.zst")
    await site.objects.delete(f"{folder}/chunk_000003.log.zst")
    assert not await site.summaries.write(site.name)
    assert not await site.exists()
    await site.objects.put(f"{folder}/chunk_000003.log.zst", last)
    assert await site.summaries.write(site.name)
    assert await site.exists()


@pytest.mark.spec("LOG-1")
async def test_two_replicas_write_the_same_and_it_is_written_once(site: Written) -> None:
    await site.put("n1", numbered(40))
    other = site.replica()
    assert await site.summaries.write(site.name)
    before = await site.read()
    assert await other.write(site.name)
    assert (site.summaries.written_total, other.written_total) == (1, 0)
    assert await site.read() == before


@pytest.mark.spec("LOG-1")
async def test_a_chunk_that_comes_late_is_in_it_in_the_end(site: Written) -> None:
    await site.put("n1", numbered(40))
    await site.summaries.write(site.name)
    await site.put("n2", numbered(40, "late"))
    await site.vouch("n2")
    await site.replica().write(site.name)
    assert (await site.read())["nodes"] == ["n1", "n2"]


@pytest.mark.spec("LOG-1")
async def test_whoever_knew_less_and_wrote_last_looks_again() -> None:
    """One replica reads the chunks, the other stores one more and sums up, the first writes."""
    site = Written()
    await site.put("n1", numbered(40))
    await site.summaries.write(site.name)
    await site.put("n2", numbered(3, "late"))
    await site.vouch("n2")
    put = site.objects.put
    key = f"{site.name.prefix}/{METADATA}"

    async def overtaken(where: str, body: bytes) -> None:
        site.objects.put = put  # type: ignore[method-assign]
        await site.put("n3", numbered(3, "later"))
        await site.vouch("n3")
        await site.replica().write(site.name)
        assert where == key
        await put(where, body)

    site.objects.put = overtaken  # type: ignore[method-assign]
    await site.summaries.write(site.name)
    assert (await site.read())["nodes"] == ["n1", "n2", "n3"]


@pytest.mark.spec("LOG-1")
async def test_it_waits_until_slurm_says_that_the_attempt_is_over() -> None:
    site = Written()
    await site.put("n1", numbered(3))
    (over,) = site.scheduler.allocations
    site.scheduler.allocations[:] = [replace(over, state=State.COMPLETING, ended=None)]
    site.summaries.note(site.name)
    await site.summaries.process_due()
    assert not await site.exists(), "other nodes' last chunks come about now"
    site.clock.advance(FIRST_CHECK_S)
    await site.summaries.process_due()
    assert not await site.exists(), "it may write more on another node"
    site.scheduler.allocations[:] = [over]
    site.clock.advance(LATER_CHECK_S)
    await site.summaries.process_due()
    assert await site.exists()
    assert not site.summaries._due


@pytest.mark.spec("LOG-1")
async def test_a_store_that_is_away_is_asked_again_later() -> None:
    site = Written()
    await site.put("n1", numbered(3))
    site.summaries.note(site.name)
    site.clock.advance(FIRST_CHECK_S)
    site.objects.away = True
    with pytest.raises(Unavailable):
        await site.summaries.process_due()
    site.objects.away = False
    await site.summaries.process_due()
    assert not await site.exists()
    site.clock.advance(LATER_CHECK_S)
    await site.summaries.process_due()
    assert await site.exists()


@pytest.mark.spec("LOG-1")
async def test_a_server_that_comes_back_takes_up_what_slurm_remembers() -> None:
    site = Written()
    await site.put("n1", numbered(3))
    again = site.replica()
    again.note_remembered()
    site.clock.advance(FIRST_CHECK_S)
    await again.process_due()
    assert await site.exists()


@pytest.mark.spec("LOG-1")
async def test_nobody_needs_it_to_read() -> None:
    site = Written()
    await site.put("n1", numbered(3))
    await site.objects.put(f"{site.name.prefix}/{METADATA}", b"not even JSON")
    assert await site.texts() == ["line 0", "line 1", "line 2"]


@pytest.mark.parametrize("content", [b'{"x":' + b"[" * 5000 + b"]" * 5000 + b"}", b"{", b"\xff"])
def test_metadata_that_can_not_be_read_are_compared_by_their_bytes(content: bytes) -> None:
    assert metadata._facts(content) == content
