"""A guest's report: strict to read, and checked against the host."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lattice.domain.guest_report import (
    MOST_BYTES,
    BadReport,
    ExpectedCards,
    GuestGpu,
    GuestReport,
    HostSide,
    checked,
    read_report,
    readings_of,
)
from lattice.domain.metric import Absence, Sample

GUEST_BOOT = "00000000-0000-0000-0000-000000000001"
HOST = HostSide(boot_id="00000000-0000-0000-0000-00000000000f", memory_bytes=1e12)
GIB = 2**30
GOOD: dict[str, Any] = {
    "version": 1,
    "boot_id": GUEST_BOOT,
    "gpu": {"cards": [{"uuid": "GPU-1", "figures": {"gpu_power_watts": 300}}]},
    "figures": {"cpu_cores": 8, "memory_used_bytes": None},
    "nics": [{"name": "mlx5_0/1", "kind": "rdma", "up": True, "speed_bits": 4e11}],
}


def gpu(uuid: str = "GPU-1", **figures: float) -> GuestGpu:
    return GuestGpu(uuid=uuid, figures=figures)


def report(*gpus: GuestGpu, **figures: float) -> GuestReport:
    return GuestReport(boot_id=GUEST_BOOT, gpus=gpus, figures=figures)


@pytest.mark.spec("SLICE-1")
def test_a_report_is_read() -> None:
    found = read_report(json.dumps(GOOD).encode())
    assert found.gpus == (gpu(gpu_power_watts=300.0),)
    assert found.figures == {"cpu_cores": 8.0}
    assert (found.nics[0].name, found.nics[0].speed_bits) == ("mlx5_0/1", 4e11)


@pytest.mark.spec("SRC-2")
@pytest.mark.parametrize(
    "change",
    [
        {"version": 2},
        {"boot_id": "x"},
        {"boot_id": None},
        {"figures": {"cpu_cores": "8"}},
        {"figures": {"cpu_cores": -1}},
        {"figures": {"cpu_cores": True}},
        {"figures": []},
        {"gpu": {"cards": [{"uuid": "GPU-1\x1b"}]}},
        {"gpu": {"cards": [{"uuid": "GPU-1"}] * 65}},
        {"nics": [{"name": "eth0", "kind": "other", "up": True}]},
        {"nics": [{"name": "eth0", "kind": "rdma", "up": 1}]},
    ],
    ids=lambda change: json.dumps(change)[:40],
)
def test_what_is_no_report_is_refused(change: dict[str, Any]) -> None:
    with pytest.raises(BadReport):
        read_report(json.dumps(GOOD | change).encode())


@pytest.mark.spec("SRC-2")
def test_a_report_that_is_too_long_is_refused() -> None:
    with pytest.raises(BadReport):
        read_report(json.dumps(GOOD).encode() + b" " * MOST_BYTES)


@given(st.binary(max_size=300))
def test_any_bytes_are_a_report_or_refused(raw: bytes) -> None:
    try:
        read_report(raw)
    except BadReport:
        return


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner),
    max_leaves=8,
)


@given(st.sampled_from(sorted(GOOD)), json_values)
def test_any_part_is_read_or_refused(name: str, value: Any) -> None:
    try:
        read_report(json.dumps(GOOD | {name: value}).encode())
    except BadReport:
        return


@pytest.mark.spec("SRC-3")
@pytest.mark.parametrize(
    ("found", "expected", "held", "refused"),
    [
        (gpu(), ExpectedCards(), (), ""),
        (gpu(), ExpectedCards(), ("GPU-1",), "the driver of the host serves this card"),
        (gpu(), ExpectedCards(uuids=("GPU-2",)), (), "this card was not given to the slice"),
        (
            gpu(gpu_memory_total_bytes=80 * GIB),
            ExpectedCards(memory_bytes=20 * GIB),
            (),
            "the card has 80 GiB instead of the 20 of the slice",
        ),
        (gpu(gpu_memory_total_bytes=80 * GIB), ExpectedCards(memory_bytes=80 * GIB), (), ""),
        (
            gpu(gpu_memory_total_bytes=20 * GIB, gpu_memory_used_bytes=30 * GIB),
            ExpectedCards(),
            (),
            "more memory is in use than the card has in the guest",
        ),
    ],
    ids=["own", "held", "foreign", "whole card", "its memory", "more than all"],
)
def test_numbers_that_only_the_host_has_are_refused(
    found: GuestGpu, expected: ExpectedCards, held: tuple[str, ...], refused: str
) -> None:
    host = HostSide(
        boot_id=HOST.boot_id, memory_bytes=HOST.memory_bytes, held_cards=frozenset(held)
    )
    result = checked(report(found), host, expected)
    assert refused in result.refused.get("GPU-1", "")
    assert bool(refused) == bool(result.refused)
    samples = [each for each in readings_of([result], 1.7e9).readings if isinstance(each, Sample)]
    assert bool(refused) <= (not samples)


@pytest.mark.spec("SRC-3")
def test_a_report_of_the_host_is_refused_whole() -> None:
    same_boot = GuestReport(boot_id=HOST.boot_id, gpus=(gpu(gpu_power_watts=300),))
    same_memory = report(gpu(gpu_power_watts=300), memory_limit_bytes=1e12)
    for each in (same_boot, same_memory):
        result = checked(each, HOST, ExpectedCards())
        assert result.report is None
        assert all(isinstance(found, Absence) for found in readings_of([result], 1.7e9).readings)


@pytest.mark.spec("SLICE-1")
def test_faults_of_a_guest_are_named() -> None:
    lost = GuestGpu(uuid="GPU-1", lost="GPU is lost")
    result = checked(report(lost), HOST, ExpectedCards(count=2))
    assert result.faults == (
        "GPU-1 is lost (GPU is lost)",
        "1 GPUs in the guest instead of 2",
    )
    twice = checked(report(gpu(), gpu()), HOST, ExpectedCards())
    assert twice.refused == {"GPU-1": "two cards have this UUID"}
