"""The only mapping between the feature's dataclasses and its protobuf messages."""

from __future__ import annotations

from lattice.base.choices import chosen
from lattice.domain.allocation import State
from lattice.features.allocations.model import (
    AllocationCard,
    AllocationList,
    HistoryQuery,
    ListQuery,
)
from lattice.wire.convert import message_of, moment
from lattice.wire.v1 import allocations_pb2 as pb


def list_query(request: pb.ListAllocationsRequest) -> ListQuery:
    """What a list request asks."""
    return ListQuery(
        states=chosen(State, request.states, "state"),
        user=request.user,
        all=request.all,
        limit=request.limit,
    )


def history_query(request: pb.ListHistoryRequest) -> HistoryQuery:
    """What a history request asks."""
    return HistoryQuery(
        states=chosen(State, request.states, "state"),
        user=request.user,
        all=request.all,
        limit=request.limit,
        since=moment(request.since) if request.HasField("since") else None,
        until=moment(request.until) if request.HasField("until") else None,
        cursor=request.cursor,
    )


def list_message(answer: AllocationList) -> pb.AllocationList:
    """A list as it crosses the wire."""
    return message_of(answer, pb.AllocationList)


def card_message(answer: AllocationCard) -> pb.AllocationCard:
    """A card as it crosses the wire."""
    return message_of(answer, pb.AllocationCard)
