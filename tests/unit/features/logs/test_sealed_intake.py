"""What nodes may bring of sensitive jobs, and what they are given for it."""

from __future__ import annotations

from dataclasses import replace

import pytest

from lattice.access.grants import GrantSigner
from lattice.base.errors import NotFound, PermissionRefused, Unavailable, UsageError
from lattice.base.signatures import SigningKey
from lattice.domain.job_seal import JobSeal
from lattice.domain.logchunk import LARGEST_CHUNK_BYTES
from lattice.domain.sealed import DataKey, seal_object, sealed_bytes
from lattice.domain.sensitive import SensitiveWork
from lattice.domain.vcluster import Vcluster, VclusterKind, Vclusters
from lattice.features.logs.service.intake import ChunkStores, LogIntake
from lattice.features.logs.service.job_seals import JobSealing
from lattice.features.logs.service.seal import Seals
from lattice.features.logs.service.sealed_objects import ObjectsByAllocation, SealedObjects
from lattice.foundation.attempt_finder import AttemptFinder
from lattice.foundation.data_keys import KEYS, DataKeys
from tests.fakes.in_memory_objects import InMemoryObjectStore
from tests.fakes.in_memory_site_keys import InMemorySiteKeys
from tests.fakes.in_memory_state import InMemoryStateStore
from tests.unit.domain.test_logchunk import chunk_of
from tests.unit.features.logs.test_intake import Files, Site

CLINIC = Vcluster("clinic", VclusterKind.SENSITIVE, "clinic")
TEXT = b"patient 4711\n"


class SealedSite(Site):
    """Job 7 is sensitive, job 8 is not. Both run on n1."""

    def __init__(self) -> None:
        super().__init__()
        self.scheduler.allocations[:] = [self.job(7, vcluster="clinic"), self.job(8)]
        self.scheduler.read()
        self.state = InMemoryStateStore(self.clock)
        self.site_keys = InMemorySiteKeys()
        self.bucket = InMemoryObjectStore(self.clock)
        self.views = Vclusters((CLINIC,))

        async def cluster() -> str:
            return "c1"

        self.data_keys = DataKeys(self.state, self.site_keys, cluster, self.clock)
        sealed = SealedObjects(self.bucket, self.data_keys)
        self.stored = ObjectsByAllocation(self.objects, sealed, self.data_keys)
        self.intake = self.server(JobSealing(self.data_keys, SensitiveWork(self.views)), sealed)

    def server(self, sealing: JobSealing, sealed: SealedObjects | None) -> LogIntake:
        signer = GrantSigner(SigningKey.generate(), self.clock)
        seals = Seals(self.stored, signer, signer.public_keys)
        return LogIntake(
            AttemptFinder(self.scheduler, self.clock),
            Files(),
            self.stored,
            signer,
            self.refused,
            self.clock,
            seals,
            sealing=sealing,
            stores=ChunkStores(self.objects, sealed),
        )

    async def seal(self, job_id: int = 7) -> JobSeal | None:
        admitted = await self.intake.admit("n1", job_id, self.started, (20,), can_seal=True)
        return admitted.seal

    async def sealed(self, chunk: bytes, number: int = 1) -> bytes:
        seal = await self.seal()
        assert seal is not None
        bound = seal.stream("n1", "stdout", "batch").chunk(number)
        return seal_object(seal.key, bound, chunk)

    @property
    def in_bucket(self) -> list[str]:
        return sorted(self.bucket._objects)


@pytest.fixture
def site() -> SealedSite:
    return SealedSite()


@pytest.mark.spec("LOG-8")
async def test_nothing_is_opened_while_the_key_service_is_away(site: SealedSite) -> None:
    site.site_keys.away = True
    with pytest.raises(Unavailable, match="key service"):
        await site.seal()
    with pytest.raises(Unavailable, match="key service"):
        await site.intake.admit_noted("n1", 7, site.started, can_seal=True)
    with pytest.raises(Unavailable, match="key service"):
        await site.intake.seal_of("n1", 7, site.started)
    assert await site.seal(8) is None
    site.site_keys.away = False
    assert await site.seal() is not None


async def test_nothing_is_opened_while_the_state_is_away(site: SealedSite) -> None:
    site.state.away = True
    with pytest.raises(Unavailable):
        await site.seal()
    assert await site.seal(8) is None


@pytest.mark.spec("LOG-8")
async def test_an_agent_that_can_not_seal_opens_nothing(site: SealedSite) -> None:
    with pytest.raises(PermissionRefused, match="can't seal"):
        await site.intake.admit("n1", 7, site.started, (20,))
    with pytest.raises(PermissionRefused, match="can't seal"):
        await site.intake.admit_noted("n1", 7, site.started)
    assert (await site.intake.admit("n1", 8, site.started, (20,))).grant
    assert len(site.refused.told) == 2


async def test_all_nodes_of_a_job_have_one_seal(site: SealedSite) -> None:
    first = await site.seal()
    assert first is not None
    assert first == await site.intake.seal_of("n1", 7, site.started)
    assert (first.cluster, first.allocation) == ("c1", f"7@{site.started}")
    entry = await site.state.get(KEYS + first.allocation)
    assert entry is not None
    assert first.key.secret not in entry.value


