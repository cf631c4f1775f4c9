"""Terminals of sensitive work: recorded, one at a time, and in signed images only."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import pytest

from lab.addresses import SEAWEED_S3_PORT
from lab.doorway import Doorway
from lab.laboratory import Lab
from lab.sensitive import VCLUSTER
from lab.signed_image import mounted_image, sign
from lattice.domain.objects import ObjectStore
from tests.e2e.attached import attached
from tests.e2e.people import Person
from tests.e2e.put_right import administrator
from tests.e2e.sealed_bucket import sensitive_bucket
from tests.eventually import eventually

pytestmark = [pytest.mark.lab, pytest.mark.timeout(240)]


@pytest.fixture(scope="module")
def alice(sensitive_lab: Lab) -> Person:
    return Person(sensitive_lab, "alice").logged_in("sensitive:claim")


@pytest.fixture
def image(sensitive_lab: Lab) -> Iterator[Path]:
    """An image that the whole of n1 has mounted. It is not signed yet."""
    with mounted_image(sensitive_lab, "n1") as made:
        yield made


@pytest.fixture
def job(sensitive_lab: Lab, alice: Person) -> Iterator[str]:
    lab = sensitive_lab
    lab.jobs.cancel_all()
    assert alice.tries("admin", "claim", "n1").code == 0
    words = ("submit", "--vcluster", VCLUSTER, "--sbatch=-c1", "--", "sleep", "300")
    made = alice.tries(*words)
    assert made.code == 0, made.err
    number = made.out.split()[-1]
    lab.wait_job_state(int(number), "RUNNING")
    yield number
    lab.jobs.cancel_all()
    for claim in alice.asks("admin", "claims")["claims"]:
        name = claim["id"]
        eventually(partial(_released, alice, name))


def _released(alice: Person, claim: str) -> bool:
    return alice.tries("admin", "release", claim).code == 0


@pytest.mark.story
@pytest.mark.spec("AUDIT-3", "AUDIT-4")
@pytest.mark.threat("recording-bypass", "audit-log")
def test_a_terminal_is_recorded_replayed_and_proven(
    sensitive_lab: Lab, alice: Person, image: Path, job: str, tmp_path: Path
) -> None:
    # The first key makes the agent start itself anew.
    eventually(
        lambda: alice.tries("attach", job, "--", "true").err,
        lambda words: "signed images only" in words,
    )
    sign(image)
    with attached(sensitive_lab, alice, job, command=["sh", "-i"]) as terminal:
        assert terminal.word("opened")["recorded"] is True
        terminal.type("stty -echo; echo mark-$((40+2))\n")
        terminal.shows("mark-42")
        second = alice.tries("attach", job, "--", "true")
        assert second.code == 81, second
        assert "alice has a terminal in this allocation, on n1 since" in second.err
        terminal.type("setsid nohup sleep 987 >/dev/null 2>&1 & exit\n")
        terminal.message("Exit")
    eventually(
        lambda: alice.asks("audit", "query", "--allocation", job)["rows"],
        lambda rows: any("recording of" in each["sentence"] for each in rows),
    )
    left = sensitive_lab.node("n1").run(["pgrep", "-f", "sleep 987"], check=False).stdout
    assert not left.strip(), "what was started in the terminal ended with it"
    shown = alice.tries("replay", terminal.session, "--speed", "1000")
    assert shown.code == 0, shown
    assert "mark-42" in shown.out
    assert "The recording is whole" in shown.err
    found = alice.tries("replay", terminal.session, "--search", "mark-42")
    assert found.out.endswith(" mark-42\n")
    _a_removed_chunk_is_named(sensitive_lab, alice, job, terminal.session, tmp_path)


def _a_removed_chunk_is_named(
    lab: Lab, alice: Person, job: str, session: str, folder: Path
) -> None:
    """Who removes a chunk from the bucket is found out, by those who may not play it too."""
    olga = administrator(lab)
    verified = olga.tries("audit", "verify")
    assert verified.code == 0, verified
    assert "Recordings: " in verified.out
    assert olga.tries("replay", session).code != 0
    with Doorway(lab.network, (SEAWEED_S3_PORT,)) as doorway:
        bucket = sensitive_bucket(doorway, folder)
        key, chunk = asyncio.run(_second_chunk(bucket, session))
        asyncio.run(bucket.delete(key))
        try:
            verified = olga.tries("audit", "verify")
            assert verified.code == 1, verified
            assert f"BAD: recording {session} of {job}@" in verified.out
            assert ": chunk 1: it is missing (entry " in verified.out
            assert alice.tries("replay", session, "--speed", "1000").code == 1
        finally:
            asyncio.run(bucket.put(key, chunk))
    assert olga.tries("audit", "verify").code == 0


async def _second_chunk(bucket: ObjectStore, session: str) -> tuple[str, bytes]:
    keys = [each.key async for each in bucket.listing("") if f"/{session}/" in each.key]
    return keys[1], await bucket.read(keys[1])
