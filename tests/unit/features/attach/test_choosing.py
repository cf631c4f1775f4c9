"""Whether a job is entered, and where."""

from __future__ import annotations

from datetime import timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lattice.base.errors import UsageError
from lattice.domain.allocation import Allocation, State
from lattice.domain.nodeset import NodeSet
from lattice.features.attach.model import CHECKPOINTED_TEXT, Start
from lattice.features.attach.service.node_choice import (
    ENTERED,
    by_hand,
    ends_at,
    node_of,
    refusal,
)
from tests.fakes.cluster import allocation


def job(**facts: object) -> Allocation:
    return allocation(7, "alice", "research", **facts)


def start(**facts: object) -> Start:
    return Start(session="a" * 32, **facts)  # type: ignore[arg-type]


@pytest.mark.spec("ATTACH-6")
@pytest.mark.parametrize("state", list(State))
def test_only_what_runs_is_entered(state: State) -> None:
    told = refusal(job(state=state))
    if state in ENTERED:
        assert told is None
        return
    assert told is not None
    if state in {State.REQUEUED, State.REQUEUE_HOLD, State.SPECIAL_EXIT, State.PREEMPTED}:
        assert told.message == CHECKPOINTED_TEXT
    else:
        words = f"cannot attach to allocation in state '{state.value}'; must be 'running'"
        assert told.message == words
    assert told.code == (
        "job_ended" if state.finished and state is not State.PREEMPTED else "unavailable"
    )


@pytest.mark.spec("ATTACH-6")
def test_a_preemption_of_an_earlier_attempt_is_no_reason() -> None:
    running = job()
    assert running.started is not None
    before, after = (running.started + timedelta(seconds=each) for each in (-1, 1))
    assert refusal(job(preempted_at=before)) is None
    told = refusal(job(preempted_at=after))
    assert told is not None
    assert told.message == CHECKPOINTED_TEXT


@pytest.mark.spec("ATTACH-1")
@given(st.sets(st.integers(1, 400), min_size=1, max_size=40), st.data())
def test_a_node_is_always_one_of_the_jobs(numbers: set[int], data: st.DataObject) -> None:
    nodes = NodeSet(f"n{each:03d}" for each in numbers)
    tasks = data.draw(st.none() | st.integers(1, 500))
    rank = data.draw(st.none() | st.integers(-2, 500))
    named = data.draw(st.sampled_from(["", "n001", "x"]))
    try:
        chosen = node_of(job(nodes=str(nodes), tasks=tasks), start(rank=rank, node=named))
    except UsageError:
        assert named or rank is not None
        return
    assert chosen in nodes
    assert not named or chosen == named


@pytest.mark.spec("ATTACH-1")
def test_the_first_node_unless_one_is_named() -> None:
    spread = job(nodes="n[1-3]", tasks=3)
    assert node_of(spread, start()) == "n1"
    assert node_of(spread, start(node="n2")) == "n2"
    with pytest.raises(UsageError, match="does not run on n4"):
        node_of(spread, start(node="n4"))


@pytest.mark.spec("ATTACH-1")
def test_a_rank_is_found_where_there_is_no_doubt() -> None:
    assert node_of(job(nodes="n[1-3]", tasks=3), start(rank=2)) == "n3"
    assert node_of(job(nodes="n1", tasks=64), start(rank=63)) == "n1"
    with pytest.raises(UsageError, match="not known") as told:
        node_of(job(nodes="n[1-3]", tasks=64), start(rank=7))
    assert told.value.hint == "Name the node: --node n1"
    with pytest.raises(UsageError, match="no rank 3"):
        node_of(job(nodes="n[1-3]", tasks=3), start(rank=3))


@pytest.mark.spec("ATTACH-5")
def test_the_command_by_hand_can_be_pasted() -> None:
    told = by_hand(job(), "n1", start(terminal="xterm", command=("sh", "-c", "echo $HOME; ls")))
    assert told == "srun --jobid=7 --overlap --pty -w n1 sh -c 'echo $HOME; ls'"
    assert by_hand(job(), "n1", start()) == 'srun --jobid=7 --overlap -w n1 "$SHELL" -l'


def test_when_its_time_is_over() -> None:
    limited = job(time_limit_s=600, suspended_s=60)
    assert limited.started is not None
    assert ends_at(limited) == limited.started + timedelta(seconds=660)
    assert ends_at(job()) is None
