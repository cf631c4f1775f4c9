"""A node's certificate in wrong hands: finished logs stand, and a copy is found out (attack 35)."""

from __future__ import annotations

import signal
import sys
import time
from collections.abc import Iterator
from dataclasses import replace
from datetime import datetime
from pathlib import Path
from typing import Any

import pytest

from lab.addresses import SEAWEED_S3_PORT
from lab.doorway import Doorway
from lab.laboratory import Lab
from lab.users import AGENT_USER
from lattice.adapters.objects.s3 import S3ObjectStore
from lattice.base.clock import SystemClock
from lattice.features.logs.service.seal import METADATA
from tests.contract.stores import s3_place
from tests.e2e.forge_chunk import forged
from tests.e2e.people import Person
from tests.e2e.put_right import administrator, put_right
from tests.eventually import eventually, eventually_async

pytestmark = [pytest.mark.lab, pytest.mark.timeout(240)]

_HERE = Path(__file__).parents[2]
_TRUE, _FALSE = "accuracy 0.912", "accuracy 0.500"
_LINKED = "linked to"


@pytest.fixture(scope="module")
def olga(lab: Lab) -> Person:
    return administrator(lab)


@pytest.fixture(autouse=True)
def whole(lab: Lab, olga: Person) -> Iterator[None]:
    yield
    put_right(lab, olga)


@pytest.fixture
def store(lab: Lab, tmp_path: Path) -> Iterator[S3ObjectStore]:
    with Doorway(lab.network, (SEAWEED_S3_PORT,)) as doorway:
        place = replace(s3_place(doorway.addresses[0], tmp_path), prefix="logs")
        yield S3ObjectStore(place, SystemClock())


def _on_node(lab: Lab, module: str, folder: Path, *words: str) -> Any:
    """A program of these tests on n1, as the agent's user."""
    argv = ["env", f"PYTHONPATH={_HERE}", sys.executable, "-m", f"tests.e2e.{module}"]
    return lab.node("n1").run([*argv, str(folder), *words], user=AGENT_USER, check=False)


async def _keys(store: S3ObjectStore, job: int) -> list[str]:
    """The newest attempt's objects; an id of an older lab has an older stamp."""
    found = [each.key async for each in store.listing("") if f"/{job}/logs/" in each.key]
    newest = max((int(key.split("/")[4].partition("-")[0]) for key in found), default=0)
    return [key for key in found if key.split("/")[4].startswith(f"{newest}-")]


async def _finished(lab: Lab, store: S3ObjectStore) -> tuple[int, str]:
    """A job that is over and sealed, and the key of its only chunk."""
    job = lab.sbatch("alice", "-w", "n1", wrap=f"echo {_TRUE}")
    lab.wait_job_state(job, "COMPLETED")
    keys = await eventually_async(
        lambda: _keys(store, job),
        lambda found: any(key.endswith(METADATA) for key in found),
        pause_s=1,
    )
    (chunk,) = [key for key in keys if key.endswith(".zst")]
    return job, chunk


def _started(alice: Person, job: int) -> float:
    return datetime.fromisoformat(alice.card(job)["allocation"]["started"]).timestamp()


@pytest.mark.spec("LOG-3", "AUTH-9")
@pytest.mark.threat("node-key")
async def test_a_forged_chunk_for_a_finished_job_is_refused(
    lab: Lab, alice: Person, store: S3ObjectStore
) -> None:
    job, chunk = await _finished(lab, store)
    started = _started(alice, job)
    folder = lab.node("n1").agent.folder / "state"
    answer = _on_node(lab, "forge_chunk", folder, "n1", str(job), str(started), _FALSE)
    assert "PERMISSION_DENIED" in answer.stdout, answer
    assert "the stream is sealed, its last chunk is stored" in answer.stdout
    shown = alice.tries("logs", str(job), "--prefix", "none")
    assert (shown.code, shown.out) == (0, f"{_TRUE}\n")
    assert [key for key in await _keys(store, job) if key.endswith(".zst")] == [chunk]


@pytest.mark.spec("LOG-3")
@pytest.mark.threat("object-store")
async def test_a_chunk_that_was_exchanged_in_the_object_store_is_shown_as_such(
    lab: Lab, alice: Person, store: S3ObjectStore
) -> None:
    job, chunk = await _finished(lab, store)
    content = forged("n1", job, _started(alice, job), f"{_FALSE}\n".encode())
    await store.put(chunk, content)
    shown = alice.tries("logs", str(job), "--prefix", "none")
    assert shown.code == 76, shown
    assert _FALSE not in shown.out
    assert "changed or removed in the object store since it was sealed" in shown.err
    await store.delete(chunk)
    await store.put(chunk.replace("000001", "000009"), content)
    shown = alice.tries("logs", str(job), "--prefix", "none")
    assert shown.code == 76, shown
    assert _FALSE not in shown.out
    assert "1 object was added in the object store" in shown.err


@pytest.mark.spec("AUTH-9")
@pytest.mark.threat("node-key")
def test_a_renewal_from_a_spent_generation_puts_the_node_in_quarantine(
    lab: Lab, olga: Person
) -> None:
    _renew_from_a_spent_generation(lab, olga)


@pytest.mark.timing
@pytest.mark.spec("AUTH-9")
@pytest.mark.threat("node-key")
def test_the_node_is_in_quarantine_within_five_seconds(lab: Lab, olga: Person) -> None:
    assert _renew_from_a_spent_generation(lab, olga) <= 5


def _renew_from_a_spent_generation(lab: Lab, olga: Person) -> float:
    """How many seconds it took until the node was in quarantine."""
    agent = lab.node("n1").agent
    state, copy = agent.folder / "state", agent.folder / "stolen"
    node = lab.node("n1")
    node.run(["rm", "-rf", str(copy)])
    # A certificate that was made elsewhere has no generation, so the agent must have its own.
    eventually((state / "identity.json").exists)
    node.run(["cp", "-a", str(state), str(copy)])
    linked = agent.process.log_file.read_text().count(_LINKED)
    renewed = _on_node(lab, "renew_certificate", state, "n1")
    assert renewed.returncode == 0, renewed
    agent.process.signal(signal.SIGHUP)
    eventually(lambda: agent.process.log_file.read_text().count(_LINKED), lambda now: now > linked)
    try:
        asked_at = time.monotonic()
        stolen = _on_node(lab, "renew_certificate", copy, "n1")
        assert stolen.returncode != 0
        assert "lattice admin reinstate n1, then lattice admin enrol n1" in stolen.stderr
        agents = {each["node"]: each for each in olga.asks("admin", "agents")["agents"]}
        assert "asked for another after" in agents["n1"]["quarantine"]
        return time.monotonic() - asked_at
    finally:
        node.run(["rm", "-rf", str(copy)])
        # Once for the quarantine, which becomes a revocation, and once for that.
        assert olga.tries("admin", "restore", "n1").code == 0
        assert olga.tries("admin", "restore", "n1").code == 0
        agent.kill()
        agent.start()
