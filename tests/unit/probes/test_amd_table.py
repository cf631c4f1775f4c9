"""The firmware's table of an AMD card: any bytes are a table, and a blank is never a number."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lattice.probes.amd_table import (
    HEAT,
    POWER_CAP,
    MetricsTable,
    Residency,
    ThrottleMeter,
    active,
    link_bytes_s,
    read_table,
)

RELEASES = (24, 25, 26, 27)


@pytest.mark.spec("SRC-2")
@pytest.mark.parametrize("release", RELEASES)
def test_a_table_of_blanks_has_nothing(release: int) -> None:
    assert read_table(b"\xff" * 4096, release) == MetricsTable()


@pytest.mark.spec("SRC-2")
def test_the_table_of_another_release_is_not_read() -> None:
    assert [read_table(bytes(4096), each) for each in (0, 23, 28)] == [None] * 3


@pytest.mark.spec("SRC-2")
@given(st.binary(max_size=600), st.sampled_from(RELEASES))
def test_any_bytes_are_a_table(raw: bytes, release: int) -> None:
    table = read_table(raw + b"\xff" * 600, release)
    assert table is not None
    meter = ThrottleMeter()
    if table.residency is not None:
        assert table.residency.cycles > 0
        assert meter.shares("a", table.residency) is None
    if table.active is not None:
        assert table.active.keys() == HEAT | {POWER_CAP}
    assert table.xgmi_bytes is None or table.xgmi_bytes >= 0
    assert table.xgmi_link_bytes_s is None or table.xgmi_link_bytes_s > 0


@given(st.integers(0, 2**64 - 1))
def test_the_hotspot_and_the_limits_of_current_slow_no_card_down(bits: int) -> None:
    unused = 1 << 36 | 0xFF << 16
    assert active(bits) == active(bits & ~unused) == active(bits | unused)


@pytest.mark.spec("SRC-2")
def test_a_link_without_speed_or_lanes_has_no_capacity() -> None:
    assert link_bytes_s(32, 16) == 64e9
    assert [link_bytes_s(*each) for each in ((0, 16), (32, 0), (None, 16), (32, 999))] == [None] * 4


def test_shares_are_of_the_time_between_two_readings_of_one_card() -> None:
    meter = ThrottleMeter()
    assert meter.shares("a", Residency(100, {POWER_CAP: 7})) is None
    assert meter.shares("b", Residency(500, {POWER_CAP: 0})) is None
    assert meter.shares("a", Residency(300, {POWER_CAP: 57})) == {POWER_CAP: 0.25}
    # The same table again has the same shares.
    assert meter.shares("a", Residency(300, {POWER_CAP: 57})) == {POWER_CAP: 0.25}
    # A card that was reset begins anew.
    assert meter.shares("a", Residency(10, {POWER_CAP: 1})) is None
    assert meter.shares("a", Residency(20, {POWER_CAP: 1})) == {POWER_CAP: 0.0}
