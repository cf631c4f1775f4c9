"""Processor time and memory of processes, as the benches count them."""

from __future__ import annotations

import os
import resource
import subprocess
import sys
from collections.abc import Iterator

import pytest

from bench.agent_memory import memory_of, sum_kb
from bench.measuring import Meter, family, family_processor_s, processor_s

_WORK = "sum(range(3_000_000)); print(__import__('time').process_time(), flush=True)"
_PARENT = f"""
import subprocess, sys
child = subprocess.Popen([sys.executable, "-c", {_WORK + "; input()"!r}], stdin=subprocess.PIPE)
sys.stdin.readline()
child.communicate(b"\\n")
print("ended", flush=True)
sys.stdin.readline()
"""


@pytest.fixture
def parent() -> Iterator[subprocess.Popen[str]]:
    """A process with a child that has worked; a line to it ends the child."""
    argv = [sys.executable, "-c", _PARENT]
    pipe = subprocess.PIPE
    with subprocess.Popen(argv, stdin=pipe, stdout=pipe, text=True) as process:
        try:
            yield process
        finally:
            process.kill()


def printed(process: subprocess.Popen[str]) -> str:
    assert process.stdout is not None
    return process.stdout.readline().strip()


def own_s() -> float:
    used = resource.getrusage(resource.RUSAGE_SELF)
    return used.ru_utime + used.ru_stime


def test_the_clock_of_a_process_is_its_processor_time() -> None:
    before = own_s()
    found = processor_s(os.getpid())
    # The kernel rounds one of them to microseconds.
    assert before - 1e-5 <= found <= own_s() + 1e-5


def test_a_child_counts_while_it_runs_and_after_it_has_ended(
    parent: subprocess.Popen[str],
) -> None:
    worked_s = float(printed(parent))
    assert len(family(parent.pid)) == 2
    running = family_processor_s(parent.pid)
    assert running >= worked_s
    assert parent.stdin is not None
    parent.stdin.write("\n")
    parent.stdin.flush()
    assert printed(parent) == "ended"
    assert family(parent.pid) == [parent.pid]
    # What has ended is counted in ticks of 10 ms, user and system apart.
    assert family_processor_s(parent.pid) >= running - 0.03


def test_a_meter_counts_from_its_making_by_name() -> None:
    meter = Meter({"own": os.getpid(), "other": os.getppid()})
    before = own_s()
    sum(range(500_000))
    worked = own_s() - before
    found = meter.used_s()
    assert set(found) == {"own", "other"}
    assert worked > 0
    assert worked <= found["own"] + 1e-5 <= own_s()


def test_fields_of_several_processes_are_summed() -> None:
    rows = ["Rss: 30 kB", "Pss: 10 kB", "Private_Clean: 1 kB", "Private_Dirty: 2 kB", "Pss: 5 kB"]
    assert sum_kb(rows, "Pss") == 15
    assert sum_kb(rows, "Private_Clean", "Private_Dirty") == 3


@pytest.mark.skipif(os.geteuid() != 0, reason="only root sees page frames")
def test_a_page_that_two_processes_share_counts_once(parent: subprocess.Popen[str]) -> None:
    printed(parent)
    pids = family(parent.pid)
    alone = [memory_of([pid]) for pid in pids]
    both = memory_of(pids)
    assert both.processes == 2
    assert max(each.resident for each in alone) < both.resident
    assert both.resident < sum(each.resident for each in alone)
    assert both.uss <= both.pss <= sum(each.resident for each in alone)
