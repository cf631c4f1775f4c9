"""How the gate's tests are shared among its three workers: `pytest -n 3 --dist loadgroup`.

One worker takes the contracts on engines that are not the lab's. The two others take the stories
file by file, each in a lab of its own: stories mostly wait, so a second lab halves their time.
Scopes are told by path, since the controller that shares the tests out knows no marks. (The
groups of xdist itself rely on names of tests that pytest 9 no longer lets a plugin change.)
"""

from __future__ import annotations

from typing import Any

import pytest
from xdist.scheduler import LoadScopeScheduling

_CONTRACTS = "tests/contract/"
_IN_THE_LAB = tuple(
    f"{_CONTRACTS}test_{name}.py" for name in ("administration", "gate", "operator", "scheduler")
)

_SENSITIVE = "tests/e2e/sensitive/"
"""The servers of the lab are started again for this folder, once."""

_LONGEST = (
    _SENSITIVE,
    "test_log_faults",
    "test_top_faults",
    "test_logs",
    "test_attach_faults",
    "test_diag",
    "test_allocations",
    "test_compare",
    "test_telemetry_mode",
    "test_report",
    "test_sharing",
    "test_top",
    "test_watch",
    "test_slurm_away",
    "test_scheduler",
    "test_enter",
)


def uses_engines_alone(nodeid: str) -> bool:
    """Whether a test is a contract that starts its own engines instead of a whole lab."""
    return nodeid.startswith(_CONTRACTS) and not nodeid.startswith(_IN_THE_LAB)


class TwoLabs(LoadScopeScheduling):
    """Contracts on engines are one scope, sensitive work is one, and so is every other file."""

    def _split_scope(self, nodeid: str) -> str:
        if uses_engines_alone(nodeid):
            return "engines"
        if nodeid.startswith(_SENSITIVE):
            return _SENSITIVE
        return nodeid.partition("::")[0]


def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> TwoLabs | None:
    return TwoLabs(config, log) if config.getoption("dist") == "loadgroup" else None


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """The files that take longest go first: begun last, everybody would wait for them."""
    items.sort(key=_rank)


def _rank(item: pytest.Item) -> int:
    """Contracts on engines go before all: in the gate one worker does nothing else."""
    if uses_engines_alone(item.nodeid):
        return -1
    found = (rank for rank, name in enumerate(_LONGEST) if f"/{name}" in f"/{item.nodeid}")
    return next(found, len(_LONGEST))
