from __future__ import annotations

import contextlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lattice.base.events import ALIVE, BadEvents, Event, EventReader


def read(*pieces: bytes) -> list[Event]:
    reader = EventReader()
    return [event for piece in pieces for event in reader.feed(piece)]


def test_events_comments_and_ids() -> None:
    body = b': hello\n\nevent: lines\nid: c1\ndata: {"a":\ndata: 1}\n\nretry: 5\ndata:x\r\n\r\n\n'
    assert read(body) == [
        ALIVE,
        Event("lines", b'{"a":\n1}', "c1"),
        Event("message", b"x", ""),
    ]


def test_an_event_that_is_not_whole_is_none() -> None:
    assert read(b"event: lines\ndata: {}\n") == []
    assert read(b"event: lines\ndata: {}\n", b"\n") == [Event("lines", b"{}", "")]


words = st.sampled_from(
    [
        b"event: a\n",
        b"data: x\n",
        b"id: 7\n",
        b"\n",
        b": c\n",
        b"\r\n",
        b"data",
        b":",
        b"\xff",
        b"\r",
    ]
)


@given(st.lists(words, max_size=30).map(b"".join), st.lists(st.integers(1, 9), max_size=40))
def test_how_the_bytes_come_makes_no_difference(body: bytes, steps: list[int]) -> None:
    pieces, at = [], 0
    for step in steps:
        pieces.append(body[at : at + step])
        at += step
    assert read(*pieces, body[at:]) == read(body)


@given(st.binary(max_size=300))
def test_any_bytes_are_read_or_refused(body: bytes) -> None:
    with contextlib.suppress(BadEvents):
        for event in read(body, b"\n\n"):
            assert isinstance(event.data, bytes)


@pytest.mark.parametrize("piece", [b"data: " + b"x" * 600, b"x" * 600, b"data: xxxxxxxx\n" * 80])
def test_what_is_held_is_bounded(piece: bytes) -> None:
    reader = EventReader(limit_bytes=500)
    with pytest.raises(BadEvents):
        list(reader.feed(piece))


def test_many_small_events_do_not_add_up() -> None:
    reader = EventReader(limit_bytes=500)
    for _ in range(100):
        assert len(list(reader.feed(b"data: xxxxxxxxxxxxxxxxxxxx\n\n"))) == 1
