"""What two ends of a terminal say: written and read back, and nothing else is understood."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lattice.domain.terminal import (
    LARGEST_SIDE,
    BadMessage,
    EndCause,
    Errors,
    Exit,
    Output,
    Resize,
    Signal,
    Started,
    Stdin,
    StdinEnd,
    TerminalMessage,
    TerminalSignal,
    read_message,
    write_message,
)

_SIDE = st.integers(1, LARGEST_SIDE)
_MESSAGES: st.SearchStrategy[TerminalMessage] = st.one_of(
    st.builds(Stdin, st.binary()),
    st.builds(Output, st.binary()),
    st.builds(Errors, st.binary()),
    st.just(StdinEnd()),
    st.builds(Resize, _SIDE, _SIDE),
    st.builds(Signal, st.sampled_from(TerminalSignal)),
    st.builds(
        Started,
        node=st.text(),
        user=st.text(),
        step=st.text(),
        pid=st.integers(),
        directory=st.text(),
        accounted=st.booleans(),
        warnings=st.lists(st.text()).map(tuple),
    ),
    st.builds(
        Exit,
        cause=st.sampled_from(EndCause),
        code=st.none() | st.integers(0, 255),
        words=st.text(),
    ),
)


@pytest.mark.spec("ATTACH-2")
@given(_MESSAGES)
def test_what_is_written_is_read(message: TerminalMessage) -> None:
    read = read_message(write_message(message))
    assert (type(read), read) == (type(message), message)


@given(st.binary())
def test_anything_else_is_a_bad_message_and_nothing_worse(payload: bytes) -> None:
    try:
        message = read_message(payload)
    except BadMessage:
        return
    read = read_message(write_message(message))
    assert (type(read), read) == (type(message), message)


@pytest.mark.parametrize(
    "payload",
    [
        b"",
        b"\xff",
        b"\x01x",
        b"\x02\x00\x18",
        b"\x02\x00\x00\x00\x50",
        b"\x02\xff\xff\x00\x50",
        b"\x03KILL",
        b'\x13{"cause":"bored","code":0,"words":""}',
        b'\x13{"cause":"exited","code":true,"words":""}',
        b'\x13{"cause":"exited","code":0,"words":"","more":1}',
        b'\x10{"node":1}',
    ],
)
def test_near_misses(payload: bytes) -> None:
    with pytest.raises(BadMessage):
        read_message(payload)
