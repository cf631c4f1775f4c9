"""A test marked `timing` begins on an idle machine, or fails and says that there was none.

A promise of time can only be tested where the code gets its processors. The kernel counts in
`/proc/pressure/cpu` how long tasks stood ready without a processor, whatever other task had it.
The plugin waits for a quiet moment between the fixtures of such a test and the test itself.
"""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

PRESSURE = Path("/proc/pressure/cpu")
MOST_PRESSURE = 0.1
"""Room for services that wake up now and then; a run of other tests beside shows 40 % and more."""
SAMPLE_S = 2.1
"""A little more than the two seconds after which the kernel brings its counter up to date."""
LONGEST_WAIT_S = 300.0


class NoPressureCounter(Exception):
    """The kernel does not tell how busy the machine is."""


class BusyMachine(Exception):
    """The machine was not idle for as long as one may wait."""


def read_pressure() -> str:
    try:
        return PRESSURE.read_text()
    except OSError as error:
        raise NoPressureCounter(
            f"{PRESSURE} can't be read ({error.strerror}), so nobody knows whether this machine is"
            " idle. Use a kernel with pressure stall information (CONFIG_PSI=y, psi=1)."
        ) from error


def waited_us(pressure: str) -> int:
    """For how many microseconds since boot some task stood ready without a processor."""
    found = re.search(r"^some .*\btotal=(\d+)$", pressure, re.MULTILINE)
    if found is None:
        raise NoPressureCounter(f"{PRESSURE} holds no line 'some ... total=': {pressure!r}")
    return int(found[1])


def wait_until_idle(
    read: Callable[[], str] = read_pressure,
    sleep: Callable[[float], None] = time.sleep,
    now: Callable[[], float] = time.monotonic,
) -> None:
    """Return after a sample in which hardly anybody waited for a processor.

    The averages of the kernel reach back ten seconds and more: after a busy test they would
    show its pressure for half a minute. So the counter is read twice.
    """
    end = now() + LONGEST_WAIT_S
    while True:
        begun, before = now(), waited_us(read())
        sleep(SAMPLE_S)
        share = (waited_us(read()) - before) / 1e6 / (now() - begun)
        if share <= MOST_PRESSURE:
            return
        if now() >= end:
            raise BusyMachine(
                f"The machine is busy: for {LONGEST_WAIT_S:g} s its tasks waited for a processor,"
                f" lately {share:.0%} of the time (at most {MOST_PRESSURE:.0%} is idle)."
                " A test of time limits runs alone on an idle machine."
            )


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Give each such test its wait on top of the time after which it counts as hanging."""
    for item in items:
        if item.get_closest_marker("timing"):
            marked = item.get_closest_marker("timeout")
            guard_s = marked.args[0] if marked else float(config.getini("timeout"))
            item.add_marker(pytest.mark.timeout(guard_s + LONGEST_WAIT_S), append=False)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call(item: pytest.Item) -> Iterator[None]:
    if item.get_closest_marker("timing"):
        try:
            wait_until_idle()
        except (BusyMachine, NoPressureCounter) as error:
            pytest.fail(str(error), pytrace=False)
    return (yield)
