"""What becomes of stored output: summed up, bounded, and removed; and when a job last wrote."""

from __future__ import annotations

import json
import re
import time
from collections.abc import Iterator
from dataclasses import replace
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from lab.addresses import SEAWEED_S3_PORT
from lab.doorway import Doorway
from lab.laboratory import Lab
from lattice.adapters.objects.s3 import S3ObjectStore
from lattice.base.clock import SystemClock
from lattice.features.logs.service.retention import REMOVED, Retention, RetentionRules
from lattice.features.logs.service.seal import METADATA
from tests.contract.stores import s3_place
from tests.e2e.log_lines import numbers, script
from tests.e2e.people import Person
from tests.eventually import eventually, eventually_async
from tests.fakes.in_memory_scheduler import InMemoryScheduler
from tests.fakes.manual_clock import ManualClock

pytestmark = [pytest.mark.lab, pytest.mark.timeout(240)]

MIB = 1024 * 1024


@pytest.fixture(scope="session")
def store_doorway(lab: Lab) -> Iterator[Doorway]:
    with Doorway(lab.network, (SEAWEED_S3_PORT,)) as doorway:
        yield doorway


@pytest.fixture
def store(store_doorway: Doorway, tmp_path: Path) -> S3ObjectStore:
    """Where the lab's servers keep what jobs wrote."""
    place = replace(s3_place(store_doorway.addresses[0], tmp_path), prefix="logs")
    return S3ObjectStore(place, SystemClock())


async def _objects_of(store: S3ObjectStore, job: int) -> dict[str, bytes]:
    """Everything of a job that ran just now, by key; an id of an older lab has an older stamp."""
    found = [each async for each in store.listing("")]
    mine = [each for each in found if f"/{job}/logs/" in each.key]
    newest = max((int(each.key.split("/")[4].partition("-")[0]) for each in mine), default=0)
    return {
        each.key: await store.read(each.key)
        for each in mine
        if each.key.split("/")[4].startswith(f"{newest}-")
    }


async def _summed_up(store: S3ObjectStore, job: int) -> dict[str, bytes]:
    """The same, once all of it is there."""
    return await eventually_async(
        lambda: _objects_of(store, job),
        lambda objects: any(key.endswith(f"/{METADATA}") for key in objects),
        pause_s=1,
    )


@pytest.fixture
def small_quota(quiet_lab: Lab) -> Iterator[None]:
    agent = quiet_lab.node("n1").agent
    agent.kill()
    agent.changes["logs"] = {"job_quota_mb": 1}
    agent.start()
    yield
    agent.kill()
    del agent.changes["logs"]
    agent.start()


@pytest.mark.story
@pytest.mark.spec("LOG-1")
async def test_an_attempt_is_summed_up_when_it_is_over(
    quiet_lab: Lab, alice: Person, store: S3ObjectStore
) -> None:
    job = quiet_lab.sbatch("alice", wrap=script("m", 50))
    quiet_lab.wait_job_state(job, "COMPLETED")
    objects = await _summed_up(store, job)
    told = [body for key, body in objects.items() if key.endswith(f"/{METADATA}")]
    metadata: dict[str, Any] = json.loads(told[0])
    (stream,) = metadata["streams"]
    written = alice.tries("logs", str(job), "--prefix", "none").out
    assert (stream["lines"], stream["bytes"]) == (50, len(written.encode()))
    chunks = [key for key in objects if key.endswith(".zst")]
    assert [each["key"] for each in stream["chunks"]] == [
        "/".join(key.split("/")[5:]) for key in sorted(chunks)
    ]


@pytest.mark.spec("LOG-3")
def test_a_quota_ends_what_is_kept_and_not_the_job(
    small_quota: None, quiet_lab: Lab, alice: Person
) -> None:
    job = quiet_lab.sbatch("alice", "--nodelist=n1", wrap=script("q", 30_000, size=100))
    quiet_lab.wait_job_state(job, "COMPLETED")
    size = int(
        quiet_lab.node("n1").run(["stat", "-c", "%s", f"/home/alice/slurm-{job}.out"]).stdout
    )
    said = eventually(
        lambda: alice.tries("logs", str(job), "-o", "json"),
        lambda seen: f'"lost_bytes":{size - MIB}' in seen.out.replace(" ", ""),
    )
    gaps = [each for each in map(json.loads, said.out.splitlines()) if each["type"] == "gap"]
    assert [(each["cause"], each["offset"], each["lost_bytes"]) for each in gaps] == [
        ("quota", MIB, size - MIB)
    ]
    shown = alice.tries("logs", str(job))
    whole = [line for line in shown.out.splitlines(keepends=True) if line.endswith("\n")]
    kept = numbers(whole[:-1], "q")
    assert kept == list(range(len(kept)))
    assert len(shown.out.rstrip("\n").encode()) in {MIB, MIB - 1}
    assert "truncated by quota at 1 MiB" in shown.err
    assert alice.card(job)["allocation"]["state"] == "completed"


