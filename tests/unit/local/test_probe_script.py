"""What the step in a job prints, and what becomes of it."""

from __future__ import annotations

import subprocess

import pytest

from lattice.domain.metric import Absence, MetricReading, Provenance, Sample
from lattice.local.probe_script import SCRIPT, ProbeSample, readings_of

NOW = 1.8e9

SEPARATE = """\
up 100.50
group 1
usage 2500000000
group 1
memory total_rss 1000
memory total_shmem 24
memory total_cache 524
memory hierarchical_memory_limit 9223372036854771712
io /proc/7/io:read_bytes: 4096
io /proc/7/io:write_bytes: 100
io /proc/8/io:read_bytes: 1
io /proc/8/io:write_bytes: 2
net Inter-|   Receive  |  Transmit
net  face |bytes packets errs drop fifo frame compressed multicast|bytes packets errs
net lo: 9 1 0 0 0 0 0 0 9 1 0 0 0 0 0 0
net eth0: 50 1 0 0 0 0 0 0 70 1 0 0 0 0 0 0
net br0: 5 1 0 0 0 0 0 0 7 1 0 0 0 0 0 0
device eth0
"""
UNIFIED = """\
up 100.50
group 2
cpu usage_usec 3000000
daemon usage_usec 1000000
memory anon 1000
memory shmem 24
memory file 524
events oom_kill 2
limit max
limit 4096
limit 8192
"""


def sample(text: str) -> ProbeSample:
    found = ProbeSample()
    for line in text.splitlines():
        found.add(line)
    return found


def measured(text: str, *, before: str = "", gpus: int | None = 0) -> dict[str, MetricReading]:
    earlier = sample(before) if before else None
    found = readings_of(earlier, sample(text), NOW, gpus=gpus)
    return {each.metric: each for each in found}


def values(found: dict[str, MetricReading]) -> dict[str, float]:
    return {name: each.value for name, each in found.items() if isinstance(each, Sample)}


def test_separate_hierarchies() -> None:
    found = measured(SEPARATE)
    assert values(found) == {
        "cpu_seconds_total": 2.5,
        "memory_used_bytes": 1024,
        "memory_cache_bytes": 500,
        "io_read_bytes_total": 4097,
        "io_write_bytes_total": 102,
        "network_rx_bytes_total": 50,
        "network_tx_bytes_total": 70,
    }
    sources = {each.source for each in found.values() if isinstance(each, Sample)}
    assert sources == {Provenance.IN_JOB_PROBE}
    received = found["network_rx_bytes_total"]
    assert isinstance(received, Sample)
    assert received.label("scope") == "node"


def test_one_hierarchy_without_slurms_own_processes() -> None:
    found = values(measured(UNIFIED))
    assert found["cpu_seconds_total"] == 2.0
    assert (found["memory_used_bytes"], found["memory_limit_bytes"]) == (1024, 4096)
    assert found["memory_oom_kills_total"] == 2


def test_processes_that_ended_take_nothing_back() -> None:
    after = SEPARATE.replace("/proc/8/", "/proc/9/").replace("4096", "5000")
    assert values(measured(after, before=SEPARATE))["io_read_bytes_total"] == 5000 + 1 + 1


@pytest.mark.spec("TRY-3", "SRC-2")
def test_what_was_not_printed_has_a_reason_and_no_number() -> None:
    found = measured("up 1.0")
    assert values(found) == {}
    assert all(isinstance(each, Absence) and each.reason for each in found.values())
    assert values(measured("up x\nusage -1\nmemory total_rss NaN\nnet nonsense\n\x1b")) == {}


def cards(*rows: str, visible: str = "0") -> dict[str, MetricReading]:
    lines = [f"visible {visible}", *(f"gpu {each}" for each in rows)]
    return measured("\n".join(lines), gpus=1)


def test_the_cards_of_the_job() -> None:
    found = cards("GPU-1, 50, 10, 100, 70.5, 40")
    assert values(found)["gpu_utilization_percent"] == 50
    assert values(found)["gpu_memory_used_bytes"] == 10 * 2**20
    assert values(found)["gpu_power_watts"] == 70.5
    found = cards("GPU-1, [N/A], 10, 100, 70.5, 40")
    utilization = found["gpu_utilization_percent"]
    assert isinstance(utilization, Absence)
    assert "[N/A]" in utilization.reason


@pytest.mark.spec("TRY-3", "SRC-2")
def test_cards_of_others_are_not_shown() -> None:
    rows = ("GPU-1, 50, 10, 100, 70, 40", "GPU-2, 99, 10, 100, 70, 40")
    assert values(cards(*rows)) == {}
    assert values(cards(*rows, visible="GPU-2"))["gpu_utilization_percent"] == 99


def test_a_broken_driver_is_quoted() -> None:
    found = cards("Failed to initialize NVML: Driver/library version mismatch")
    absence = found["gpu_utilization_percent"]
    assert isinstance(absence, Absence)
    assert "version mismatch" in absence.last_error
    assert values(cards()) == {}


def test_the_script_prints_a_sample_for_each_line_and_ends_with_its_input() -> None:
    done = subprocess.run(
        ["/bin/sh", "-c", SCRIPT, "lattice-top", "1"],
        input="\n\n",
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.stdout.splitlines().count("begin") == 2
    assert done.stdout.splitlines().count("end") == 2
    first = done.stdout.partition("begin\n")[2].partition("\nend")[0]
    assert sample(first).up_s > 0
    assert "network_rx_bytes_total" in measured(first)
