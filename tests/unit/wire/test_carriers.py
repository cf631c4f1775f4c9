"""The short way of writing and reading frames agrees with protobuf's own."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lattice.domain.stream import CarrierLost
from lattice.wire.carriers import unwrapped, wrapped
from lattice.wire.v1.link_pb2 import Frame, StreamOpening

BODIES = st.binary(max_size=300) | st.integers(1, 70_000).map(bytes)


@given(BODIES)
def test_what_is_wrapped_is_a_frame(body: bytes) -> None:
    assert Frame.FromString(wrapped(body)) == Frame(body=body)


@given(BODIES)
def test_what_protobuf_writes_is_unwrapped(body: bytes) -> None:
    assert bytes(unwrapped(Frame(body=body).SerializeToString())) == body
    assert bytes(unwrapped(wrapped(body))) == body


@given(BODIES)
def test_a_frame_with_more_in_it_gives_its_body_too(body: bytes) -> None:
    frame = Frame(open=StreamOpening(node="n1"), body=body)
    assert bytes(unwrapped(frame.SerializeToString())) == body


@given(st.binary(max_size=40))
def test_any_bytes_are_a_frame_or_refused(message: bytes) -> None:
    try:
        found = bytes(unwrapped(message))
    except CarrierLost:
        return
    assert found == Frame.FromString(message).body


def test_garbage_is_refused() -> None:
    with pytest.raises(CarrierLost):
        unwrapped(b"\x12\xff")
