"""The list of jobs, kept current: what is asked, what is decoded, what is never lost."""

from __future__ import annotations

import json
from typing import Any

import pytest

from lattice.adapters.slurm.dialect import Dialects
from lattice.adapters.slurm.poller import ControllerClock, Polled
from lattice.adapters.slurm.schema.decoder import known_schemas
from lattice.adapters.slurm.tenancy import Placing
from lattice.base.errors import Unavailable
from lattice.domain.allocation import Allocation
from tests.fakes.manual_clock import RECORDED, ManualClock
from tests.fakes.recorded_slurm import RecordedSlurm, recorded, recording

NOW = int(RECORDED.timestamp())


def polled(slurm: RecordedSlurm, clock: ManualClock, placing: Placing) -> Polled[Allocation]:
    rest = slurm.rest()
    return Polled(
        rest,
        Dialects(rest, known_schemas(), clock),
        clock,
        ControllerClock(rest, clock),
        name="jobs",
        decode=lambda schema, raw: schema.job(raw, placing),
    )


def asked_since(slurm: RecordedSlurm) -> list[str | None]:
    return [query.get("update_time") for path, query in slurm.asked if path.endswith("/jobs")]


async def test_nothing_changed_costs_no_list(
    slurm: RecordedSlurm, clock: ManualClock, placing: Placing
) -> None:
    jobs = polled(slurm, clock, placing)
    slurm.last_change_s = NOW - 60
    assert await jobs.poll() is True
    before = jobs.records
    assert len(before) == 15
    for _ in range(3):
        clock.advance(2)
        assert await jobs.poll() is False
    assert jobs.records is before
    assert jobs.counts.polls_total == 4
    assert jobs.counts.polls_unchanged_total == 3
    assert jobs.counts.records_decoded_total == 15


async def test_only_changed_records_are_decoded_again(
    slurm: RecordedSlurm, clock: ManualClock, placing: Placing
) -> None:
    jobs = polled(slurm, clock, placing)
    await jobs.poll()
    same = {each.id: each for each in jobs.records}
    changed = recorded("jobs")
    changed["jobs"][0]["job_state"] = "COMPLETED"
    del changed["jobs"][1]
    slurm.serve("slurm", "jobs", json.dumps(changed, indent=1).encode())
    slurm.last_change_s = NOW + 1
    clock.advance(2)
    assert await jobs.poll() is True
    assert len(jobs.records) == 14
    assert jobs.counts.records_decoded_total == 16
    assert jobs.counts.records_reused_total == 13
    assert all(each is same[each.id] for each in jobs.records if each.id != "1")


async def test_a_change_in_the_second_of_the_last_answer_is_not_missed(
    slurm: RecordedSlurm, clock: ManualClock, placing: Placing
) -> None:
    jobs = polled(slurm, clock, placing)
    await jobs.poll()
    slurm.last_change_s = NOW - 1
    clock.advance(2)
    assert await jobs.poll() is True


@pytest.mark.parametrize("ahead_s", [-3600, -30, 30, 3600])
async def test_a_clock_that_differs_from_slurmctld_s_hides_no_change(
    slurm: RecordedSlurm, clock: ManualClock, placing: Placing, ahead_s: int
) -> None:
    """`ahead_s` is how far slurmctld's clock is ahead of the server's."""

    def diag(_: dict[str, str]) -> tuple[int, bytes]:
        told = int(clock.now().timestamp()) + ahead_s
        return 200, json.dumps({"statistics": {"req_time": told}}).encode()

    slurm.answer("slurm", "diag", diag)
    jobs = polled(slurm, clock, placing)
    slurm.last_change_s = NOW + ahead_s - 100
    await jobs.poll()
    clock.advance(2)
    assert await jobs.poll() is False
    slurm.last_change_s = NOW + ahead_s + 1
    clock.advance(2)
    assert await jobs.poll() is True


async def test_without_slurmctld_s_time_everything_is_read(
    slurm: RecordedSlurm, clock: ManualClock, placing: Placing
) -> None:
    slurm.serve("slurm", "diag", b"{}")
    jobs = polled(slurm, clock, placing)
    await jobs.poll()
    clock.advance(2)
    assert await jobs.poll() is True
    assert asked_since(slurm) == [None, None]


async def test_the_whole_list_is_read_once_a_minute_all_the_same(
    slurm: RecordedSlurm, clock: ManualClock, placing: Placing
) -> None:
    jobs = polled(slurm, clock, placing)
    slurm.last_change_s = NOW - 60
    await jobs.poll()
    clock.advance(59)
    assert await jobs.poll() is False
    clock.advance(2)
    assert await jobs.poll() is True
    assert jobs.counts.records_decoded_total == 15


async def test_newer_slurm_tells_the_time_to_give_back(
    clock: ManualClock, placing: Placing
) -> None:
    slurm = RecordedSlurm("v0.0.44")
    jobs = polled(slurm, clock, placing)
    await jobs.poll()
    clock.advance(2)
    await jobs.poll()
    assert asked_since(slurm)[1] == "1794702411"
    assert slurm.count("diag") == 1


@pytest.mark.spec("ALLOC-7")
@pytest.mark.parametrize("version", ["v0.0.40", "v0.0.44"])
async def test_no_change_in_newer_words_does_not_empty_the_list(
    clock: ManualClock, placing: Placing, version: str
) -> None:
    slurm = RecordedSlurm(version)
    jobs = polled(slurm, clock, placing)
    await jobs.poll()
    before = jobs.records
    assert before
    slurm.last_change_s = NOW + 10
    slurm.serve("slurm", "jobs", recording("jobs-unchanged", version))
    clock.advance(2)
    assert await jobs.poll() is False
    slurm.serve("slurm", "jobs", recording("nodes-unchanged", version), 500)
    clock.advance(2)
    assert await jobs.poll() is False
    assert jobs.records == before


