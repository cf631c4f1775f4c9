"""Questions to slurmdbd: what is asked, how often, and that nothing of others' comes back."""

from __future__ import annotations

import asyncio
import json
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from lattice.adapters.slurm import accounting
from lattice.adapters.slurm.accounting import PastReader
from lattice.adapters.slurm.accounts import Associations
from lattice.adapters.slurm.dialect import Dialects
from lattice.adapters.slurm.schema.decoder import known_schemas
from lattice.adapters.slurm.tenancy import Placing
from lattice.base.errors import Unavailable
from lattice.domain.allocation import State, parse_reference
from lattice.domain.scheduler import PastQuestion, Scope
from tests.fakes.manual_clock import RECORDED, ManualClock
from tests.fakes.recorded_slurm import RecordedSlurm, recorded, recording

ALICE = Scope(users=frozenset({"alice"}))
BOB = Scope(users=frozenset({"bob"}))
EVERYTHING = Scope(everything=True)
IDS = Associations({"alice": (7,), "bob": (8, 9)})
HOUR_AGO = RECORDED - timedelta(hours=1)


def reader(slurm: RecordedSlurm, clock: ManualClock) -> PastReader:
    rest = slurm.rest()
    return PastReader(rest, Dialects(rest, known_schemas(), clock), clock)


def questions(slurm: RecordedSlurm) -> list[dict[str, str]]:
    return [query for path, query in slurm.asked if "/slurmdb/" in path]


def row(job_id: int, **changes: Any) -> dict[str, Any]:
    record = recorded("past-jobs")["jobs"][2]
    return record | {"job_id": job_id} | changes  # type: ignore[no-any-return]


async def test_a_stretch_of_the_recorded_past(
    slurm: RecordedSlurm, clock: ManualClock, placing: Placing
) -> None:
    found = await reader(slurm, clock).ask(PastQuestion(scope=ALICE, since=HOUR_AGO), placing, IDS)
    assert [each.id for each in found] == [
        "11",
        "14+1",
        "14+0",
        "9",
        "6",
        "5",
        "2_2",
        "2_1",
        "4",
        "3",
        "1",
    ]
    requeued = found[0]
    assert requeued.ref == "11@1794702383"
    assert [each.state for each in requeued.attempts] == [State.REQUEUED, State.RUNNING]


@pytest.mark.spec("AUTH-7")
async def test_an_answer_that_ignores_the_filter_shows_nobody_else_s(
    slurm: RecordedSlurm, clock: ManualClock, placing: Placing
) -> None:
    past = reader(slurm, clock)
    assert await past.ask(PastQuestion(scope=BOB, since=HOUR_AGO), placing, IDS) == ()
    assert (
        await past.ask(PastQuestion(scope=BOB, reference=parse_reference("1")), placing, IDS) == ()
    )
    nobody = Scope(users=frozenset({""}), accounts=frozenset({""}))
    assert await past.ask(PastQuestion(scope=nobody, since=HOUR_AGO), placing, IDS) == ()
    assert await past.ask(PastQuestion(scope=Scope(), since=HOUR_AGO), placing, IDS) == ()


@pytest.mark.spec("AUTH-12")
async def test_an_id_used_by_two_owners_shows_each_only_their_own(
    slurm: RecordedSlurm, clock: ManualClock, placing: Placing
) -> None:
    later = {"submission": 1794702900, "start": 1794702901, "end": 1794702999, "limit": 5}
    slurm.serve_records("slurmdb", "jobs", [row(3), row(3, user="bob", time=later)])
    past = reader(slurm, clock)

    async def seen(scope: Scope, name: str = "3") -> list[tuple[str, str]]:
        question = PastQuestion(scope=scope, reference=parse_reference(name))
        return [(each.user, each.ref) for each in await past.ask(question, placing, IDS)]

    assert await seen(ALICE) == [("alice", "3@1794702382")]
    assert await seen(BOB) == [("bob", "3@1794702900")]
    assert await seen(EVERYTHING) == [("bob", "3@1794702900"), ("alice", "3@1794702382")]
    assert await seen(EVERYTHING, "3@1794702382") == [("alice", "3@1794702382")]
    assert await seen(BOB, "3@1794702382") == []


