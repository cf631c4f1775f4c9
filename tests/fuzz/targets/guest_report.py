"""The report of the guest of a GPU slice, which belongs to the owner of the job.

- Any bytes are a report or `BadReport`; no other exception escapes.
- A report gives readings for every metric of the catalogue, all of them from the guest.
- Nothing in them moves a terminal's cursor.
- With the host's boot id no number is left.
"""

from __future__ import annotations

import json
from collections.abc import Iterable

from lattice.domain.guest_report import (
    BadReport,
    ExpectedCards,
    HostSide,
    checked,
    read_report,
    readings_of,
)
from lattice.domain.metric import CATALOGUE, Provenance, Sample

BOOT = "00000000-0000-0000-0000-000000000001"
HOST = HostSide(boot_id="00000000-0000-0000-0000-00000000000f", memory_bytes=1e15)
TOKENS = (
    b'"version":1',
    b'"boot_id"',
    b'"machine":{"vcpus":{"value":8}}',
    b'"uptime_seconds":1',
    BOOT.encode(),
    b'"gpu"',
    b'"cards"',
    b'"uuid":"GPU-1"',
    b'"figures"',
    b'"gpu_power_watts":300',
    b'"failed"',
    b'"throttled":["sw_thermal"]',
    b'"lost":"x"',
    b'"nics"',
    b'"kind":"rdma"',
    b'"up":true',
    b'"memory_limit_bytes":1e12',
    b"NaN",
    b"1e999",
    b"-1",
    b"null",
    b"\\u001b",
)


def seeds() -> Iterable[bytes]:
    card = {"uuid": "GPU-1", "figures": {"gpu_power_watts": 300}, "throttled": []}
    port = {"name": "eth0", "kind": "ethernet", "up": True, "speed_bits": 1e10}
    whole = {
        "version": 1,
        "boot_id": BOOT,
        "gpu": {"cards": [card], "reason": "", "last_error": ""},
        "figures": {"cpu_cores": 8, "memory_limit_bytes": 2**30},
        "nics": [port],
    }
    yield json.dumps(whole).encode()
    yield json.dumps(whole | {"gpu": {"reason": "why", "last_error": "text"}}).encode()
    yield json.dumps(whole | {"nics": [], "figures": {}}).encode()
    for gpu in (
        card | {"lost": "GPU is lost", "figures": {}},
        card | {"throttled": None, "failed": {"gpu_power_watts": "Not Supported"}},
        card | {"figures": {"gpu_memory_total_bytes": 1, "gpu_memory_used_bytes": 2}},
        card | {"figures": {"gpu_utilization_percent": 200}},
        card | {"uuid": ""},
    ):
        yield json.dumps(whole | {"gpu": {"cards": [gpu, card]}}).encode()
    yield json.dumps(whole | {"version": 2}).encode()
    yield json.dumps(whole | {"nics": [port | {"kind": "rdma", "up": 1}]}).encode()
    machine = {"vcpus": {"value": 8}, "kernel": {"value": "6.1"}, "rdma": {"reason": "none"}}
    yield json.dumps(whole | {"machine": machine, "uptime_seconds": 41.5}).encode()
    for fact in ({"value": "8"}, {"value": -1}, {}, 7, {"value": None, "reason": "\x1b[2J"}):
        yield json.dumps(whole | {"machine": machine | {"vcpus": fact}}).encode()
    yield b'{"version":1,"version":1}'


def try_one(data: bytes) -> None:
    try:
        report = read_report(data)
    except BadReport:
        return
    found = checked(report, HOST, ExpectedCards(count=1))
    readings = readings_of([found], 1.7e9).readings
    assert {each.metric for each in readings} == set(CATALOGUE)
    for each in readings:
        if isinstance(each, Sample):
            assert each.source is Provenance.SLICE_GUEST
        else:
            assert each.reason
            assert (each.reason + each.last_error).isprintable()
    assert all(text.isprintable() for text in found.faults)
    assert all((each.text + each.reason).isprintable() for each in report.facts)
    same = HostSide(boot_id=report.boot_id)
    none = readings_of([checked(report, same, ExpectedCards())], 1.7e9).readings
    assert not any(isinstance(each, Sample) for each in none)
