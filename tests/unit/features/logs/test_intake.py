"""What nodes may bring, and what they may not."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import msgspec
import pytest

from lattice.access.grants import GrantChecker, GrantSigner
from lattice.base.errors import NotFound, PermissionRefused, Unavailable, UsageError
from lattice.base.signatures import SigningKey
from lattice.domain.allocation import Allocation, Attempt, State
from lattice.domain.grant import Act
from lattice.domain.logchunk import index_frame, read_index
from lattice.domain.logs import LogKind
from lattice.domain.outputs import NamedOutputs
from lattice.domain.privileged import OpenNoted, OpenOutput, OpenOutputFile, digest_of
from lattice.features.logs.service.intake import LogIntake
from lattice.features.logs.service.log_keys import name_of
from lattice.features.logs.service.retention import Removed
from lattice.features.logs.service.seal import Seals, index_digest
from lattice.foundation.attempt_finder import AttemptFinder
from tests.fakes.cluster import allocation
from tests.fakes.in_memory_objects import InMemoryObjectStore
from tests.fakes.in_memory_scheduler import InMemoryScheduler
from tests.fakes.manual_clock import ManualClock
from tests.unit.domain.test_logchunk import chunk_of


class Refused:
    def __init__(self) -> None:
        self.told: list[tuple[str, str, str]] = []

    def refused(self, rpc: str, who: str, reason: str) -> None:
        self.told.append((rpc, who, reason))


class Files:
    """What Slurm names."""

    def __init__(self) -> None:
        self.named = NamedOutputs("n1", {LogKind.STDOUT: "/home/alice/out"})

    async def of(self, allocation: Allocation) -> NamedOutputs:
        assert allocation.job_id == 7
        return self.named


class Site:
    def __init__(self) -> None:
        self.clock = ManualClock()
        self.scheduler = InMemoryScheduler(self.clock)
        self.objects = InMemoryObjectStore(self.clock)
        self.refused = Refused()
        self.files = Files()
        key = SigningKey.generate()
        self.checker = GrantChecker("n1", self.clock, [key.public])
        self.started = int(self.clock.now().timestamp()) - 60
        self.scheduler.allocations.append(self.job(7))
        self.scheduler.read()
        signer = GrantSigner(key, self.clock)
        self.seals = Seals(self.objects, signer, signer.public_keys)
        self.intake = LogIntake(
            AttemptFinder(self.scheduler, self.clock),
            self.files,
            self.objects,
            signer,
            self.refused,
            self.clock,
            self.seals,
        )

    def job(self, job_id: int, **more: object) -> Allocation:
        began = datetime.fromtimestamp(self.started, UTC)
        facts = {"submitted": began, "started": began} | more
        return allocation(job_id, "alice", "research", **facts)

    async def store(self, chunk: bytes, number: int = 1, **more: object) -> int:
        told = {"node": "n1", "job_id": 7, "kind": "stdout", "source": "batch"} | more
        return await self.intake.store(
            str(told["node"]), int(str(told["job_id"])), self.started + 0.5, str(told["kind"]),
            str(told["source"]), number, chunk,
        )  # fmt: skip

    @property
    def keys(self) -> list[str]:
        return sorted(self.objects._objects)


@pytest.fixture
def site() -> Site:
    return Site()


@pytest.mark.spec("LOG-1")
async def test_a_chunk_is_stored_under_slurms_words(site: Site) -> None:
    assert await site.store(chunk_of(b"hello\n")) == 1
    folder = f"physics/research/7/logs/{site.started}-1/stdout/n1"
    assert site.keys == [f"{folder}/chunk_000001.log.zst"]


@pytest.mark.spec("LOG-1", "LOG-3")
async def test_the_same_again_is_success_and_other_content_gets_another_number(site: Site) -> None:
    first, other = chunk_of(b"one\n"), chunk_of(b"two\n")
    assert await site.store(first) == 1
    assert await site.store(first) == 1
    assert await site.store(other) == 2
    assert await site.store(other) == 2
    assert len(site.keys) == 2


@pytest.mark.spec("LOG-3")
async def test_an_answer_that_was_lost_stores_nothing_twice(site: Site) -> None:
    site.objects.lost_answers = 1
    chunk = chunk_of(b"one\n")
    with pytest.raises(Unavailable):
        await site.store(chunk)
    assert await site.store(chunk) == 1
    assert len(site.keys) == 1


@pytest.mark.spec("AUTH-8")
@pytest.mark.threat("node-key")
@pytest.mark.parametrize(
    "lie",
    [{"node": "n2"}, {"job_id": 8}, {"kind": "stderr"}, {"source": "0.1"}, {"source": "../x"}],
)
async def test_a_node_can_store_only_what_ran_there(site: Site, lie: dict[str, object]) -> None:
    """Attack 20."""
    with pytest.raises(PermissionRefused):
        await site.store(chunk_of(b"forged\n"), **lie)
    assert site.keys == []
    assert len(site.refused.told) == 1


async def test_noise_is_refused(site: Site) -> None:
    with pytest.raises(PermissionRefused):
        await site.store(b"not a chunk at all")
    assert site.refused.told[0][1] == "n1"


async def test_a_job_that_never_was_here_is_not_found(site: Site) -> None:
    with pytest.raises(NotFound):
        await site.intake.admit("n2", 7, site.started + 0.5, (11,), with_stored=False)
    with pytest.raises(NotFound):
        await site.intake.admit("n1", 7, site.started - 5000.0, (11,), with_stored=False)


@pytest.mark.spec("LOG-2")
async def test_the_grant_is_for_the_owner_and_these_processes_alone(site: Site) -> None:
    admitted = await site.intake.admit("n1", 7, site.started + 0.5, (11, 12), with_stored=False)
    question = OpenOutput((11, 12))
    grant = site.checker.check(admitted.grant, Act.READ_OUTPUT, digest=digest_of(question))
    assert (grant.user, grant.job_id, grant.place) == ("alice", 7, "n1")


@pytest.mark.spec("LOG-2")
async def test_for_a_job_that_is_over_slurm_names_the_file(site: Site) -> None:
    admitted = await site.intake.admit("n1", 7, site.started + 0.5, (), with_stored=False)
    assert admitted.path == "/home/alice/out"
    question = OpenOutputFile("/home/alice/out")
    site.checker.check(admitted.grant, Act.READ_OUTPUT, digest=digest_of(question))


async def test_only_the_first_node_reads_the_scripts_file(site: Site) -> None:
    site.files.named = NamedOutputs("n0", site.files.named.files)
    admitted = await site.intake.admit("n1", 7, site.started + 0.5, (), with_stored=False)
    assert (admitted.grant, admitted.path) == ("", "")


@pytest.mark.spec("LOG-2", "LOG-3")
async def test_the_grant_for_noted_files_is_for_this_attempt_alone(site: Site) -> None:
    started = site.started + 0.5
    admitted = await site.intake.admit_noted("n1", 7, started, skip=64, with_stored=False)
    assert (admitted.since_ms, admitted.until_ms) == (int((started - 2) * 1000), 0)
    question = OpenNoted(admitted.since_ms, 0, 64)
    grant = site.checker.check(admitted.grant, Act.READ_OUTPUT, digest=digest_of(question))
    assert (grant.user, grant.job_id, grant.place) == ("alice", 7, "n1")
    for node, moment in (("n2", started), ("n1", started - 5000)):
        with pytest.raises(NotFound):
            await site.intake.admit_noted(node, 7, moment)


@pytest.mark.parametrize(("told", "until"), [(0.0, 22), (15.0, 17), (100.0, 22)])
async def test_noted_files_end_with_the_attempt(site: Site, told: float, until: int) -> None:
    """As Slurm says, or earlier by the node's own word."""
    ended = datetime.fromtimestamp(site.started + 20, UTC)
    site.scheduler.allocations[:] = [site.job(7, ended=ended, state=State.COMPLETED)]
    site.scheduler.read()
    moment = site.started + told if told else 0.0
    admitted = await site.intake.admit_noted("n1", 7, site.started + 0.5, until=moment)
    assert admitted.until_ms == (site.started + until) * 1000