async def test_v0_0_38_is_asked_by_association_and_newer_by_user(
    clock: ManualClock, placing: Placing
) -> None:
    since = HOUR_AGO
    old, new = RecordedSlurm(), RecordedSlurm("v0.0.44")
    for slurm in (old, new):
        await reader(slurm, clock).ask(PastQuestion(scope=BOB, since=since), placing, IDS)
    asked_old, asked_new = questions(old)[0], questions(new)[0]
    assert asked_old["association"] == "8,9"
    assert "users" not in asked_old
    assert asked_new["users"] == "bob"
    assert asked_new["show_duplicates"] == asked_new["skip_steps"] == "true"
    start = int((since - timedelta(minutes=10)).timestamp()) // 60 * 60
    assert asked_old["start_time"] == asked_new["start_time"] == f"uts{start}"
    assert asked_old["cluster"] == "lab"


async def test_accounts_are_asked_for_beside_users(
    slurm: RecordedSlurm, clock: ManualClock, placing: Placing
) -> None:
    scope = Scope(users=frozenset({"bob"}), accounts=frozenset({"research", "theory"}))
    found = await reader(slurm, clock).ask(PastQuestion(scope=scope, since=HOUR_AGO), placing, IDS)
    assert {each.user for each in found} == {"alice"}
    assert {query.get("account") for query in questions(slurm)} >= {"research,theory", None}


async def test_a_user_without_ids_is_searched_for_in_everything(
    slurm: RecordedSlurm, clock: ManualClock, placing: Placing
) -> None:
    question = PastQuestion(scope=ALICE, since=HOUR_AGO)
    found = await reader(slurm, clock).ask(question, placing, Associations())
    assert len(found) == 11
    assert "association" not in questions(slurm)[0]


async def test_a_user_unknown_to_slurmrestd_is_searched_for_in_everything(
    clock: ManualClock, placing: Placing
) -> None:
    slurm = RecordedSlurm("v0.0.40")

    def answer(query: dict[str, str]) -> tuple[int, bytes]:
        if "users" in query:
            problem = {"error_number": 9007, "error": "Unable to resolve user"}
            return 500, json.dumps({"errors": [problem]}).encode()
        return 200, recording("past-jobs", "v0.0.40")

    slurm.answer("slurmdb", "jobs", answer)
    question = PastQuestion(scope=ALICE, since=HOUR_AGO)
    assert await reader(slurm, clock).ask(question, placing, IDS)


@pytest.mark.parametrize(
    ("name", "step"), [("7", "7"), ("2_1", "2_1"), ("14+1", "14"), ("7@1794702383", "7")]
)
async def test_one_job_is_asked_for_by_its_id(
    slurm: RecordedSlurm, clock: ManualClock, placing: Placing, name: str, step: str
) -> None:
    question = PastQuestion(scope=ALICE, reference=parse_reference(name))
    await reader(slurm, clock).ask(question, placing, IDS)
    assert [query["step"] for query in questions(slurm)] == [step]


async def test_the_store_s_window_is_cut_again_here(
    slurm: RecordedSlurm, clock: ManualClock, placing: Placing
) -> None:
    past = reader(slurm, clock)
    ended = datetime.fromtimestamp(1794702386, UTC)
    since = PastQuestion(scope=ALICE, since=ended + timedelta(seconds=1))
    assert {"3", "4", "5", "6"}.isdisjoint(each.id for each in await past.ask(since, placing, IDS))
    first = datetime.fromtimestamp(1794702382, UTC)
    until = PastQuestion(scope=ALICE, since=HOUR_AGO, until=first)
    assert [each.id for each in await past.ask(until, placing, IDS)] == [
        "2_2",
        "2_1",
        "4",
        "3",
        "1",
    ]
    failed = PastQuestion(scope=ALICE, since=HOUR_AGO, states=frozenset({State.FAILED}))
    assert [each.id for each in await past.ask(failed, placing, IDS)] == ["6"]


