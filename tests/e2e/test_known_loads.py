"""Jobs that know what they use, and what Lattice measured of them: within 5 %."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from lab.laboratory import Lab
from tests.e2e.measured import Load, Measured, now
from tests.e2e.people import Person, eventually

pytestmark = [pytest.mark.lab, pytest.mark.spec("TOP-1", "TOP-2", "SRC-2")]

MB = 1 << 20
CLOSE = pytest.approx


@pytest.fixture
def measured(lab: Lab, alice: Person) -> Measured:
    return Measured(lab, alice)


@pytest.fixture
def debug(alice: Person) -> Iterator[list[int]]:
    """Jobs that are measured every second, and cancelled in the end."""
    jobs: list[int] = []
    yield jobs
    for job in jobs:
        alice.lab.run_as("alice", ["scancel", str(job)])


def _start(lab: Lab, alice: Person, debug: list[int], *words: str, wrap: str) -> int:
    job = lab.sbatch("alice", *words, wrap=wrap)
    debug.append(job)
    lab.wait_job_state(job, "RUNNING")
    said = eventually(
        lambda: alice.tries("telemetry", "--alloc", str(job), "--mode", "debug"),
        lambda said: said.code == 0,
    )
    assert said.code == 0, said
    return job


def test_a_core_and_a_half(lab: Lab, alice: Person, measured: Measured, debug: list[int]) -> None:
    """Against getrusage of the load itself, and against what sacct says of the job."""
    load = Load(lab, "burner", "processor", 1.5, 15)
    job = _start(lab, alice, debug, "-w", "n1", wrap=load.command)
    told = load.told()["processor_s"]
    assert told > 3, "enough for it to be a load, however busy the machine"
    seen = measured.newest("cpu_seconds_total", job, now())
    assert seen == CLOSE(told, rel=0.05)
    load.let_go()
    lab.wait_job_state(job, "COMPLETED")
    accounted = eventually(lambda: _sacct_cpu_s(lab, job), lambda seconds: seconds > 0)
    assert seen == CLOSE(accounted, rel=0.05)


def _sacct_cpu_s(lab: Lab, job: int) -> float:
    said = lab.ctl(["sacct", "-n", "-P", "-j", str(job), "-o", "JobID,TotalCPU"]).stdout
    rows = dict(line.split("|") for line in said.splitlines() if "|" in line)
    *larger, seconds = rows.get(f"{job}.batch", "0").split(":")
    whole = sum(int(each) * 60**place for place, each in enumerate(reversed(larger), 1))
    return whole + float(seconds or 0)


def test_memory_and_page_cache_are_two_things(
    lab: Lab, alice: Person, measured: Measured, debug: list[int]
) -> None:
    load = Load(lab, "holder", "memory", 300 * MB, 1024 * MB)
    job = _start(lab, alice, debug, "-w", "n1", "--mem=2G", wrap=load.command)
    told = load.told()["largest_bytes"]
    since = now()
    assert measured.newest("memory_used_bytes", job, since) == CLOSE(told, rel=0.06)
    assert measured.newest("memory_cache_bytes", job, since) == CLOSE(1024 * MB, rel=0.05)
    assert measured.newest("memory_limit_bytes", job, since) == CLOSE(2048 * MB, rel=0.01)


def test_a_writer_and_another_job_on_the_same_node(
    lab: Lab, alice: Person, measured: Measured, debug: list[int]
) -> None:
    """50 MB a second; the neighbour, which writes little, is not charged with it."""
    load = Load(lab, "writer", "writer", 600, 50)
    idle = Load(lab, "neighbour", "writer", 20, 20)
    other = _start(lab, alice, debug, "-w", "n1", "-n1", wrap=idle.command)
    job = _start(lab, alice, debug, "-w", "n1", "-n1", wrap=load.command)
    load.told()
    since = now()
    assert measured.newest("io_write_bytes_total", job, since) == CLOSE(600 * MB, rel=0.05)
    assert measured.newest("io_write_bytes_total", other, since) == CLOSE(20 * MB, rel=0.2)


def test_a_pair_that_sends(lab: Lab, alice: Person, measured: Measured, debug: list[int]) -> None:
    """From n1 to n2, at 10 MB a second; each side's own figure."""
    receiver = Load(lab, "receiver", "receiver", 0)
    sender = Load(lab, "sender", "sender", 90, 10)
    begin = lab.layout.home / "alice" / "pair.begin"
    begin.unlink(missing_ok=True)
    script = (
        "while ! [ -e ~/pair.begin ]; do sleep 0.1; done; "
        f"srun -N1 -n1 -w n2 --overlap {receiver.command} & "
        "while ! [ -e ~/receiver.up ]; do sleep 0.1; done; "
        f"srun -N1 -n1 -w n1 --overlap {sender.command} n2 & wait"
    )
    job = _start(lab, alice, debug, "-w", "n[1-2]", wrap=script)
    before = {
        node: measured.newest(f"network_{way}_bytes_total", job, 0, node=node)
        for node, way in (("n1", "tx"), ("n2", "rx"))
    }
    begin.touch()
    sender.told()
    assert receiver.told()["received"] == 90 * MB
    since = now()
    for node, way in (("n1", "tx"), ("n2", "rx")):
        after = measured.newest(f"network_{way}_bytes_total", job, since, node=node)
        # Headers, and what else the node says to the world, are in it.
        assert after - before[node] == CLOSE(90 * MB, rel=0.05)


def test_a_victim_of_its_own_hunger(
    lab: Lab, alice: Person, measured: Measured, debug: list[int]
) -> None:
    """Killed twice for want of memory: two, not one and not four."""
    eater = "/usr/bin/python3 -c 'x = bytearray(400 << 20)'"
    script = f"sleep 3; {eater}; sleep 2; {eater}; sleep 300"
    job = _start(lab, alice, debug, "-w", "n1", "--mem=150M", wrap=script)
    kills = eventually(
        lambda: measured.query(f'lattice_memory_oom_kills_total{{alloc="{job}"}}'),
        lambda found: bool(found) and float(found[0]["value"][1]) >= 2,
        60,
    )
    assert [float(each["value"][1]) for each in kills] == [2.0]
