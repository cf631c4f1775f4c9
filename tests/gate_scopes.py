"""How the gate's tests are shared among its workers: `pytest -n 3 --dist loadgroup`.

One worker takes the contracts on engines that are not the lab's, and then stories. The others take
stories from the start, file by file, each in a lab of its own, since stories mostly wait.
Scopes are told by path, since the controller that shares the tests out knows no marks. (The
groups of xdist itself rely on names of tests that pytest 9 no longer lets a plugin change.)
"""

from __future__ import annotations

from typing import Any

import pytest
from xdist.scheduler import LoadScopeScheduling

_CONTRACTS = "tests/contract/"
_IN_THE_LAB = tuple(
    f"{_CONTRACTS}test_{name}.py"
    for name in ("administration", "gate", "operator", "reservations", "scheduler", "slurm_runs")
)

_SENSITIVE = "tests/e2e/sensitive/"
"""The servers of the lab are started again for this folder, once."""

_ATTACKS = "tests/integration/attacks/"
"""One server process for this folder."""

_LONGEST = (
    _SENSITIVE,
    "test_log_faults",
    "test_top_faults",
    "test_failover",
    "test_slices",
    "test_scheduler",
    "test_diag",
    "test_logs",
    "test_allocations",
    "test_attach_faults",
    "test_doctor",
    "test_server",
    "test_submit",
    _ATTACKS,
    "test_local",
    "test_compare",
    "test_telemetry_mode",
    "test_watch",
    "test_enter",
    "test_reservations",
    "test_top",
    "test_slurm_away",
    "test_report",
    "test_gpus",
    "test_links",
    "test_node_checks",
    "test_log_gaps",
    "test_sharing",
)


def uses_engines_alone(nodeid: str) -> bool:
    """Whether a test is a contract that starts its own engines instead of a whole lab."""
    return nodeid.startswith(_CONTRACTS) and not nodeid.startswith(_IN_THE_LAB)


class GateScopes(LoadScopeScheduling):
    """Contracts on engines are one scope, a folder with its own server, and each other file."""

    def _split_scope(self, nodeid: str) -> str:
        if uses_engines_alone(nodeid):
            return "engines"
        folders = (each for each in (_SENSITIVE, _ATTACKS) if nodeid.startswith(each))
        return next(folders, nodeid.partition("::")[0])


def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> GateScopes | None:
    return GateScopes(config, log) if config.getoption("dist") == "loadgroup" else None


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """The files that take longest go first: begun last, everybody would wait for them."""
    items.sort(key=_rank)


def _rank(item: pytest.Item) -> int:
    """Contracts on engines go before all: in the gate one worker does nothing else."""
    if uses_engines_alone(item.nodeid):
        return -1
    found = (rank for rank, name in enumerate(_LONGEST) if f"/{name}" in f"/{item.nodeid}")
    return next(found, len(_LONGEST))