async def test_a_run_before_the_stretch_still_names_the_allocation(
    slurm: RecordedSlurm, clock: ManualClock, placing: Placing
) -> None:
    """slurmdbd tells only the second run of job 11; the first lies before the stretch."""
    rows = recorded("past-jobs")["jobs"]
    both = [each for each in rows if each["job_id"] == 11]

    def answer(query: dict[str, str]) -> tuple[int, bytes]:
        told = both if "step" in query else both[1:]
        return 200, json.dumps({"errors": [], "jobs": told}).encode()

    slurm.answer("slurmdb", "jobs", answer)
    since = datetime.fromtimestamp(1794702410, UTC)
    (found,) = await reader(slurm, clock).ask(PastQuestion(scope=ALICE, since=since), placing, IDS)
    assert found.ref == "11@1794702383"
    assert len(found.attempts) == 2


async def test_the_run_after_a_requeue_is_fetched_though_not_yet_eligible(
    slurm: RecordedSlurm, clock: ManualClock, placing: Placing
) -> None:
    both = [each for each in recorded("past-jobs")["jobs"] if each["job_id"] == 11]

    def answer(query: dict[str, str]) -> tuple[int, bytes]:
        told = both if "step" in query else both[:1]
        return 200, json.dumps({"errors": [], "jobs": told}).encode()

    slurm.answer("slurmdb", "jobs", answer)
    question = PastQuestion(scope=ALICE, since=HOUR_AGO)
    (found,) = await reader(slurm, clock).ask(question, placing, IDS)
    assert found.state is State.RUNNING
    assert found.attempt == 2


async def test_another_use_of_an_id_outside_the_stretch_is_not_told(
    slurm: RecordedSlurm, clock: ManualClock, placing: Placing
) -> None:
    old = {"submission": 1600000000, "start": 1600000001, "end": 1600000009, "limit": 5}
    current = recorded("past-jobs")["jobs"][1]

    def answer(query: dict[str, str]) -> tuple[int, bytes]:
        rows = [current, current | {"time": old, "state": {"current": "COMPLETED"}}]
        told = rows if "step" in query else rows[:1]
        return 200, json.dumps({"errors": [], "jobs": told}).encode()

    slurm.answer("slurmdb", "jobs", answer)
    question = PastQuestion(scope=ALICE, since=RECORDED)
    found = await reader(slurm, clock).ask(question, placing, IDS)
    assert [each.ref for each in found] == ["1@1794702382"]


async def test_the_same_question_at_once_is_asked_once_and_serves_for_seconds(
    slurm: RecordedSlurm, clock: ManualClock, placing: Placing
) -> None:
    past = reader(slurm, clock)
    question = PastQuestion(scope=ALICE, reference=parse_reference("11"))
    await asyncio.gather(*(past.ask(question, placing, IDS) for _ in range(50)))
    await past.ask(question, placing, IDS)
    assert past.questions_total == 1
    clock.advance(6)
    await past.ask(question, placing, IDS)
    assert past.questions_total == 2


async def test_an_answer_that_took_long_serves_for_longer(
    slurm: RecordedSlurm, clock: ManualClock, placing: Placing
) -> None:
    past = reader(slurm, clock)
    sound = slurm.answers["/slurmdb/v0.0.38/jobs"]

    def slow(query: dict[str, str]) -> tuple[int, bytes]:
        clock.advance(4)
        return sound(query)

    slurm.answer("slurmdb", "jobs", slow)
    question = PastQuestion(scope=ALICE, reference=parse_reference("11"))
    await past.ask(question, placing, IDS)
    clock.advance(19)
    await past.ask(question, placing, IDS)
    assert past.questions_total == 1
    clock.advance(2)
    await past.ask(question, placing, IDS)
    assert past.questions_total == 2