async def test_moments_that_can_not_be_are_refused(site: Site) -> None:
    with pytest.raises(UsageError):
        await site.intake.admit_noted("n1", 7, site.started + 0.5, until=1e300)


@pytest.mark.spec("LOG-3")
async def test_a_node_that_lost_its_disk_hears_what_is_stored(site: Site) -> None:
    await site.store(chunk_of(b"one\n"))
    await site.store(chunk_of(b"two\nthree\n", offset=4, line=1), 2)
    admitted = await site.intake.admit("n1", 7, site.started + 0.5, (11,), with_stored=True)
    (stored,) = admitted.stored
    assert (stored.kind, stored.source, stored.number) == (LogKind.STDOUT, "batch", 2)
    assert (stored.index.end.offset, stored.index.end.line) == (14, 3)


def ended(site: Site, ago: timedelta) -> None:
    """The job has ended by now, so long ago."""
    moment = datetime.fromtimestamp(site.started + 20, UTC)
    site.scheduler.allocations[:] = [site.job(7, ended=moment, state=State.COMPLETED)]
    site.clock.advance((moment + ago - site.clock.now()).total_seconds())
    site.scheduler.read()


FORGED = (
    {"offset": 0},
    {"offset": 5},
    {"offset": 8},
    {"offset": 8, "last": True},
    {"offset": 100},
)


