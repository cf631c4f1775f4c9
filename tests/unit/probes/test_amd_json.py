"""What `amd-smi` prints: releases differ, and what can't be read is no number."""

from __future__ import annotations

import json
from typing import Any

import pytest

from lattice.probes.amd_json import (
    BadAmdAnswer,
    figures_of,
    read_cards,
    replays_of,
    table_of,
    text_of,
)
from lattice.probes.amd_table import Residency


def usage(value: Any) -> dict[str, float]:
    return figures_of({"usage": {"gfx_activity": value}}, {})


@pytest.mark.parametrize(
    "document",
    [
        [{"gpu": 0, "bdf": "a"}, {"gpu": 1}],
        {"gpu_data": [{"gpu": 0, "bdf": "a"}, {"gpu": 1}]},
        {"xgmi_metric": [[{"gpu": 0, "bdf": "a"}, {"gpu": 1}]]},
    ],
)
def test_cards_are_found_wherever_a_release_puts_them(document: Any) -> None:
    found = read_cards(b"WARNING: not in the group render\n" + json.dumps(document).encode())
    assert found.keys() == {0, 1}
    assert text_of(found[0], ("bdf",)) == "a"
    assert text_of(found[1], ("bdf",)) == ""


def test_an_error_is_told_in_its_own_text() -> None:
    with pytest.raises(BadAmdAnswer, match="Command not supported"):
        read_cards(b'{"error": "Command not supported", "code": -1002}')
    for each in (b"", b"Traceback", b"\xff", b"[" * 5000, b'[{"gpu": 0}'):
        with pytest.raises(BadAmdAnswer):
            read_cards(each)


@pytest.mark.spec("SRC-2")
@pytest.mark.parametrize("value", [{"value": 73, "unit": "%"}, "73 %", "73%", "73.0 %"])
def test_a_value_with_its_unit_however_it_is_written(value: Any) -> None:
    assert usage(value) == {"gpu_utilization_percent": 73}


@pytest.mark.spec("SRC-2")
@pytest.mark.parametrize(
    "value",
    ["N/A", None, "", 73, "73", "73 W", {"value": "N/A", "unit": "%"}, {"value": 73}, [73], True,
     {"value": True, "unit": "%"}, {"value": -1, "unit": "%"}, "1e3 %", {"value": 73, "unit": 1}],
)  # fmt: skip
def test_what_has_no_value_or_another_unit_is_no_number(value: Any) -> None:
    assert usage(value) == {}


def test_units_are_turned_into_those_of_the_catalogue() -> None:
    found = figures_of(
        {
            "mem_usage": {"used_vram": {"value": 2, "unit": "GB"}, "total_vram": "3072 MB"},
            "power": {"socket_power": "N/A", "average_socket_power": "90500 mW"},
            "clock": {"gfx_0": {"clk": "N/A"}, "gfx": {"clk": "2.1 GHz"}},
            "temperature": {"hotspot": "N/A", "edge": "51 °C"},
        },
        {"limit": {"ppt0": {"socket_power_limit": {"value": 750, "unit": "W"}}}},
    )
    assert found == {
        "gpu_memory_used_bytes": 2 * 2**30,
        "gpu_memory_total_bytes": 3 * 2**30,
        "gpu_power_watts": 90.5,
        "gpu_power_limit_watts": 750,
        "gpu_clock_sm_hertz": 2.1e9,
        "gpu_temperature_celsius": 51,
    }


def test_counts_are_plain_numbers() -> None:
    assert replays_of({"pcie": {"replay_count": 5}}) == 5
    assert replays_of({"pcie": {"replay_count": "N/A"}}) is None


@pytest.mark.spec("SRC-2")
def test_throttling_and_xgmi_are_unknown_where_nothing_is_printed() -> None:
    for metric in ({}, {"throttle": "N/A"}, {"throttle": {"accumulation_counter": 0}}):
        table = table_of(metric, {"link_metrics": {"links": [{"read": "N/A", "write": "N/A"}]}})
        assert (table.residency, table.xgmi_bytes, table.xgmi_link_bytes_s) == (None, None, None)
    counted = {"accumulation_counter": 9, "ppt_accumulated": 4, "hbm_thermal_accumulated": "N/A"}
    assert table_of({"throttle": counted}, {}).residency == Residency(9, {"sw_power_cap": 4})


def test_the_number_of_lanes_is_not_taken_for_a_bandwidth() -> None:
    def capacity(bandwidth: int) -> float | None:
        link = {
            "bit_rate": {"value": 32, "unit": "Gb/s"},
            "max_bandwidth": {"value": bandwidth, "unit": "Gb/s"},
        }
        return table_of({}, {"link_metrics": link}).xgmi_link_bytes_s

    assert capacity(512) == 64e9
    assert capacity(16) is None
