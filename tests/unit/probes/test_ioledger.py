"""What a job has written in all: simulated trees of processes that fork, write, end and are reaped.

The simulation is the kernel's: whoever is reaped adds its figures to those of its reaper.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lattice.domain.counters import IoCounters, ProcessCounters
from lattice.domain.nodejobs import ProcessId
from lattice.probes.ioledger import IoLedger
from tests.examples import examples

ROOT = 1


@dataclass
class Process:
    pid: int
    parent: int
    written: int = 0
    zombie: bool = False


@dataclass
class Kernel:
    """Process 1 is slurmstepd: it adopts orphans and never ends."""

    now: int = 1
    processes: dict[int, Process] = field(default_factory=lambda: {ROOT: Process(ROOT, 0)})
    written: int = 0
    lost: int = 0
    seen: set[int] = field(default_factory=lambda: {ROOT})

    def alive(self) -> list[Process]:
        return [each for each in self.processes.values() if not each.zombie]

    def fork(self, at: int) -> None:
        parent = self.alive()[at % len(self.alive())]
        self.now += 1
        self.processes[self.now] = Process(self.now, parent.pid)

    def write(self, at: int, count: int) -> None:
        self.alive()[at % len(self.alive())].written += count
        self.written += count

    def exit(self, at: int) -> None:
        ending = self.alive()[at % len(self.alive())]
        if ending.pid != ROOT:
            ending.zombie = True
            for each in self.processes.values():
                if each.parent == ending.pid:
                    each.parent = ROOT

    def reap(self, at: int, *, into_nobody: bool = False) -> None:
        zombies = [each for each in self.processes.values() if each.zombie]
        if zombies:
            ended = self.processes.pop(zombies[at % len(zombies)].pid)
            if into_nobody:
                self.lost += ended.written
            else:
                self.processes[ended.parent].written += ended.written

    def look(self) -> list[ProcessCounters]:
        """As the helper's: those who live, and zombies that it knew before."""
        shown = [
            each for each in self.processes.values() if not each.zombie or each.pid in self.seen
        ]
        self.seen |= {each.pid for each in shown}
        there = {each.pid for each in shown}
        return [
            _told(each.pid, each.parent if each.parent in there else 0, each.written)
            for each in shown
        ]

    @property
    def hidden(self) -> int:
        """What zombies have that were never seen alive."""
        zombies = (each for each in self.processes.values() if each.zombie)
        return sum(each.written for each in zombies if each.pid not in self.seen)


def _told(pid: int, parent: int, written: int) -> ProcessCounters:
    return ProcessCounters(ProcessId(pid, pid), parent, IoCounters(0, written, 0, written))


number = st.integers(0, 20)
step = (
    st.tuples(st.just("fork"), number)
    | st.tuples(st.just("write"), number, st.integers(1, 1000))
    | st.tuples(st.just("exit"), number)
    | st.tuples(st.just("reap"), number)
)
look = st.just(("look",))


@pytest.mark.spec("TOP-1")
@settings(max_examples=examples(8))
@given(st.lists(step | look, max_size=60))
def test_every_byte_is_counted_once_though_processes_end(steps: list[tuple[object, ...]]) -> None:
    kernel, ledger, before = Kernel(), IoLedger(), 0
    for name, *arguments in [*steps, ("look",)]:
        if name != "look":
            getattr(kernel, str(name))(*arguments)
            continue
        total = ledger.update(kernel.look()).write_bytes
        assert total >= before
        # Where something hides, it is missing until it is reaped, and is no reason to fall.
        assert kernel.written - kernel.hidden <= total <= kernel.written
        before = total
    while len(kernel.processes) > 1:
        kernel.exit(1)
        kernel.reap(0)
    assert ledger.update(kernel.look()).write_bytes == kernel.written


@pytest.mark.spec("TOP-1")
@settings(max_examples=examples(8))
@given(st.lists(step | look | st.tuples(st.just("lose"), number), max_size=60))
def test_where_processes_are_lost_it_neither_falls_nor_misses_those_that_are_not(
    steps: list[tuple[object, ...]],
) -> None:
    kernel, ledger, before = Kernel(), IoLedger(), 0
    for name, *arguments in [*steps, ("look",), ("look",)]:
        if name == "lose":
            kernel.reap(int(str(arguments[0])), into_nobody=True)
        elif name != "look":
            getattr(kernel, str(name))(*arguments)
        else:
            total = ledger.update(kernel.look()).write_bytes
            assert before <= total
            assert kernel.written - kernel.hidden - kernel.lost <= total
            before = total


def test_one_that_nobody_reaped_keeps_what_it_was_last_seen_with() -> None:
    ledger = IoLedger()
    assert ledger.update([_told(1, 0, 10), _told(2, 1, 500)]).write_bytes == 510
    assert ledger.update([_told(1, 0, 30)]).write_bytes == 530
    assert ledger.update([_told(1, 0, 700)]).write_bytes == 1200


def test_one_that_init_had_adopted_is_never_looked_for_in_others() -> None:
    ledger = IoLedger()
    assert ledger.update([_told(1, 0, 10), _told(2, 0, 500)]).write_bytes == 510
    assert ledger.update([_told(1, 0, 5000)]).write_bytes == 5500


def test_another_with_the_number_of_one_that_ended_is_another() -> None:
    ledger = IoLedger()
    old = ProcessCounters(ProcessId(7, 100), 0, IoCounters(1, 1000, 1, 1000))
    new = ProcessCounters(ProcessId(7, 200), 0, IoCounters(0, 5, 0, 5))
    assert ledger.update([old]).write_bytes == 1000
    assert ledger.update([new]) == IoCounters(1, 1005, 1, 1005)


def test_one_that_could_not_be_read_stands_where_it_stood() -> None:
    ledger = IoLedger()
    blind = ProcessCounters(ProcessId(2, 2), 1, None)
    assert not ledger.known
    assert ledger.update([_told(1, 0, 10), _told(2, 1, 500)]).write_bytes == 510
    assert ledger.update([_told(1, 0, 10), blind]).write_bytes == 510
    assert ledger.update([_told(1, 0, 10), _told(2, 1, 600)]).write_bytes == 610


@pytest.mark.spec("TOP-1")
def test_a_step_that_ended_is_carried_when_its_daemon_is_gone() -> None:
    ledger = IoLedger()
    assert ledger.update([_told(1, 0, 600), _told(2, 0, 1)]).write_bytes == 601
    assert ledger.update([_told(2, 0, 4)]).write_bytes == 604
    assert ledger.update([]).write_bytes == 604
    assert ledger.known
