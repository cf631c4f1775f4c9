"""A node's cores and memory against what the site expects: a difference is a sentence."""

from __future__ import annotations

from pathlib import Path

import pytest

from lattice.probes.machine import ExpectedMachine, machine_differences


class Machine:
    """A tree of `/proc` and `/sys`."""

    def __init__(self, folder: Path) -> None:
        self.proc, self.sys = folder / "proc", folder / "sys"
        self.proc.mkdir()

    def has(self, *, sockets: int, cores: int, threads: int, memory_kb: int) -> None:
        number = 0
        for socket in range(sockets):
            for core in range(cores):
                for _ in range(threads):
                    topology = self.sys / f"devices/system/cpu/cpu{number}/topology"
                    topology.mkdir(parents=True)
                    (topology / "physical_package_id").write_text(f"{socket}\n")
                    (topology / "core_id").write_text(f"{core}\n")
                    number += 1
        (self.sys / f"devices/system/cpu/cpu{number}").mkdir()  # one that is offline
        (self.sys / "devices/system/cpu/cpufreq").mkdir()
        (self.proc / "meminfo").write_text(f"MemTotal:       {memory_kb} kB\nMemFree: 1 kB\n")

    def differences(self, cores: int | None, memory_gb: int | None) -> tuple[str, ...]:
        expected = ExpectedMachine(cores, memory_gb)
        return machine_differences(expected, proc=self.proc, sys=self.sys)


@pytest.fixture
def machine(tmp_path: Path) -> Machine:
    made = Machine(tmp_path)
    made.has(sockets=2, cores=32, threads=2, memory_kb=527_000_000)
    return made


@pytest.mark.spec("OPS-10")
@pytest.mark.parametrize(
    ("cores", "memory_gb", "words"),
    [
        (None, None, ()),
        (64, 512, ()),
        (128, 512, ()),
        (72, None, ("64 cores with 128 threads instead of 72",)),
        (None, 1024, ("503 GiB of memory instead of 1024",)),
        (None, 256, ("503 GiB of memory instead of 256",)),
        (
            32,
            768,
            (
                "64 cores with 128 threads instead of 32",
                "503 GiB of memory instead of 768",
            ),
        ),
    ],
)
def test_a_difference_is_told(
    machine: Machine, cores: int | None, memory_gb: int | None, words: tuple[str, ...]
) -> None:
    assert machine.differences(cores, memory_gb) == words


@pytest.mark.spec("OPS-10")
def test_without_threads_only_cores_are_told(tmp_path: Path) -> None:
    machine = Machine(tmp_path)
    machine.has(sockets=1, cores=8, threads=1, memory_kb=4_000_000)
    assert machine.differences(16, 4) == ("8 cores instead of 16",)


def test_what_can_not_be_read_is_no_difference(tmp_path: Path) -> None:
    assert Machine(tmp_path).differences(64, 512) == ()
