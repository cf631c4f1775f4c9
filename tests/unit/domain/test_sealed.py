"""Sealed objects and parts: they open under their own name alone, whole, and in ranges."""

from __future__ import annotations

import os

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lattice.domain.sealed import (
    FOOT_BYTES,
    PART_OVERHEAD_BYTES,
    SEGMENT_BYTES,
    BadSealed,
    DataKey,
    Foot,
    SealedRange,
    binding,
    open_object,
    open_part,
    plain_bytes,
    seal_object,
    seal_part,
    sealed_bytes,
)

KEY = DataKey.new()
NAME = binding("lab", "tenant/project/42/logs/1-1/stdout/n1/chunk_000001.log.zst")
SIZES = (0, 1, 1000, SEGMENT_BYTES - 1, SEGMENT_BYTES, SEGMENT_BYTES + 1, 3 * SEGMENT_BYTES)


@pytest.mark.parametrize("size", SIZES)
def test_an_object_opens_as_it_was(size: int) -> None:
    text = os.urandom(size)
    sealed = seal_object(KEY, NAME, text)
    assert len(sealed) == sealed_bytes(size)
    assert plain_bytes(len(sealed)) == size
    assert open_object(KEY, NAME, sealed) == text
    assert not text or text[:64] not in sealed or size < 8


@given(st.integers(min_value=0, max_value=40 * SEGMENT_BYTES))
def test_the_size_of_a_text_follows_from_that_of_its_object(size: int) -> None:
    assert plain_bytes(sealed_bytes(size)) == size


@given(st.integers(min_value=0, max_value=40 * SEGMENT_BYTES))
def test_a_size_that_no_object_has_is_named(size: int) -> None:
    found = plain_bytes(size)
    assert found == -1 or sealed_bytes(found) == size


TEXT = os.urandom(3 * SEGMENT_BYTES + 77)
SEALED = seal_object(KEY, NAME, TEXT)
OFFSETS = st.one_of(
    st.integers(min_value=0, max_value=len(TEXT) + 10),
    st.sampled_from([each * SEGMENT_BYTES + d for each in range(4) for d in (0, 1, 2)]),
)


@given(begin=OFFSETS, end=OFFSETS)
def test_any_range_opens_from_its_segments_alone(begin: int, end: int) -> None:
    foot = Foot.parse(SEALED[-FOOT_BYTES:], len(SEALED))
    wanted = SealedRange.of(foot.plain_bytes, begin, end)
    stored = SEALED[wanted.begin : wanted.end]
    assert wanted.open(KEY, NAME, foot, stored) == TEXT[begin:end]
    assert wanted.end - wanted.begin <= max(0, end - begin) + 2 * (SEGMENT_BYTES + 16)


@given(at=st.integers(min_value=0, max_value=8 * len(SEALED) - 1))
def test_one_changed_bit_is_refused(at: int) -> None:
    changed = bytearray(SEALED)
    changed[at // 8] ^= 1 << at % 8
    with pytest.raises(BadSealed):
        open_object(KEY, NAME, bytes(changed))


def test_a_cut_or_grown_object_is_refused() -> None:
    segment = SEGMENT_BYTES + 16
    foot = SEALED[-FOOT_BYTES:]
    for each in (
        SEALED[:-1],
        SEALED[segment:],
        SEALED[:segment] + foot,
        SEALED[: 3 * segment] + foot,
        SEALED[:segment] + SEALED,
        foot,
        b"",
        TEXT,
    ):
        with pytest.raises(BadSealed):
            open_object(KEY, NAME, each)


def test_a_foot_with_the_size_of_a_cut_object_opens_nothing() -> None:
    """The last segment shows that it is the last, and the size is in the associated data."""
    segment = SEGMENT_BYTES + 16
    true = Foot.parse(SEALED[-FOOT_BYTES:], len(SEALED))
    forged = Foot(true.salt, true.key_id, 2 * SEGMENT_BYTES).encode()
    with pytest.raises(BadSealed, match="changed, or belongs elsewhere"):
        open_object(KEY, NAME, SEALED[: 2 * segment] + forged)


def test_swapped_segments_are_refused() -> None:
    segment = SEGMENT_BYTES + 16
    swapped = SEALED[segment : 2 * segment] + SEALED[:segment] + SEALED[2 * segment :]
    with pytest.raises(BadSealed, match="changed, or belongs elsewhere"):
        open_object(KEY, NAME, swapped)


def test_an_object_under_another_name_or_key_is_refused() -> None:
    with pytest.raises(BadSealed, match="changed, or belongs elsewhere"):
        open_object(KEY, binding("lab", "another"), SEALED)
    with pytest.raises(BadSealed, match="another key"):
        open_object(DataKey.new(), NAME, SEALED)
    with pytest.raises(BadSealed, match="changed, or belongs elsewhere"):
        open_object(DataKey(KEY.id, bytes(32)), NAME, SEALED)


def test_a_part_opens_under_its_own_name_alone() -> None:
    part = seal_part(KEY, NAME, b"one frame")
    assert len(part) == len(b"one frame") + PART_OVERHEAD_BYTES
    assert open_part(KEY, NAME, part) == b"one frame"
    for key, name, sealed in (
        (KEY, binding("another"), part),
        (DataKey.new(), NAME, part),
        (KEY, NAME, part[:-1]),
        (KEY, NAME, part[1:]),
        (KEY, NAME, part[:10]),
        (KEY, NAME, bytes([part[0] ^ 1]) + part[1:]),
    ):
        with pytest.raises(BadSealed):
            open_part(key, name, sealed)


def test_a_part_is_no_object() -> None:
    part = seal_part(KEY, NAME, bytes(sealed_bytes(0)))
    with pytest.raises(BadSealed):
        open_object(KEY, NAME, part)


def test_nothing_is_sealed_twice_alike() -> None:
    assert len({seal_part(KEY, NAME, b"text") for _ in range(2000)}) == 2000
    assert len({seal_part(KEY, NAME, b"text")[:24] for _ in range(2000)}) == 2000
    assert seal_object(KEY, NAME, b"text") != seal_object(KEY, NAME, b"text")


@given(st.lists(st.text(max_size=5), max_size=4), st.lists(st.text(max_size=5), max_size=4))
def test_two_lists_of_parts_have_two_names(first: list[str], second: list[str]) -> None:
    assert (binding(*first) == binding(*second)) == (first == second)


def test_a_key_does_not_print_its_secret() -> None:
    assert KEY.secret.hex() not in repr(KEY)
    assert str(KEY.secret) not in repr(KEY)
    assert KEY.digest_key() not in {KEY.secret, KEY.id}
