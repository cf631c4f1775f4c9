"""Places for questions: those that hang keep nobody else's, and nobody gets many of them."""

from __future__ import annotations

from dataclasses import replace

import pytest

from lattice.domain.grant import Act, Grant
from lattice.domain.privileged import VERBS, NoteOutput, OpenOutput
from lattice.helper.child_slots import Child, ChildSlots
from lattice.helper.journal import Peer
from lattice.helper.judge import AskedGrant

GRANT = Grant(
    id="0" * 32, act=Act.READ_OUTPUT, place="n1", subject="s", user="alice", issued=0, expires=1
)


def child(user: str = "alice", until: float = 10.0, job: int = 0) -> Child:
    grant = replace(GRANT, user=user, job_id=job)
    return Child(AskedGrant(VERBS["open_output"], OpenOutput((1,)), grant), Peer(1, 2), until)


def noting(job: int) -> Child:
    """A question that is nobody's."""
    return Child(AskedGrant(VERBS["note_output"], NoteOutput(job, (1,)), None), Peer(1, 2), 10.0)


def test_all_places_can_be_taken_and_left() -> None:
    places = ChildSlots(2)
    places.take(1, child())
    assert not places.full
    places.take(2, child("bob"))
    assert places.full
    places.leave(1)
    assert not places.full
    assert places.pids() == [2]


def test_one_that_hangs_is_told_once_and_keeps_no_place() -> None:
    places = ChildSlots(1)
    places.take(1, child())
    assert places.overdue(9.0) == []
    assert [pid for pid, _ in places.overdue(11.0)] == [1]
    assert places.overdue(12.0) == []
    assert not places.full
    assert len(places) == 1


def test_a_user_whose_questions_hang_waits_and_others_do_not() -> None:
    places = ChildSlots(8)
    for pid in (1, 2):
        assert not places.hangs_for("alice")
        places.take(pid, child())
        places.overdue(11.0)
    assert places.hangs_for("alice")
    assert not places.hangs_for("bob")
    places.leave(2)
    assert not places.hangs_for("alice")


@pytest.mark.spec("LIMIT-4")
def test_a_user_gets_a_share_and_leaves_the_rest_to_others() -> None:
    places = ChildSlots(8, most_a_user=2)
    for pid in (1, 2):
        assert places.has_room_for("alice")
        places.take(pid, child())
    assert places.are_used_up_by("alice")
    assert not places.has_room_for("alice")
    assert places.has_room_for("bob")
    places.leave(1)
    assert places.has_room_for("alice")


def test_without_a_share_a_user_may_take_all_places() -> None:
    places = ChildSlots(2)
    places.take(1, child())
    assert places.has_room_for("alice")
    places.take(2, child())
    assert not places.has_room_for("alice")
    assert not places.are_used_up_by("alice")


def test_there_is_an_end_to_those_that_hang() -> None:
    places = ChildSlots(8)
    for pid in range(32):
        assert not places.full
        places.take(pid, child(f"user{pid}"))
        places.overdue(11.0)
    assert places.full


def test_questions_that_are_nobody_s_hang_for_their_job_alone() -> None:
    places = ChildSlots(8)
    for pid in (1, 2):
        places.take(pid, noting(42))
        places.overdue(11.0)
    assert places.hangs_for("", 42)
    assert not places.hangs_for("", 43)
    assert places.hangs_for("bob", 42)


@pytest.mark.threat("unreadable-process")
def test_one_that_is_slow_keeps_no_place_and_may_still_answer() -> None:
    places = ChildSlots(1, slow_s=2.0)
    places.take(1, child(job=42), 5.0)
    assert places.full
    assert places.overdue(8.0) == []
    assert not places.full
    assert not places.hangs_for("alice", 42)
    assert places.leave(1).slow


@pytest.mark.threat("unreadable-process")
def test_a_job_has_few_that_are_slow_and_a_user_some_more() -> None:
    places = ChildSlots(1, slow_s=2.0)
    for pid in range(8):
        assert not places.hangs_for("alice", pid // 4)
        places.take(pid, child(job=42 + pid // 4), 5.0)
        places.overdue(8.0)
        assert places.hangs_for("bob", 42) == (pid >= 3)
    assert places.hangs_for("alice", 99)
    assert not places.hangs_for("bob", 99)
    assert not places.full


def test_the_oldest_that_keeps_a_place_makes_room() -> None:
    places = ChildSlots(2)
    places.take(1, child())
    places.take(2, child())
    places.put_aside(places.oldest() or 0)
    assert places.oldest() == 2
    assert not places.full
    assert len(places) == 2