@pytest.mark.spec("LOG-3")
@pytest.mark.threat("node-key")
@pytest.mark.parametrize("more", FORGED)
@pytest.mark.parametrize("number", [1, 2, 9])
async def test_a_sealed_stream_takes_no_more(site: Site, more: dict[str, int], number: int) -> None:
    """Attack 35."""
    await site.store(chunk_of(b"one\n"))
    await site.store(chunk_of(b"two\n", offset=4, line=1, last=True), 2)
    kept = dict(site.objects._objects)
    with pytest.raises(PermissionRefused, match="the stream is sealed"):
        await site.store(chunk_of(b"forged\n", **more), number)
    assert site.objects._objects == kept
    assert site.refused.told == [
        ("StoreChunk", "n1", "the stream is sealed, its last chunk is stored")
    ]


@pytest.mark.spec("LOG-3")
async def test_the_chunks_of_a_sealed_stream_again_are_success(site: Site) -> None:
    first, last = chunk_of(b"one\n"), chunk_of(b"two\n", offset=4, line=1, last=True)
    assert (await site.store(first), await site.store(last, 1)) == (1, 2)
    assert (await site.store(first), await site.store(last, 1)) == (1, 2)
    assert site.refused.told == []


@pytest.mark.spec("LOG-3")
async def test_what_is_missing_before_the_end_of_a_sealed_stream_is_taken(site: Site) -> None:
    await site.store(chunk_of(b"one\n"))
    await site.store(chunk_of(b"three\n", offset=8, line=2, last=True), 3)
    with pytest.raises(PermissionRefused):
        await site.store(chunk_of(b"two\n+", offset=4, line=1), 2)
    assert await site.store(chunk_of(b"two\n", offset=4, line=1), 2) == 2


@pytest.mark.spec("LOG-3")
@pytest.mark.threat("node-key")
async def test_long_after_the_end_a_complete_node_begins_no_new_stream(site: Site) -> None:
    """Attack 35."""
    await site.store(chunk_of(b"one\n", last=True))
    forged = sourced(chunk_of(b"forged\n", last=True), "0.3")
    ended(site, timedelta(minutes=11))
    with pytest.raises(PermissionRefused, match="all output of this node is stored"):
        await site.store(forged, source="0.3")
    assert len(site.keys) == 1


@pytest.mark.spec("LOG-3")
@pytest.mark.parametrize("stored", [(), ("batch",), ("batch", "0.1")])
async def test_a_node_that_was_away_for_hours_brings_all_it_has(
    site: Site, stored: tuple[str, ...]
) -> None:
    for source in stored:
        await site.store(sourced(chunk_of(b"one\n"), source), source=source)
    ended(site, timedelta(hours=5))
    for source in ("batch", "0.1", "0.2"):
        await site.store(
            sourced(chunk_of(b"two\n", offset=4, line=1, last=True), source), 2, source=source
        )
        site.clock.advance(60)
    assert len(site.keys) == len(stored) + 3
    assert site.refused.told == []