async def test_after_a_request_without_an_answer_callers_wait_for_a_short_time(
    slurm: RecordedSlurm,
    clock: ManualClock,
    placing: Placing,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(accounting, "_SILENT_PATIENCE_S", 0.0)
    past = reader(slurm, clock)
    question = PastQuestion(scope=ALICE, reference=parse_reference("11"))
    await past.ask(question, placing, IDS)
    answering = past._rest.get
    clock.advance(60)

    async def silent(*_: Any, **__: Any) -> Any:
        raise Unavailable("slurmrestd gave no answer to /slurmdb within 20 s")

    past._rest.get = silent  # type: ignore[method-assign]
    with pytest.raises(Unavailable, match="20 s"):
        await past.ask(question, placing, IDS)

    answered = asyncio.Event()

    async def late(*args: Any, **kwargs: Any) -> Any:
        await answered.wait()
        return await answering(*args, **kwargs)

    past._rest.get = late  # type: ignore[method-assign]
    with pytest.raises(Unavailable, match="slurmdbd does not answer"):
        await past.ask(question, placing, IDS)
    answered.set()
    await asyncio.gather(*past._running.values())
    assert len(await past.ask(question, placing, IDS)) == 1


async def test_viewers_within_a_minute_share_a_question(
    slurm: RecordedSlurm, clock: ManualClock, placing: Placing
) -> None:
    past = reader(slurm, clock)
    minute = datetime.fromtimestamp(1794690000, UTC)
    for second in (0, 1, 3):
        since = minute + timedelta(seconds=second)
        await past.ask(PastQuestion(scope=EVERYTHING, since=since), placing, IDS)
    assert past.questions_total == 1


async def test_at_most_four_questions_are_under_way(
    slurm: RecordedSlurm, clock: ManualClock, placing: Placing
) -> None:
    past = reader(slurm, clock)
    rest = past._rest
    most = under_way = 0
    real = rest.get

    async def slow(*args: Any, **kwargs: Any) -> Any:
        nonlocal most, under_way
        under_way += 1
        most = max(most, under_way)
        await asyncio.sleep(0)
        try:
            return await real(*args, **kwargs)
        finally:
            under_way -= 1

    await past.ask(PastQuestion(scope=ALICE, reference=parse_reference("999")), placing, IDS)
    rest.get = slow  # type: ignore[method-assign]
    asked = (
        past.ask(PastQuestion(scope=ALICE, reference=parse_reference(str(number))), placing, IDS)
        for number in range(1, 40)
    )
    await asyncio.gather(*asked)
    assert most == 4


async def test_one_asker_that_leaves_does_not_take_the_answer_from_the_others(
    slurm: RecordedSlurm, clock: ManualClock, placing: Placing
) -> None:
    past = reader(slurm, clock)
    question = PastQuestion(scope=ALICE, reference=parse_reference("11"))
    tasks = [asyncio.create_task(past.ask(question, placing, IDS)) for _ in range(2)]
    await asyncio.sleep(0)
    tasks[0].cancel()
    assert len(await tasks[1]) == 1
    with pytest.raises(asyncio.CancelledError):
        await tasks[0]


async def test_too_many_waiting_are_refused(
    slurm: RecordedSlurm, clock: ManualClock, placing: Placing
) -> None:
    past = reader(slurm, clock)
    asked = (
        past.ask(PastQuestion(scope=ALICE, reference=parse_reference(str(number))), placing, IDS)
        for number in range(1, 400)
    )
    answers = await asyncio.gather(*asked, return_exceptions=True)
    refused = [each for each in answers if isinstance(each, Unavailable)]
    assert 0 < len(refused) <= 399 - 256
    assert not past._running


async def test_slurmdbd_away_is_unavailable_and_not_remembered(
    slurm: RecordedSlurm, clock: ManualClock, placing: Placing
) -> None:
    past = reader(slurm, clock)
    question = PastQuestion(scope=ALICE, reference=parse_reference("11"))
    sound = slurm.answers["/slurmdb/v0.0.38/jobs"]
    slurm.serve("slurmdb", "jobs", recording("slurmdbd-down"), 500)
    with pytest.raises(Unavailable, match="slurmdbd"):
        await past.ask(question, placing, IDS)
    slurm.answers["/slurmdb/v0.0.38/jobs"] = sound
    assert len(await past.ask(question, placing, IDS)) == 1


async def test_nothing_found_is_nothing(
    slurm: RecordedSlurm, clock: ManualClock, placing: Placing
) -> None:
    slurm.serve("slurmdb", "jobs", recording("past-nothing-found"))
    question = PastQuestion(scope=ALICE, reference=parse_reference("999"))
    assert await reader(slurm, clock).ask(question, placing, IDS) == ()


async def test_closing_stops_what_is_under_way(
    slurm: RecordedSlurm, clock: ManualClock, placing: Placing
) -> None:
    past = reader(slurm, clock)
    await past.ask(PastQuestion(scope=ALICE, reference=parse_reference("3")), placing, IDS)
    begun = asyncio.Event()

    async def hanging(*_: Any, **__: Any) -> Any:
        begun.set()
        await asyncio.Event().wait()

    past._rest.get = hanging  # type: ignore[method-assign]
    question = PastQuestion(scope=ALICE, reference=parse_reference("11"))
    task = asyncio.create_task(past.ask(question, placing, IDS))
    await begun.wait()
    await past.aclose()
    with pytest.raises(Unavailable, match="stopping"):
        await task
    assert not past._running


async def test_a_name_is_asked_for_within_the_scope(
    slurm: RecordedSlurm, clock: ManualClock, placing: Placing
) -> None:
    """A row that is found takes slurmdbd longer than none: others' rows must not be found."""
    past = reader(slurm, clock)
    asked: list[dict[str, str]] = []
    real = slurm.answers["/slurmdb/v0.0.38/jobs"]

    def noted(query: dict[str, str]) -> tuple[int, bytes]:
        asked.append(query)
        return real(query)

    slurm.answer("slurmdb", "jobs", noted)
    scope = Scope(users=ALICE.users, accounts=frozenset({"theory"}))
    await past.ask(PastQuestion(scope=scope, reference=parse_reference("11")), placing, IDS)
    assert [each["step"] for each in asked] == ["11", "11"]
    assert {"association", "account"} == {
        name for each in asked for name in each if name in {"association", "account", "users"}
    }


@pytest.mark.spec("ALLOC-6")
@pytest.mark.parametrize(
    ("version", "step", "users"),
    [
        ("v0.0.38", "step=1%2C3", None),
        ("v0.0.40", "step=1&step=3", "users=alice&users=bob"),
        ("v0.0.45", "step=1&step=3", "users=alice&users=bob"),
    ],
)
async def test_several_values_are_written_as_the_version_takes_them(
    clock: ManualClock, placing: Placing, version: str, step: str, users: str | None
) -> None:
    """From v0.0.40 on slurmrestd refuses the whole question if one of these is a list."""
    slurm = RecordedSlurm(version)
    slurm.serve("slurmdb", "jobs", b'{"errors": [], "jobs": []}')
    rows = reader(slurm, clock)
    await rows.stories([3, 1], placing)
    assert step in slurm.raw_queries[-1]
    both = Scope(users=frozenset({"alice", "bob"}))
    await rows.ask(PastQuestion(scope=both, since=HOUR_AGO), placing, IDS)
    if users is not None:
        assert users in slurm.raw_queries[-1]