NO_CHANGES_24_11 = b"""{"jobs": [], "last_backfill": {"set": true, "number": 0}, "errors": [],
    "last_update": {"set": true, "infinite": false, "number": 0},
    "warnings": [{"description": "No job changes since update_time[1]", "source": "op"}]}"""


@pytest.mark.spec("ALLOC-7")
async def test_no_change_as_an_empty_list_does_not_empty_the_list(
    clock: ManualClock, placing: Placing
) -> None:
    """As 24.11 and 26.05 answer."""
    slurm = RecordedSlurm("v0.0.44")
    jobs = polled(slurm, clock, placing)
    await jobs.poll()
    before = jobs.records
    slurm.serve("slurm", "jobs", NO_CHANGES_24_11)
    clock.advance(2)
    assert await jobs.poll() is False
    assert jobs.records == before


@pytest.mark.spec("ALLOC-7")
@pytest.mark.parametrize("left", [0, 1])
async def test_an_empty_list_in_answer_to_a_poll_is_read_once_more_as_a_whole(
    clock: ManualClock, placing: Placing, left: int
) -> None:
    slurm = RecordedSlurm("v0.0.44")
    jobs = polled(slurm, clock, placing)
    await jobs.poll()
    count, slurm.last_change_s = len(jobs.records), NOW + 10
    whole = recording("jobs", "v0.0.44") if left else b'{"jobs": []}'
    slurm.answer(
        "slurm", "jobs", lambda query: (200, b'{"jobs": []}' if "update_time" in query else whole)
    )
    clock.advance(2)
    assert await jobs.poll() is True
    assert len(jobs.records) == (count if left else 0)


@pytest.mark.spec("ALLOC-7")
@pytest.mark.parametrize(
    ("status", "body"),
    [
        (500, recording("slurmctld-down")),
        (200, recording("slurmctld-down")),
        (200, b"{}"),
        (200, b""),
        (200, b'{"jobs": {}}'),
        (500, b"Internal error"),
    ],
)
async def test_an_error_leaves_the_last_list_and_the_next_read_is_whole(
    slurm: RecordedSlurm, clock: ManualClock, placing: Placing, status: int, body: bytes
) -> None:
    jobs = polled(slurm, clock, placing)
    await jobs.poll()
    before = jobs.records
    slurm.last_change_s = NOW + 10
    sound = slurm.answers["/slurm/v0.0.38/jobs"]
    slurm.serve("slurm", "jobs", body, status)
    clock.advance(61)
    with pytest.raises(Unavailable):
        await jobs.poll()
    assert jobs.records is before
    assert jobs.counts.polls_failed_total == 1
    slurm.answers["/slurm/v0.0.38/jobs"] = sound
    clock.advance(2)
    assert await jobs.poll() is True
    assert asked_since(slurm)[-1] is None


async def test_a_list_read_whole_is_never_asked_for_changes(
    slurm: RecordedSlurm, clock: ManualClock, placing: Placing
) -> None:
    """22.05 answers `nodes?update_time=` with HTTP 500 when a node changed and no partition did."""
    rest = slurm.rest()
    nodes = Polled(
        rest,
        Dialects(rest, known_schemas(), clock),
        clock,
        ControllerClock(rest, clock),
        name="nodes",
        decode=lambda schema, raw: schema.node(raw),
        whole=True,
    )
    for _ in range(3):
        assert await nodes.poll() is True
        clock.advance(2)
    assert [query for path, query in slurm.asked if path.endswith("/nodes")] == [{}, {}, {}]
    assert nodes.counts.records_decoded_total == 3
    assert nodes.counts.records_reused_total == 6


async def test_an_empty_list_is_believed(
    slurm: RecordedSlurm, clock: ManualClock, placing: Placing
) -> None:
    jobs = polled(slurm, clock, placing)
    await jobs.poll()
    slurm.serve_records("slurm", "jobs", [])
    slurm.last_change_s = NOW + 10
    clock.advance(2)
    assert await jobs.poll() is True
    assert jobs.records == ()


async def test_records_without_identity_are_dropped_and_counted(
    slurm: RecordedSlurm, clock: ManualClock, placing: Placing
) -> None:
    good: dict[str, Any] = recorded("jobs")["jobs"][0]
    bad = [{}, {"job_id": "x"}, [], 3, None]
    slurm.serve_records("slurm", "jobs", [*bad, good])  # type: ignore[list-item]
    jobs = polled(slurm, clock, placing)
    await jobs.poll()
    assert [each.id for each in jobs.records] == ["1"]
    assert jobs.counts.decode_dropped_total == 5


async def test_an_upgrade_of_slurmrestd_is_noticed(
    slurm: RecordedSlurm, clock: ManualClock, placing: Placing
) -> None:
    jobs = polled(slurm, clock, placing)
    await jobs.poll()
    newer = RecordedSlurm("v0.0.44")
    slurm.answers = newer.answers
    slurm.last_change_s = NOW + 10
    clock.advance(2)
    with pytest.raises(Unavailable):
        await jobs.poll()
    clock.advance(2)
    assert await jobs.poll() is True
    assert len(jobs.records) == 8


async def test_a_large_list_is_decoded_beside_the_loop(
    slurm: RecordedSlurm, clock: ManualClock, placing: Placing
) -> None:
    record = recorded("jobs")["jobs"][0]
    slurm.serve_records("slurm", "jobs", [record | {"job_id": 1 + each} for each in range(300)])
    jobs = polled(slurm, clock, placing)
    await jobs.poll()
    assert len(jobs.records) == 300
