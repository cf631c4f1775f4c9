"""Frames are expanded to their announced size, and never to more."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lattice.base.packed_text import BadPackedText, can_expand, expanded
from lattice.base.zstd import zstd


@given(st.binary(max_size=2000))
def test_a_frame_is_expanded(text: bytes) -> None:
    assert can_expand()
    stored = zstd.compress(text)
    assert expanded(stored, len(text)) == text
    assert expanded(memoryview(stored), len(text)) == text


@pytest.mark.parametrize("claimed", [0, 99, 101, 10_000_000])
def test_another_size_is_refused(claimed: int) -> None:
    with pytest.raises(BadPackedText):
        expanded(zstd.compress(bytes(100)), claimed)


@pytest.mark.parametrize(
    "stored",
    [
        b"",
        b"nothing",
        zstd.compress(bytes(100))[:-1],
        zstd.compress(bytes(100)) + b"x",
        zstd.compress(bytes(100)) * 2,
        zstd.compress(bytes(50_000_000)),
    ],
    ids=["empty", "no frame", "cut", "longer", "twice", "bomb"],
)
def test_what_is_not_one_frame_of_that_size_is_refused(stored: bytes) -> None:
    with pytest.raises(BadPackedText):
        expanded(stored, 100)


def test_a_frame_that_claims_a_large_window_is_refused() -> None:
    options = {zstd.CompressionParameter.window_log: 27}
    packing = zstd.ZstdCompressor(options=options)
    stored = packing.compress(b"a" * 50) + packing.compress(b"b" * 50)
    stored += packing.flush(zstd.ZstdCompressor.FLUSH_FRAME)
    with pytest.raises(BadPackedText):
        expanded(stored, 100)