@pytest.mark.spec("LOG-3")
async def test_a_chunk_that_comes_after_the_seal_is_vouched_for_before_its_node_hears(
    site: Site,
) -> None:
    chunk = chunk_of(b"late\n", last=True)
    ended(site, timedelta(hours=5))
    found = await AttemptFinder(site.scheduler, site.clock).of("n1", 7, site.started + 0.5)
    name = name_of(found)
    await site.objects.put(f"{name.prefix}/metadata.json", b"{}")
    site.objects.lost_answers = 2
    for _ in range(2):
        with pytest.raises(Unavailable):
            await site.store(chunk)
    assert await site.store(chunk) == 1
    (key,) = [each for each in site.keys if each.endswith(".zst") and "/late/" not in each]
    assert await site.seals.is_late(name, key, index_digest(chunk))
    assert not await site.seals.is_late(name, key, index_digest(chunk_of(b"forged\n")))


@pytest.mark.spec("LOG-3", "LOG-9")
async def test_nothing_is_stored_where_the_retention_removed(site: Site) -> None:
    await site.store(chunk_of(b"one\n", last=True))
    (key,) = site.keys
    await site.objects.delete(key)
    moment = site.clock.now()
    removed = Removed(
        tenant="physics", after_days=1, removed=moment, newest=moment, objects=1, stored_bytes=9
    )
    await site.objects.put(
        "/".join(key.split("/")[:5]) + "/removed.json", msgspec.json.encode(removed)
    )
    ended(site, timedelta(days=2))
    with pytest.raises(PermissionRefused, match="removed by the retention"):
        await site.store(chunk_of(b"forged\n", last=True))


def sourced(content: bytes, source: str) -> bytes:
    """The same chunk of another stream."""
    index = read_index(content, len(content))
    changed = msgspec.structs.replace(index, source=source)
    return content[: index.stored_bytes] + index_frame(changed)


@pytest.mark.spec("AUTH-9", "LOG-2")
@pytest.mark.threat("node-key")
async def test_grants_to_read_end_with_the_job(site: Site) -> None:
    """Whoever holds a node's certificate must not have files of old jobs opened."""
    await site.store(chunk_of(b"one\n", last=True))
    moment = site.started + 0.5
    ended(site, timedelta(minutes=11))
    with pytest.raises(PermissionRefused, match="is over, so no process of it writes"):
        await site.intake.admit("n1", 7, moment, (11,))
    with pytest.raises(PermissionRefused, match="all its output there is stored"):
        await site.intake.admit_noted("n1", 7, moment)
    admitted = await site.intake.admit("n1", 7, moment, (), with_stored=True)
    assert (admitted.grant, admitted.path) == ("", "")
    assert [each.index.last for each in admitted.stored] == [True]
    assert [rpc for rpc, _, _ in site.refused.told] == ["AdmitOutput", "AdmitOutput"]


@pytest.mark.spec("LOG-3")
@pytest.mark.parametrize("stored", [False, True])
async def test_what_is_not_stored_yet_is_opened_however_late(site: Site, stored: bool) -> None:
    """The node was away, or its agent dead."""
    if stored:
        await site.store(chunk_of(b"one\n"))
    ended(site, timedelta(hours=5))
    moment = site.started + 0.5
    assert (await site.intake.admit("n1", 7, moment, ())).grant
    assert (await site.intake.admit_noted("n1", 7, moment)).grant


@pytest.mark.spec("LOG-3")
async def test_just_after_the_end_everything_is_opened(site: Site) -> None:
    await site.store(chunk_of(b"one\n", last=True))
    ended(site, timedelta(minutes=9))
    moment = site.started + 0.5
    assert (await site.intake.admit("n1", 7, moment, (11,))).grant
    assert (await site.intake.admit_noted("n1", 7, moment)).grant


@pytest.mark.spec("LOG-1")
async def test_attempts_are_kept_apart(site: Site) -> None:
    began = datetime.fromtimestamp(site.started, UTC)
    again = began + timedelta(seconds=40)
    attempts = tuple(
        Attempt(number=number, state=state, submitted=began, started=start, ended=end, nodes="n1")
        for number, state, start, end in (
            (1, State.PREEMPTED, began, began + timedelta(seconds=20)),
            (2, State.RUNNING, again, None),
        )
    )
    site.scheduler.allocations[:] = [site.job(7, started=again, attempt=2, attempts=attempts)]
    site.scheduler.read()
    await site.store(chunk_of(b"first\n"))
    await site.intake.store(
        "n1", 7, again.timestamp() + 0.5, "stdout", "batch", 1, chunk_of(b"second\n")
    )
    assert [key.split("/")[4].rpartition("-")[2] for key in site.keys] == ["1", "2"]
