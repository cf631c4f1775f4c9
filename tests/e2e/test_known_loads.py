"""Jobs that know what they use, and what Lattice measured of them: within 5 %.

Told of a node with cgroup v1, and of the VM node, which has another kernel and v2 alone. That one
is emulated: its processor is slow by any clock on the wall, and right by its own.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import pytest

from lab.laboratory import Lab
from tests.e2e.diagnosed import page, sick
from tests.e2e.measured import Load, Measured, accounted, now
from tests.e2e.people import Person
from tests.e2e.put_right import administrator, linked
from tests.eventually import eventually

pytestmark = pytest.mark.lab

MB = 1 << 20
CLOSE = pytest.approx


@dataclass(frozen=True)
class Place:
    """A node, and what fits on it."""

    node: str
    peer: str
    """Another one, to talk to."""
    disk: str
    """A folder for what is written."""
    burn_s: int
    memory_mb: int
    cache_mb: int
    write_mb: int


V1 = Place("n1", "n2", "~", burn_s=15, memory_mb=2048, cache_mb=1024, write_mb=600)
# The homes are a share of the host's, of which the emulated kernel keeps nothing in memory. To its
# disk it writes less than 3 MB a second.
V2 = Place("v1", "n1", "/mnt/disk", burn_s=60, memory_mb=700, cache_mb=250, write_mb=80)
ON_V2 = pytest.param(V2, id="v2", marks=[pytest.mark.vm, pytest.mark.timeout(600)])
on_v2_only = pytest.mark.parametrize("place", [ON_V2], indirect=True)


@pytest.fixture(scope="module", params=[pytest.param(V1, id="v1"), ON_V2])
def place(request: pytest.FixtureRequest, lab: Lab) -> Iterator[Place]:
    if request.param is V1:
        yield V1
        return
    with _virtual_machine(lab):
        yield V2


@contextmanager
def _virtual_machine(lab: Lab) -> Iterator[None]:
    """The VM node with its agent and a disk, booted once for all."""
    lab.jobs.cancel_all()
    image = lab.layout.home / "disk.image"
    lab.slurm.start_vm()
    try:
        lab.vm.start_agent()
        with image.open("wb") as file:
            file.truncate(1024 * MB)
        for command in (
            "mkfs.ext4 -q /home/disk.image",
            f"mkdir {V2.disk}",
            "modprobe loop",
            f"mount -o loop /home/disk.image {V2.disk}",
            f"chmod 1777 {V2.disk}",
        ):
            lab.vm.run(command.split())
        eventually(lambda: linked(administrator(lab)), lambda seen: V2.node in seen, patience_s=240)
        yield
        lab.jobs.cancel_all(timeout_s=60)
    finally:
        lab.slurm.stop_vm()
        image.unlink(missing_ok=True)


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
    lab.wait_job_state(job, "RUNNING", 120)
    said = eventually(
        lambda: alice.tries("telemetry", "--alloc", str(job), "--mode", "debug"),
        lambda said: said.code == 0,
    )
    assert said.code == 0, said
    return job


def _alone(load: Load) -> str:
    """In the place of the shell, so that what that one took is in what the load tells."""
    return f"exec {load.command}"


def _end(lab: Lab, load: Load, job: int) -> None:
    load.let_go()
    lab.wait_job_state(job, "COMPLETED", 90)


@pytest.mark.spec("TOP-1", "TOP-2")
def test_a_core_and_a_half(
    place: Place, lab: Lab, alice: Person, measured: Measured, debug: list[int]
) -> None:
    """Against getrusage of the load itself, and against what sacct says of the job."""
    load = Load(lab, "burner", "processor", 1.5, place.burn_s)
    job = _start(lab, alice, debug, "-w", place.node, wrap=_alone(load))
    told = load.told()["processor_s"]
    assert told > 3, "enough for it to be a load, however busy the machine"
    seen = measured.newest("cpu_seconds_total", job, now())
    print(f"processor: {seen:.2f} s measured, {told:.2f} s told")
    assert seen == CLOSE(told, rel=0.05)
    _end(lab, load, job)
    says = accounted(lab, job, "TotalCPU")
    print(f"sacct: {says:.2f} s")
    assert seen == CLOSE(says, rel=0.05)


@pytest.mark.story
@pytest.mark.spec("TOP-1", "TOP-2")
def test_memory_and_page_cache_are_two_things(
    place: Place, lab: Lab, alice: Person, measured: Measured, debug: list[int]
) -> None:
    load = Load(lab, "holder", "memory", 300 * MB, place.cache_mb * MB, folder=place.disk)
    limit = f"--mem={place.memory_mb}M"
    job = _start(lab, alice, debug, "-w", place.node, limit, wrap=load.command)
    told = load.told()["largest_bytes"]
    since = now()
    used = measured.newest("memory_used_bytes", job, since)
    cached = measured.newest("memory_cache_bytes", job, since)
    print(f"memory: {used / MB:.1f} MB, {told / MB:.1f} told; cache {cached / MB:.1f} MB")
    assert used == CLOSE(told, rel=0.06)
    assert cached == CLOSE(place.cache_mb * MB, rel=0.05)
    limited = measured.newest("memory_limit_bytes", job, since)
    assert limited == CLOSE(place.memory_mb * MB, rel=0.01)
    if place is V1:
        # On v2 the accounting of Slurm 22.05 adds huge pages to memory they are a part of.
        _end(lab, load, job)
        # Newer releases count page cache.
        counted = used if lab.slurm.release == "22.05" else used + cached
        assert counted == CLOSE(accounted(lab, job, "MaxRSS"), rel=0.06)


@pytest.mark.spec("TOP-1", "TOP-2")
def test_a_writer_and_another_job_on_the_same_node(
    place: Place, lab: Lab, alice: Person, measured: Measured, debug: list[int]
) -> None:
    """50 MB a second where that is possible; the neighbour is not charged with it."""
    load = Load(lab, "writer", "writer", place.write_mb, 50, folder=place.disk)
    idle = Load(lab, "neighbour", "writer", 20, 20, folder=place.disk)
    other = _start(lab, alice, debug, "-w", place.node, "-n1", wrap=idle.command)
    job = _start(lab, alice, debug, "-w", place.node, "-n1", wrap=load.command)
    took_s = load.told()["seconds"]
    since = now()
    written = measured.newest("io_write_bytes_total", job, since)
    little = measured.newest("io_write_bytes_total", other, since)
    print(f"written: {written / MB:.1f} MB in {took_s:.1f} s; the neighbour {little / MB:.1f} MB")
    assert written == CLOSE(place.write_mb * MB, rel=0.05)
    assert little == CLOSE(20 * MB, rel=0.2)
    # Each piece is a call, and every tenth is followed by another; to start takes both the same.
    calls, few = (
        measured.newest("io_latency_seconds_bucket", each, since, le="+Inf")
        for each in (job, other)
    )
    print(f"timed: {calls:.0f} calls; the neighbour's {few:.0f}")
    assert calls - few == CLOSE((place.write_mb - 20) * 1.1, rel=0.05)


@pytest.mark.spec("TOP-1", "TOP-2")
def test_a_pair_that_sends(
    place: Place, lab: Lab, alice: Person, measured: Measured, debug: list[int]
) -> None:
    """To another node, at 10 MB a second; each side's own figure."""
    _assert_sent(lab, alice, measured, debug, place.node, place.peer)