@pytest.mark.spec("LOG-8")
async def test_a_node_without_the_job_is_given_no_key(site: SealedSite) -> None:
    for act in (
        site.intake.seal_of("n2", 7, site.started),
        site.intake.admit("n2", 7, site.started, (20,), can_seal=True),
        site.intake.seal_of("n1", 7, site.started - 7200),
        site.intake.seal_of("n1", 9, site.started),
    ):
        with pytest.raises((NotFound, Unavailable)):
            await act
    assert (await site.state.list(KEYS)).entries == ()


async def test_a_node_that_stored_all_of_it_is_given_no_key(site: SealedSite) -> None:
    chunk = chunk_of(TEXT, last=True)
    assert await site.store(await site.sealed(chunk)) == 1
    (job, *_) = site.scheduler.allocations
    ended = site.clock.now()
    site.scheduler.allocations[0] = replace(job, ended=ended)
    site.clock.advance(3600)
    site.scheduler.read()
    with pytest.raises(PermissionRefused, match="all its output there is stored"):
        await site.intake.seal_of("n1", 7, site.started)


@pytest.mark.spec("LOG-8")
async def test_a_sealed_chunk_is_in_the_sensitive_bucket_alone(site: SealedSite) -> None:
    chunk = chunk_of(TEXT)
    sealed = await site.sealed(chunk)
    assert await site.store(sealed) == 1
    assert await site.store(sealed) == 1
    (key,) = site.in_bucket
    assert site.objects._objects == {}
    assert TEXT not in site.bucket._objects[key][0]
    assert await site.stored.read(key) == chunk
    # What a node has on its disk is sealed under another name.
    assert site.bucket._objects[key][0] != sealed


async def test_other_chunks_get_other_numbers(site: SealedSite) -> None:
    first, second = chunk_of(TEXT), chunk_of(TEXT * 2)
    assert await site.store(await site.sealed(first)) == 1
    assert await site.store(await site.sealed(second)) == 2
    assert len(site.in_bucket) == 2


@pytest.mark.spec("LOG-8")
async def test_plain_text_of_a_sensitive_job_is_refused(site: SealedSite) -> None:
    await site.seal()
    with pytest.raises(PermissionRefused, match="not sealed"):
        await site.store(chunk_of(TEXT))
    assert site.in_bucket == []
    assert site.objects._objects == {}
    assert len(site.refused.told) == 1


async def test_a_chunk_sealed_with_another_key_is_refused(site: SealedSite) -> None:
    seal = await site.seal()
    assert seal is not None
    bound = seal.stream("n1", "stdout", "batch").chunk(1)
    forged = seal_object(DataKey.new(), bound, chunk_of(TEXT))
    with pytest.raises(PermissionRefused, match="another key"):
        await site.store(forged)
    moved = seal_object(seal.key, seal.stream("n2", "stdout", "batch").chunk(1), chunk_of(TEXT))
    with pytest.raises(PermissionRefused, match="belongs elsewhere"):
        await site.store(moved)
    cut = (await site.sealed(chunk_of(TEXT)))[:-1]
    with pytest.raises(PermissionRefused):
        await site.store(cut)
    assert site.in_bucket == []


async def test_a_sealed_chunk_of_an_ordinary_job_is_refused(site: SealedSite) -> None:
    sealed = await site.sealed(chunk_of(TEXT))
    with pytest.raises(PermissionRefused):
        await site.store(sealed, job_id=8)
    assert site.objects._objects == {}


async def test_a_chunk_waits_while_the_key_service_is_away(site: SealedSite) -> None:
    sealed = await site.sealed(chunk_of(TEXT))
    site.clock.advance(3600)
    site.data_keys.forget_unused()
    site.site_keys.away = True
    with pytest.raises(Unavailable, match="key service"):
        await site.store(sealed)
    site.site_keys.away = False
    assert await site.store(sealed) == 1


async def test_without_a_bucket_a_sealed_chunk_waits(site: SealedSite) -> None:
    sealed = await site.sealed(chunk_of(TEXT))
    site.intake = site.server(JobSealing(site.data_keys, SensitiveWork(site.views)), None)
    with pytest.raises(Unavailable, match="no bucket"):
        await site.store(sealed)


async def test_without_keys_nothing_is_opened(site: SealedSite) -> None:
    site.intake = site.server(JobSealing(None, SensitiveWork(site.views)), None)
    with pytest.raises(Unavailable, match="no keys"):
        await site.seal()
    assert await site.seal(8) is None


async def test_a_job_stays_sealed_when_its_vcluster_is_no_longer_sensitive(
    site: SealedSite,
) -> None:
    seal = await site.seal()
    site.views.views = (Vcluster("clinic", VclusterKind.HPC, "clinic"),)
    assert await site.seal() == seal
    with pytest.raises(PermissionRefused):
        await site.store(chunk_of(TEXT))


async def test_a_node_that_lost_its_disk_hears_what_is_stored(site: SealedSite) -> None:
    await site.store(await site.sealed(chunk_of(TEXT)))
    admitted = await site.intake.admit(
        "n1", 7, site.started, (20,), with_stored=True, can_seal=True
    )
    (stream,) = admitted.stored
    assert stream.index.end.offset == len(TEXT)


async def test_the_largest_chunk_may_be_sealed(site: SealedSite) -> None:
    await site.intake.expect(
        "n1", 7, site.started, "stdout", "batch", 1, sealed_bytes(LARGEST_CHUNK_BYTES)
    )
    with pytest.raises(UsageError):
        await site.intake.expect(
            "n1", 7, site.started, "stdout", "batch", 1, sealed_bytes(LARGEST_CHUNK_BYTES) + 1
        )
