"""The status of the quorum, from what members report."""

from __future__ import annotations

from dataclasses import replace

import pytest

from lattice.domain.quorum import QuorumMember
from lattice.features.state.service.quorum import QuorumService, StateKind, quorum_status
from tests.unit.features.state.state_site import StateSite


def member(number: int, *, leads: bool = False) -> QuorumMember:
    return QuorumMember(
        name=f"e{number}:2379", etcd_name=f"etcd-{number}", id=f"{number}a", version="3.5.16",
        size_bytes=number * 1000, is_leader=leads, has_leader=True, term=4, index=100 + number,
        applied=100,
    )  # fmt: skip


ALL = (member(1), member(2, leads=True), member(3))


def away(each: QuorumMember) -> QuorumMember:
    return QuorumMember(name=each.name, reason="can't be reached", answers=False)


@pytest.mark.spec("OPS-2")
def test_three_members_that_agree() -> None:
    found = quorum_status(ALL)
    assert (found.healthy, found.leader, found.term, found.index) == (True, "etcd-2", 4, 103)
    assert (found.needed, found.may_fail, found.size_bytes) == (2, 1, 3000)
    assert found.members == ALL
    assert (found.note, found.alarms) == ("", ())


def test_one_member_away_leaves_none_to_spare() -> None:
    found = quorum_status((ALL[0], ALL[1], away(ALL[2])))
    assert (found.healthy, found.may_fail) == (True, 0)
    assert found.note == "the state can't be changed once another member fails"


def test_without_a_majority_or_a_leader_the_quorum_is_lost() -> None:
    found = quorum_status((away(ALL[0]), ALL[1], away(ALL[2])))
    assert not found.healthy
    assert found.note == "1 of 3 members agree, and 2 are needed"
    leaderless = tuple(replace(each, has_leader=False, is_leader=False) for each in ALL)
    assert not quorum_status(leaderless).healthy
    assert quorum_status(leaderless).leader == ""


def test_a_learner_does_not_count_and_an_alarm_is_shown() -> None:
    learner = replace(member(4), is_learner=True)
    full = replace(ALL[0], reason="alarm:NOSPACE")
    found = quorum_status((full, *ALL[1:], learner))
    assert (found.needed, found.may_fail) == (2, 1)
    assert found.alarms == ("etcd-1: alarm:NOSPACE",)


@pytest.mark.spec("OPS-2")
async def test_a_single_server_has_no_quorum_and_says_so() -> None:
    site = StateSite()
    await site.fill()
    found = await QuorumService(StateKind(store="single"), site.state).status()
    assert found.healthy
    assert "no quorum, no high availability" in found.note
    assert (found.cluster, found.members, found.needed) == ("c0ffee", (), 0)
    site.state.away = True
    assert not (await QuorumService(StateKind(store="single"), site.state).status()).healthy


async def test_the_members_are_asked_anew_and_the_cluster_is_named() -> None:
    site = StateSite()
    await site.fill()
    await site.set_epoch(2)

    async def members(_within_s: float) -> tuple[QuorumMember, ...]:
        return ALL

    found = await QuorumService(StateKind(store="etcd", members=members), site.state).status()
    assert (found.cluster, found.epoch, found.leader) == ("c0ffee", 2, "etcd-2")
