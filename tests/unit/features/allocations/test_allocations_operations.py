"""What is asked for, as the client sends it and as gRPC brings it."""

from __future__ import annotations

from datetime import UTC, datetime

import pytest

from lattice.base.errors import UsageError
from lattice.domain.allocation import State
from lattice.features.allocations import operations
from lattice.features.allocations.model import HistoryQuery, ListQuery
from lattice.wire.convert import value_of
from lattice.wire.v1 import allocations_pb2 as pb

SINCE = datetime(2026, 11, 15, 14, 2, 11, tzinfo=UTC)


def test_a_stretch_of_time_and_its_states_are_sent() -> None:
    call = operations.list_history(states=("failed", "running"), everyone=True, since=SINCE)
    assert call.path == "/v1/history"
    assert call.params == (
        ("state", "failed"),
        ("state", "running"),
        ("all", "true"),
        ("since", "2026-11-15T14:02:11+00:00"),
    )


def test_a_state_that_is_none_is_refused_before_anything_is_sent() -> None:
    with pytest.raises(UsageError, match="'sleeping' is no state"):
        operations.list_allocations(states=("sleeping",))


def test_a_message_brings_the_same_question() -> None:
    message = pb.ListHistoryRequest(states=["FAILED"], user="bob", all=True, limit=5, cursor="1.2")
    message.since.FromDatetime(SINCE)
    assert value_of(message, HistoryQuery) == HistoryQuery(
        states=(State.FAILED,), user="bob", all=True, limit=5, since=SINCE, cursor="1.2"
    )
    assert value_of(pb.ListAllocationsRequest(), ListQuery) == ListQuery()


def test_a_message_with_an_unknown_state_is_refused() -> None:
    with pytest.raises(UsageError, match=r"'sleeping' is no state\.") as refused:
        value_of(pb.ListAllocationsRequest(states=["sleeping"]), ListQuery)
    assert "running" in (refused.value.hint or "")
