"""Sparklines and bars: one scale for all, and nothing drawn that nobody measured."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lattice.features.top.render.spark import GPU, HOST, NO_DATA, Ramp, bar, level, spark

SHARES = st.floats(0, 100, allow_nan=False)
POINTS = st.lists(st.tuples(st.floats(0, 1e6), SHARES), max_size=80).map(
    lambda points: sorted(dict(points).items())
)
RAMPS = st.sampled_from([GPU, HOST])


def text(pieces: list[tuple[str, str]]) -> str:
    return "".join(each for each, _ in pieces)


@pytest.mark.spec("SRC-2")
def test_no_data_is_spelled_out() -> None:
    assert text(spark([], 12, GPU)) == f"{NO_DATA}     "
    assert text(spark([], 4, GPU)) == NO_DATA[:4]


@pytest.mark.parametrize("value", [math.nan, math.inf])
@pytest.mark.spec("SRC-2")
def test_what_is_no_number_has_no_height(value: float) -> None:
    with pytest.raises(ValueError, match="not measured"):
        spark([(1.0, value)], 5, GPU)


@pytest.mark.spec("TOP-3")
@given(POINTS, st.integers(1, 60), RAMPS, st.booleans())
def test_it_is_as_wide_as_asked_and_never_a_full_block(
    points: list[tuple[float, float]], width: int, ramp: Ramp, glyphs: bool
) -> None:
    shown = text(spark(points, width, ramp, glyphs=glyphs))
    assert len(shown) == width
    assert not set(shown) & {"█", "⣿"}
    if not glyphs:
        assert shown.isascii()


@pytest.mark.spec("TOP-3")
@given(POINTS.filter(bool), st.integers(1, 60), RAMPS)
def test_the_last_cell_is_the_newest_value(
    points: list[tuple[float, float]], width: int, ramp: Ramp
) -> None:
    assert text(spark(points, width, ramp))[-1] == ramp.glyphs[level(points[-1][1], ramp)]


@pytest.mark.spec("TOP-3")
@given(st.floats(0, 100), st.floats(1, 100), RAMPS)
def test_the_scale_is_fixed(low: float, times: float, ramp: Ramp) -> None:
    """A quiet line stays low, whatever else is in it: the same share is the same height."""
    quiet = [(float(each), low / 100) for each in range(20)]
    loud = [*((float(each), low) for each in range(19)), (19.0, min(100.0, low / 100 * times))]
    assert set(text(spark(quiet, 20, ramp))) == {ramp.glyphs[0]}
    assert text(spark(loud, 20, ramp))[0] == ramp.glyphs[level(low, ramp)]


@pytest.mark.spec("TOP-3")
def test_a_cell_is_as_high_as_its_peak_and_its_colour_follows_the_mean() -> None:
    burst = [(float(each), 100.0 if each == 5 else 0.0) for each in range(101)]
    cells = spark(burst, 11, GPU)
    (peak,) = [each for each in cells if each[0] == GPU.glyphs[-1]]
    assert peak[1] == GPU.colours[0]
    assert {each[0] for each in cells} == {GPU.glyphs[-1], GPU.glyphs[0]}


@pytest.mark.spec("SRC-2")
def test_a_time_in_which_nothing_was_measured_is_blank() -> None:
    points = [*((float(each), 50.0) for each in range(10)), (30.0, 50.0), (31.0, 50.0)]
    shown = text(spark(points, 32, GPU))
    assert " " * 15 in shown
    assert shown[-1] != " "


@pytest.mark.spec("TOP-3")
def test_a_short_past_stands_at_the_right() -> None:
    shown = text(spark([(0.0, 50.0), (5.0, 50.0), (10.0, 50.0)], 20, GPU))
    assert shown.strip() == shown[-3:]
    assert " " not in shown[-3:]


def test_gpus_and_hosts_look_different() -> None:
    assert not set(GPU.glyphs) & set(HOST.glyphs)
    assert not set(GPU.plain) & set(HOST.plain)
    assert not set(GPU.colours) & set(HOST.colours)


@given(st.none() | st.floats(0, 400), st.integers(0, 40), RAMPS, st.booleans())
def test_a_bar_never_leaves_its_room(
    share: float | None, width: int, ramp: Ramp, glyphs: bool
) -> None:
    shown = text(bar(share, width, ramp, glyphs=glyphs))
    assert len(shown) == width
    if share is None:
        assert shown.strip() == ""


def test_a_bar_is_full_at_a_hundred() -> None:
    assert text(bar(100.0, 10, GPU)) == "━" * 10
    assert text(bar(0.0, 10, GPU, glyphs=False)) == "-" * 10
    assert text(bar(50.0, 10, HOST, glyphs=False)) == "#####-----"