@pytest.mark.story
@pytest.mark.spec("LOG-9")
async def test_removed_logs_are_said_to_be_removed(
    quiet_lab: Lab, alice: Person, store: S3ObjectStore
) -> None:
    job = quiet_lab.sbatch("alice", wrap="echo soon gone")
    quiet_lab.wait_job_state(job, "COMPLETED")
    (key, *_) = await _summed_up(store, job)
    assert alice.tries("logs", str(job)).out == "soon gone\n"
    tenant = key.split("/")[0]
    clock = ManualClock(datetime.now().astimezone() + timedelta(days=31))
    rules = RetentionRules(0, {tenant: 30})
    retention = Retention(_Only(store, f"/{job}/"), InMemoryScheduler(clock), clock, rules)
    await retention.sweep()
    left = await _objects_of(store, job)
    assert [each.rpartition("/")[2] for each in left] == [REMOVED]
    said = alice.tries("logs", str(job))
    assert said.code == 76, said
    assert f"removed after 30 days by the retention of tenant {tenant}" in said.err


class _Only:
    """The store as if it held one job: what others left in the lab stays."""

    def __init__(self, store: S3ObjectStore, mark: str) -> None:
        self._store = store
        self._mark = mark

    def __getattr__(self, name: str) -> Any:
        return getattr(self._store, name)

    async def listing(self, prefix: str, *, after: str = "") -> Any:
        async for each in self._store.listing(prefix, after=after):
            if self._mark in each.key:
                yield each


@pytest.mark.long
@pytest.mark.spec("ALLOC-1")
def test_a_running_one_shows_when_it_last_wrote(quiet_lab: Lab, alice: Person) -> None:
    job = quiet_lab.sbatch("alice", "-N2", wrap="sleep 12; echo once; sleep 300")
    quiet_lab.wait_job_state(job, "RUNNING")
    early = eventually(
        lambda: alice.card(job)["last_output"], lambda told: told and told["answered"] == 2
    )
    assert early["time"] is None, early
    told = eventually(
        lambda: alice.card(job)["last_output"],
        lambda told: told["answered"] == 2 and told["time"] is not None,
    )
    wrote = float(
        quiet_lab.node("n1").run(["stat", "-c", "%.Y", f"/home/alice/slurm-{job}.out"]).stdout
    )
    assert abs(datetime.fromisoformat(told["time"]).timestamp() - wrote) < 0.01, (told, wrote)
    assert re.search(
        r"Last output +\d\d:\d\d:\d\dZ? \(\d+ s ago\)", alice.tries("status", str(job)).out
    )
    assert alice.asks("status")["allocations"], "the list asks no node"


def _name_a_node_that_does_not_answer(quiet_lab: Lab, alice: Person) -> float:
    job = quiet_lab.sbatch("alice", "--nodelist=n1,n2", "-N2", wrap="echo here; sleep 300")
    quiet_lab.wait_job_state(job, "RUNNING")
    eventually(lambda: alice.card(job)["last_output"], lambda told: told and told["time"])
    agent = quiet_lab.node("n2").agent
    agent.kill()
    try:
        begun = time.monotonic()
        said = eventually(
            lambda: alice.tries("status", str(job)), lambda said: "1 of 2 nodes" in said.out
        )
        took_s = time.monotonic() - begun
        assert "n2" in said.out.partition("Last output")[2]
    finally:
        agent.start()
    return took_s


@pytest.mark.spec("ALLOC-1")
def test_a_node_that_does_not_say_is_named(quiet_lab: Lab, alice: Person) -> None:
    _name_a_node_that_does_not_answer(quiet_lab, alice)


@pytest.mark.timing
@pytest.mark.spec("ALLOC-1")
def test_a_node_that_does_not_say_is_named_within_twenty_seconds(
    quiet_lab: Lab, alice: Person
) -> None:
    assert _name_a_node_that_does_not_answer(quiet_lab, alice) < 20
