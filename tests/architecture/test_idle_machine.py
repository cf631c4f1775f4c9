"""When the tests of time limits begin: on a machine that is idle by its own counter."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests import idle_machine
from tests.idle_machine import LONGEST_WAIT_S, SAMPLE_S, BusyMachine, NoPressureCounter

SHOWN = """\
some avg10=41.64 avg60=40.59 avg300=21.64 total=119560526
full avg10=0.00 avg60=0.00 avg300=0.00 total=77
"""


class Machine:
    """Its tasks wait for a processor for these shares of the samples, then for the last one."""

    def __init__(self, *shares: float) -> None:
        self._shares = list(shares)
        self._total_us = 0.0
        self.passed_s = 0.0

    def read(self) -> str:
        return f"some avg10=99.00 avg60=99.00 avg300=99.00 total={self._total_us:.0f}\n"

    def sleep(self, seconds: float) -> None:
        share = self._shares.pop(0) if len(self._shares) > 1 else self._shares[0]
        self._total_us += share * seconds * 1e6
        self.passed_s += seconds

    def wait(self) -> None:
        idle_machine.wait_until_idle(self.read, self.sleep, lambda: self.passed_s)


def test_the_counter_of_some_tasks_is_read() -> None:
    assert idle_machine.waited_us(SHOWN) == 119560526


@pytest.mark.parametrize("shown", ["", "full avg10=0.00 total=5\n", "some avg10=0.00\n"])
def test_a_file_without_the_counter_is_named(shown: str) -> None:
    with pytest.raises(NoPressureCounter, match="/proc/pressure/cpu holds no line"):
        idle_machine.waited_us(shown)


def test_an_idle_machine_costs_one_sample() -> None:
    machine = Machine(0.05)
    machine.wait()
    assert machine.passed_s == SAMPLE_S


def test_a_busy_machine_is_waited_for() -> None:
    machine = Machine(0.9, 0.4, 0.11, 0.09)
    machine.wait()
    assert machine.passed_s == pytest.approx(4 * SAMPLE_S)


def test_a_machine_that_stays_busy_is_given_up_with_a_plain_sentence() -> None:
    machine = Machine(0.4)
    with pytest.raises(BusyMachine, match=r"^The machine is busy: for 300 s .* lately 40% of"):
        machine.wait()
    assert LONGEST_WAIT_S <= machine.passed_s <= LONGEST_WAIT_S + SAMPLE_S


def test_a_kernel_without_the_file_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(idle_machine, "PRESSURE", tmp_path / "cpu")
    with pytest.raises(NoPressureCounter, match=r"cpu can't be read \(No such file.*CONFIG_PSI"):
        idle_machine.read_pressure()
