"""The health of a node, as a dataclass and as a protobuf message."""

from __future__ import annotations

import math
from dataclasses import replace
from datetime import UTC

import msgspec

from lattice.base.text import inert
from lattice.domain.machine_facts import FACTS, NOT_REPORTED, MachineFact, ordered_facts
from lattice.domain.node import AgentFacts, HealthState, NodeHealth
from lattice.domain.slices import (
    NodeSlice,
    SliceCard,
    SliceGuest,
    SliceHost,
    SlicePort,
    SliceStart,
    SliceState,
)
from lattice.wire.convert import message_of
from lattice.wire.v1 import link_pb2 as pb
from lattice.wire.v1 import slices_pb2

_MOST_FAULTS = 8
_LONGEST_FAULT = 160
_LONGEST_LACK = 400
_LARGEST_CLOCK_S = 1e9
_MOST_SLICES, _MOST_PORTS = 64, 64
_FASTEST_BITS, _LARGEST_FACT = 1e15, 1e18
_MOST_BYTES = 40 * 1024
"""Of all slices of a node; a value of the agreed state has 64 KiB at most."""
_STATES = {each.value: each for each in SliceState}


def health_message(health: NodeHealth) -> pb.NodeHealth:
    return message_of(health, pb.NodeHealth)


def health_of(message: pb.NodeHealth) -> NodeHealth:
    """The health that an agent reported, cut to what a record may hold."""
    lacks = tuple(inert(each)[:_LONGEST_LACK] for each in message.lacks[:_MOST_FAULTS])
    facts = _facts_of(message.agent)
    try:
        health = HealthState(message.health)
    except ValueError:
        return NodeHealth(lacks=lacks, agent=facts, slices=_slices_of(message))
    faults = (inert(each)[:_LONGEST_FAULT] for each in message.words[:_MOST_FAULTS])
    return NodeHealth(health, tuple(faults), lacks, facts, _slices_of(message))


def _slices_of(message: pb.NodeHealth) -> tuple[NodeSlice, ...]:
    """The slices, as much of them as the record of a node has room for."""
    found, size_bytes = [], 0
    for each in message.slices[:_MOST_SLICES]:
        one = _slice_of(each)
        size_bytes += len(msgspec.json.encode(one))
        if size_bytes > _MOST_BYTES:
            # Its guest belongs to a job's owner, and may make its report long on purpose.
            small = replace(one.guest, start=None, ports=(), cards=(), faults=())
            one = replace(one, guest=small)
        found.append(one)
    return tuple(found)


def _slice_of(message: slices_pb2.NodeSlice) -> NodeSlice:
    guest, host = message.guest, message.host
    return NodeSlice(
        guest=SliceGuest(
            name=_cut(guest.name),
            gpus=tuple(guest.gpus[:_MOST_PORTS]),
            state=_STATES.get(guest.state, SliceState.UNKNOWN),
            reason=_cut(guest.reason),
            last_error=_cut(guest.last_error),
            faults=tuple(_cut(each) for each in guest.faults[:_MOST_FAULTS]),
            cards=tuple(
                SliceCard(uuid=_cut(each.uuid), name=_cut(each.name))
                for each in guest.cards[:_MOST_PORTS]
            ),
            ports=tuple(_port_of(each) for each in guest.ports[:_MOST_PORTS]),
            start=_start_of(guest),
        ),
        host=SliceHost(
            address=_cut(host.address), bridge=_cut(host.bridge), netdata=_cut(host.netdata)
        ),
    )


def _start_of(guest: slices_pb2.SliceGuest) -> SliceStart | None:
    if not guest.HasField("start"):
        return None
    start = guest.start
    try:
        reached = start.reached.ToDatetime(tzinfo=UTC)
    except (ValueError, OverflowError):
        return None
    facts = (_fact_of(each) for each in start.facts[: len(FACTS)])
    return SliceStart(
        boot_id=_cut(start.boot_id),
        reached=reached,
        facts=ordered_facts(facts),
        reason=_cut(start.reason),
    )


def _fact_of(message: slices_pb2.MachineFact) -> MachineFact:
    number = message.number if message.HasField("number") else math.nan
    known = 0 <= number < _LARGEST_FACT
    text = _cut(message.text)
    reason = _cut(message.reason) or ("" if known or text else NOT_REPORTED)
    return MachineFact(
        name=message.name, number=number if known else None, text=text, reason=reason
    )


def _port_of(message: slices_pb2.SlicePort) -> SlicePort:
    speed = message.speed_bits if message.HasField("speed_bits") else math.nan
    return SlicePort(
        name=_cut(message.name),
        kind=_cut(message.kind),
        up=message.up,
        speed_bits=speed if 0 < speed < _FASTEST_BITS else None,
    )


def _cut(text: str) -> str:
    return inert(text)[:_LONGEST_FAULT]


def _facts_of(message: pb.AgentFacts) -> AgentFacts:
    there = {field.name for field, _ in message.ListFields()}

    def size(name: str) -> int | None:
        return getattr(message, name) if name in there else None

    ahead_s = message.clock_ahead_s if "clock_ahead_s" in there else math.nan
    return AgentFacts(
        helper=inert(message.helper)[:_LONGEST_FAULT],
        latency=inert(message.latency)[:_LONGEST_FAULT],
        spool_bytes=size("spool_bytes"),
        spool_most_bytes=size("spool_most_bytes"),
        free_bytes=size("free_bytes"),
        # Not a number, and what no clock can show, are not known.
        clock_ahead_s=ahead_s if abs(ahead_s) < _LARGEST_CLOCK_S else None,
    )