@pytest.mark.spec("TOP-1", "TOP-2")
@on_v2_only
def test_a_pair_that_sends_the_other_way(
    place: Place, lab: Lab, alice: Person, measured: Measured, debug: list[int]
) -> None:
    _assert_sent(lab, alice, measured, debug, place.peer, place.node)


def _assert_sent(
    lab: Lab, alice: Person, measured: Measured, debug: list[int], source: str, sink: str
) -> None:
    receiver = Load(lab, "receiver", "receiver", 0)
    sender = Load(lab, "sender", "sender", 90, 10)
    begin = lab.layout.home / "alice" / "pair.begin"
    begin.unlink(missing_ok=True)
    script = (
        "while ! [ -e ~/pair.begin ]; do sleep 0.1; done; "
        f"srun -N1 -n1 -w {sink} --overlap {receiver.command} & "
        "while ! [ -e ~/receiver.up ]; do sleep 0.1; done; "
        f"srun -N1 -n1 -w {source} --overlap {sender.command} {sink} & wait"
    )
    job = _start(lab, alice, debug, "-N2", "-w", f"{source},{sink}", wrap=script)
    ways = ((source, "tx"), (sink, "rx"))
    before = {
        node: measured.newest(f"network_{way}_bytes_total", job, 0, node=node) for node, way in ways
    }
    begin.touch()
    sender.told()
    assert receiver.told()["received"] == 90 * MB
    since = now()
    for node, way in ways:
        after = measured.newest(f"network_{way}_bytes_total", job, since, node=node)
        print(f"{node} {way}: {(after - before[node]) / MB:.2f} MB of 90")
        # Headers, and what else the node says to the world, are in it.
        assert after - before[node] == CLOSE(90 * MB, rel=0.05)


