"""A test that fails on a machine which was not given its processors is run again.

A hypervisor that takes more than a tenth of what the machine asked for during a test breaks every
promise of time that the test holds the code to: it takes it in bursts, and what is a tenth of half
a minute may have been all of three seconds. What fails for another reason fails again. Where
nothing is stolen, nothing is run twice; the summary names each that was.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from _pytest.runner import runtestprotocol

TRIES = 3
_MOST_STOLEN = 0.1
_CALM = 0.2
"""What may be taken of a moment for it to be worth another try."""
_PROPERTY = "run again"
_TRIAL_S = 1.0
_PAUSE_S = 5.0
_IDLE, _WAITING, _STOLEN = 3, 4, 7
"""Places in the first line of /proc/stat, after its name."""


def processor_times() -> list[int]:
    """Since boot, by kind, over all processors."""
    return [int(each) for each in Path("/proc/stat").read_text().splitlines()[0].split()[1:9]]


def stolen_share(before: Sequence[int], after: Sequence[int]) -> float:
    """Of the time that was asked for between two readings."""
    passed = [late - early for early, late in zip(before, after, strict=True)]
    asked = sum(passed) - passed[_IDLE] - passed[_WAITING]
    return passed[_STOLEN] / asked if asked > 0 else 0.0


class StolenTime:
    """The plugin. What it repeated travels in the reports, from parallel workers too."""

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtest_protocol(self, item: pytest.Item, nextitem: pytest.Item | None) -> bool:
        item.ihook.pytest_runtest_logstart(nodeid=item.nodeid, location=item.location)
        repeated = []
        for number in range(1, TRIES + 1):
            before = processor_times()
            reports = runtestprotocol(item, log=False, nextitem=nextitem)
            share = stolen_share(before, processor_times())
            # What failed before or after the test itself has left things that can't be repeated.
            called = [each for each in reports if each.when == "call"]
            others = [each for each in reports if each.when != "call"]
            failed = any(each.failed for each in called) and not any(each.failed for each in others)
            if not failed or share <= _MOST_STOLEN or number == TRIES:
                break
            repeated.append((_PROPERTY, f"{share:.0%} of the time was stolen"))
            _begin_again(item)
        for report in reports:
            if report.when == "call":
                report.user_properties += repeated
            item.ihook.pytest_runtest_logreport(report=report)
        item.ihook.pytest_runtest_logfinish(nodeid=item.nodeid, location=item.location)
        return True

    def pytest_terminal_summary(self, terminalreporter: Any) -> None:
        for report in [each for kind in terminalreporter.stats.values() for each in kind]:
            for name, why in getattr(report, "user_properties", ()):
                if name == _PROPERTY:
                    terminalreporter.write_line(f"run again: {report.nodeid} ({why})")


def _begin_again(item: Any) -> None:
    _wait_for_processors()
    item._initrequest()


def _wait_for_processors(most_s: float = 120.0) -> None:
    """Until a moment's work gets its time; at once again, it would only fail again."""
    deadline = time.monotonic() + most_s
    while time.monotonic() < deadline:
        before, begun = processor_times(), time.monotonic()
        while time.monotonic() - begun < _TRIAL_S:
            pass
        if stolen_share(before, processor_times()) <= _CALM:
            return
        time.sleep(_PAUSE_S)


def pytest_configure(config: pytest.Config) -> None:
    config.pluginmanager.register(StolenTime(), "stolen-time")
