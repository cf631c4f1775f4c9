"""What a sensitive job writes is plain in its own file alone; its owner reads it as any other."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from lab.addresses import SEAWEED_S3_PORT
from lab.doorway import Doorway
from lab.laboratory import Lab
from lab.seaweedfs import SENSITIVE_BUCKET
from lattice.adapters.objects.s3 import S3ObjectStore
from lattice.base.clock import SystemClock
from tests.contract.stores import s3_place
from tests.e2e.log_lines import numbers, script
from tests.e2e.people import Person
from tests.eventually import eventually, eventually_async

pytestmark = [pytest.mark.lab, pytest.mark.timeout(240)]

MARKER = "patient-4711-positive"
CONTROL = "weather-sunny"


@pytest.fixture
def alice(sensitive_lab: Lab) -> Iterator[Person]:
    person = Person(sensitive_lab, "alice").logged_in("sensitive:claim")
    sensitive_lab.jobs.cancel_all()
    assert person.tries("admin", "claim", "n1").code == 0
    yield person
    sensitive_lab.jobs.cancel_all()
    eventually(lambda: person.tries("admin", "release", "n1").code == 0)


@pytest.fixture
def bucket(lab: Lab, tmp_path: Path) -> Iterator[tuple[S3ObjectStore, S3ObjectStore]]:
    """The sensitive bucket, and the ordinary one."""
    with Doorway(lab.network, (SEAWEED_S3_PORT,)) as doorway:
        place = replace(s3_place(doorway.addresses[0], tmp_path), prefix="")
        sensitive = replace(place, bucket=SENSITIVE_BUCKET)
        ordinary = replace(place, prefix="logs")
        yield S3ObjectStore(sensitive, SystemClock()), S3ObjectStore(ordinary, SystemClock())


def _sensitive_job(lab: Lab, alice: Person, wrap: str) -> int:
    (claim,) = alice.asks("admin", "claims")["claims"]
    options = (f"--reservation={claim['reservation']}", "--partition=sensitive")
    job: int = lab.sbatch("alice", *options, wrap=wrap)
    lab.wait_job_state(job, "RUNNING")
    return job


def _on_disk(lab: Lab, node: str) -> bytes:
    """All that the node's agent has on its disk."""
    state = lab.node(node).agent.folder / "state"
    found = b""
    for file in sorted(state.rglob("*")):
        try:
            found += file.read_bytes() if file.is_file() else b""
        except FileNotFoundError:
            continue
    return found


async def _objects(store: S3ObjectStore, job: int) -> dict[str, bytes]:
    found = [each.key async for each in store.listing("") if f"/{job}/logs/" in each.key]
    return {key: await store.read(key) for key in found}


async def _summed_up(store: S3ObjectStore, job: int) -> dict[str, bytes]:
    """The same, once all of it is there."""

    async def read() -> dict[str, bytes]:
        return await _objects(store, job)

    def is_whole(found: dict[str, bytes]) -> bool:
        return any(each.endswith("metadata.json") for each in found)

    return await eventually_async(read, is_whole)


@pytest.mark.story
@pytest.mark.spec("LOG-8")
async def test_sensitive_output_is_sealed_everywhere_but_in_the_jobs_own_file(
    sensitive_lab: Lab, alice: Person, bucket: tuple[S3ObjectStore, S3ObjectStore]
) -> None:
    lab, (sensitive, ordinary) = sensitive_lab, bucket
    waits = "while ! [ -e ~/go-on-$SLURM_JOB_ID ]; do sleep 0.2; done"
    control = lab.sbatch("alice", "-w", "n2", wrap=f"echo {CONTROL}; {waits}")
    job = _sensitive_job(lab, alice, f"echo {MARKER}; {waits}; echo {MARKER} again")
    eventually(lambda: MARKER in alice.tries("logs", str(job)).out)
    eventually(lambda: CONTROL.encode() in _on_disk(lab, "n2"))
    assert f"{job}-" in "".join(
        each.name for each in (lab.node("n1").agent.folder / "state" / "logs").iterdir()
    )
    assert MARKER.encode() not in _on_disk(lab, "n1")

    # The next agent has no key on its disk: it asks for it, and goes on.
    agent = lab.node("n1").agent
    agent.kill()
    agent.start()
    lab.run_as("alice", ["touch", f"go-on-{job}", f"go-on-{control}"])
    lab.wait_job_state(job, "COMPLETED")
    whole = f"{MARKER}\n{MARKER} again\n"
    eventually(lambda: alice.tries("logs", str(job), "--prefix", "none").out == whole)
    objects = await _summed_up(sensitive, job)
    assert all(body.endswith(b"LATSEAL1") for body in objects.values())
    assert MARKER.encode() not in b"".join(objects.values()) + _on_disk(lab, "n1")
    assert await _objects(ordinary, job) == {}
    for process in (*(each.process for each in lab.servers), agent.process):
        assert MARKER.encode() not in process.log_file.read_bytes(), process.name

    rows = alice.asks("audit", "query", "--act", "log-read")["rows"]
    assert any(f"read output of {job} " in each["sentence"] for each in rows)
    lab.wait_job_state(control, "COMPLETED")


async def test_a_changed_bit_in_the_bucket_is_named_and_nothing_of_it_is_shown(
    sensitive_lab: Lab, alice: Person, bucket: tuple[S3ObjectStore, S3ObjectStore]
) -> None:
    lab, (sensitive, _) = sensitive_lab, bucket
    job = _sensitive_job(lab, alice, f"echo {MARKER}; sleep 1")
    lab.wait_job_state(job, "COMPLETED")
    objects = await _summed_up(sensitive, job)
    (chunk,) = [each for each in objects if each.endswith(".zst")]
    body = objects[chunk]
    await sensitive.put(chunk, bytes([body[0] ^ 1]) + body[1:])
    # This server has not followed the job, so it has nothing of the text in its memory.
    other = {**alice.bearer, "LATTICE_API_URL": lab.servers[1].url}
    changed = alice.lattice("logs", str(job), env=other)
    assert MARKER not in changed.out
    assert "in the object store since" in changed.out + changed.err
    assert changed.code == 76
    await sensitive.put(chunk, body)
    whole = alice.lattice("logs", str(job), "--prefix", "none", env=other)
    assert whole.out == f"{MARKER}\n"


def test_without_the_keys_of_the_site_nothing_is_captured_and_nothing_is_lost(
    sensitive_lab: Lab, alice: Person
) -> None:
    lab = sensitive_lab
    keys, away = lab.layout.state / "site-keys", lab.layout.state / "site-keys.away"
    keys.rename(away)
    try:
        job = _sensitive_job(lab, alice, script(MARKER, 20, pause_s=0.5))
        said = eventually(
            lambda: alice.tries("logs", str(job)), lambda seen: "key file" in seen.out + seen.err
        )
        assert MARKER not in said.out
        logs = lab.node("n1").agent.folder / "state" / "logs"
        assert [*logs.glob(f"{job}-*/*")] == []
        lab.wait_job_state(job, "COMPLETED")
    finally:
        away.rename(keys)
    whole = eventually(
        lambda: alice.tries("logs", str(job), "--prefix", "none").out,
        lambda seen: seen.count("\n") == 20,
        patience_s=60,
    )
    assert numbers(whole.splitlines(keepends=True), MARKER) == list(range(20))
    assert MARKER.encode() not in _on_disk(lab, "n1")
