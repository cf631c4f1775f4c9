"""The law of the pipe: whatever is cut, what was written comes out once, whole and in order."""

from __future__ import annotations

import contextlib

import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from lattice.domain.pipe import LARGEST_MESSAGE_BYTES, BadFrame, Message, Pipe, cost

SMALL = LARGEST_MESSAGE_BYTES + 64


def exchange(one: Pipe, other: Pipe) -> None:
    """Everything either has to say reaches the other, until both are silent."""
    while frames := [(other, f) for f in one.frames()] + [(one, f) for f in other.frames()]:
        for end, frame in frames:
            end.receive(frame)


def joined(window: int = SMALL) -> tuple[Pipe, Pipe]:
    one, other = Pipe(window), Pipe(window)
    one.connected()
    other.connected()
    exchange(one, other)
    return one, other


def drained(pipe: Pipe) -> list[bytes]:
    return [each.payload for each in iter(pipe.take, None)]


def test_messages_arrive_in_order_both_ways() -> None:
    one, other = joined()
    one.write(b"a")
    one.write(b"")
    other.write(b"z", last=True)
    exchange(one, other)
    assert drained(other) == [b"a", b""]
    assert one.take() == Message(b"z", last=True)


def test_a_reader_who_does_not_read_stops_the_writer_and_holds_one_window() -> None:
    one, other = joined()
    written = 0
    while one.writable:
        one.write(b"x" * 1000)
        exchange(one, other)
        written += 1
    assert written <= SMALL // 1000 + 1
    got = len(drained(other))
    assert got * cost(b"x" * 1000) <= SMALL
    exchange(one, other)
    assert one.writable


def test_empty_messages_are_bounded_too() -> None:
    one, _ = joined()
    count = 0
    while one.writable:
        one.write(b"")
        count += 1
    assert count <= SMALL // cost(b"") + 1


def test_over_when_both_have_said_their_last_and_know_it() -> None:
    one, other = joined()
    one.write(b"bye", last=True)
    exchange(one, other)
    assert not one.over
    other.write(b"bye", last=True)
    exchange(one, other)
    assert one.over
    assert other.over


@pytest.mark.parametrize(
    "frame",
    [
        b"",
        b"\x00" * 16,
        b"\x09" + b"\x00" * 16,
        b"\x01" + bytes(7) + b"\x05" + bytes(8),  # a message out of turn
        b"\x02" + b"\xff" * 16,  # confirmed what was never written
        b"\x00" + bytes(16),  # a second greeting
        b"\x01" + bytes(7) + b"\x01" + bytes(8) + b"x" * (LARGEST_MESSAGE_BYTES + 1),
    ],
)
def test_an_end_that_breaks_the_rules_is_found_out(frame: bytes) -> None:
    one, _ = joined()
    with pytest.raises(BadFrame):
        one.receive(frame)


def test_more_than_there_is_room_for_is_refused() -> None:
    one, other = joined()
    big = b"x" * LARGEST_MESSAGE_BYTES
    other._limit = 10**9
    other.write(big)
    other.write(big)
    first, second = other.frames()
    one.receive(first)
    with pytest.raises(BadFrame, match="room"):
        one.receive(second)


@given(st.binary(max_size=200))
def test_any_bytes_are_a_frame_or_refused(frame: bytes) -> None:
    one, _ = joined()
    with contextlib.suppress(BadFrame):
        one.receive(frame)


class Cuts(RuleBasedStateMachine):
    """Two ends, a wire in each direction that delivers late or is cut with frames inside."""

    @initialize()
    def begin(self) -> None:
        self.ends = (Pipe(SMALL), Pipe(SMALL))
        self.written: tuple[list[bytes], list[bytes]] = ([], [])
        self.read: tuple[list[bytes], list[bytes]] = ([], [])
        self.wires: tuple[list[bytes], list[bytes]] = ([], [])
        self.cut()

    @rule()
    def cut(self) -> None:
        for end, wire in zip(self.ends, self.wires, strict=True):
            wire.clear()
            end.connected()

    @rule(end=st.integers(0, 1), sizes=st.lists(st.integers(0, 30_000), max_size=4))
    def write(self, end: int, sizes: list[int]) -> None:
        for size in sizes:
            if self.ends[end].writable:
                payload = len(self.written[end]).to_bytes(4, "big") + bytes(size)
                self.ends[end].write(payload)
                self.written[end].append(payload)

    @rule(end=st.integers(0, 1))
    def send(self, end: int) -> None:
        self.wires[end].extend(self.ends[end].frames())

    @rule(end=st.integers(0, 1), count=st.integers(1, 4))
    def deliver(self, end: int, count: int) -> None:
        for _ in range(min(count, len(self.wires[1 - end]))):
            self.ends[end].receive(self.wires[1 - end].pop(0))

    @rule(end=st.integers(0, 1), count=st.integers(1, 4))
    def take(self, end: int, count: int) -> None:
        for _ in range(count):
            message = self.ends[end].take()
            if message is not None:
                self.read[end].append(message.payload)

    @invariant()
    def what_came_is_a_beginning_of_what_went(self) -> None:
        for end in (0, 1):
            written = self.written[1 - end]
            assert self.read[end] == written[: len(self.read[end])]

    @invariant()
    def no_end_keeps_more_than_two_windows(self) -> None:
        for end in self.ends:
            assert sum(cost(k.payload) for k in end._unconfirmed) <= SMALL + cost(bytes(30_004))
            assert sum(cost(m.payload) for m in end._inbox) <= SMALL

    def teardown(self) -> None:
        if not hasattr(self, "ends"):
            return
        self.cut()
        while True:
            before = [len(each) for each in self.read]
            exchange(*self.ends)
            for end in (0, 1):
                self.read[end].extend(drained(self.ends[end]))
            exchange(*self.ends)
            if [len(each) for each in self.read] == before:
                break
        assert self.read[0] == self.written[1]
        assert self.read[1] == self.written[0]
        # Confirmations may wait while there is room, but never for more than a part of it.
        for end in self.ends:
            assert sum(cost(k.payload) for k in end._unconfirmed) <= SMALL // 2 + cost(
                bytes(30_004)
            )


TestCuts = Cuts.TestCase
