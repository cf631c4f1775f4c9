"""How the gate's tests are shared among workers: `pytest -n 2 --dist loadgroup` uses this.

All tests that use the whole lab go to one worker, so that one such lab is started; the others go
file by file to whoever is free. By path: the controller that shares them out knows no marks.
(xdist's own `loadgroup` relies on names of tests that pytest 9 no longer lets a plugin change.)
"""

from __future__ import annotations

from typing import Any

import pytest
from xdist.scheduler import LoadScopeScheduling

_WITH_THE_LAB = (
    "tests/e2e/",
    "tests/contract/test_gate.py",
    "tests/contract/test_operator.py",
    "tests/contract/test_scheduler.py",
    "tests/integration/test_jobs_on_a_node.py",
)


class OneLab(LoadScopeScheduling):
    """Whatever uses the lab is one scope, and the largest: it begins first."""

    def _split_scope(self, nodeid: str) -> str:
        return "lab" if nodeid.startswith(_WITH_THE_LAB) else nodeid.partition("::")[0]


def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> OneLab | None:
    return OneLab(config, log) if config.getoption("dist") == "loadgroup" else None