@pytest.mark.spec("TOP-1", "TOP-2")
def test_a_victim_of_its_own_hunger(
    place: Place, lab: Lab, alice: Person, measured: Measured, debug: list[int]
) -> None:
    """Killed twice for want of memory: two, not one and not four."""
    eater = "/usr/bin/python3 -c 'x = bytearray(400 << 20)'"
    script = f"sleep 3; {eater}; sleep 2; {eater}; sleep 300"
    job = _start(lab, alice, debug, "-w", place.node, "--mem=150M", wrap=script)
    kills = eventually(
        lambda: measured.query(f'lattice_memory_oom_kills_total{{alloc="{job}"}}'),
        lambda found: bool(found) and float(found[0]["value"][1]) >= 2,
    )
    assert [float(each["value"][1]) for each in kills] == [2.0]


@pytest.mark.spec("TOP-1", "TOP-2")
@on_v2_only
def test_two_that_want_one_processor(
    place: Place, lab: Lab, alice: Person, measured: Measured, debug: list[int]
) -> None:
    """Each is charged with its own time, and the kernel tells how long each had to wait."""
    loads = [Load(lab, name, "processor", 1, place.burn_s) for name in ("one", "other")]
    jobs = [_start(lab, alice, debug, "-w", place.node, "-n1", wrap=_alone(each)) for each in loads]
    for job, load in zip(jobs, loads, strict=True):
        told = load.told()["processor_s"]
        since = now()
        seen = measured.newest("cpu_seconds_total", job, since)
        stalls = {
            (resource, share): measured.newest(
                "pressure_seconds_total", job, since, resource=resource, share=share
            )
            for resource in ("cpu", "io", "memory")
            for share in ("some", "full")
        }
        print(f"processor: {seen:.2f} s measured, {told:.2f} s told; stalls {stalls}")
        assert seen == CLOSE(told, rel=0.05)
        # Slurm's own daemons of the job wait too.
        assert told / 2 < stalls["cpu", "some"] < 2 * place.burn_s


@on_v2_only
@pytest.mark.spec("DIAG-1")
def test_nobody_cries_over_a_healthy_job(
    place: Place, lab: Lab, alice: Person, measured: Measured, debug: list[int]
) -> None:
    work = "srun -n1 sh -c 'while :; do echo on; sleep 0.2; done'"
    job = _start(lab, alice, debug, "-w", place.node, "-n1", wrap=work)
    measured.newest("cpu_seconds_total", job, now() + 10)
    # An emulated node hasn't all its facts together in time; then it is unknown, and not sick.
    answer = page(alice, job)
    print({each["rule"]: each["verdict"] for each in answer["findings"]})
    assert sick(answer) == {}
    assert answer["verdict"] in {"ok", "unknown"}
    shown = alice.tries("diag", str(job))
    assert (shown.code, place.node in shown.out) == (0, True), shown
