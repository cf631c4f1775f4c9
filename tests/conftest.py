"""What all tests share: the lab, once a session, for those that ask for it."""

from __future__ import annotations

import os

import pytest
from hypothesis import settings

pytest_plugins = ["lab.fixtures", "tests.stolen_time"]

# Examples are counted, not timed: two cores may be busy with a lab. HYPOTHESIS_PROFILE=thorough
# looks longer; `gate` takes the same examples every time, so that what lands is judged by what
# changed and not by luck.
settings.register_profile("house", max_examples=40, deadline=None)
settings.register_profile("gate", max_examples=25, deadline=None, derandomize=True)
settings.register_profile("thorough", max_examples=2000, deadline=None)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "house"))

_LONGEST = ("test_log_faults", "test_top_faults", "test_logs", "test_attach_faults", "test_diag")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """The files that take longest go first: begun last, everybody would wait for them."""
    items.sort(key=_rank)


def _rank(item: pytest.Item) -> int:
    found = (rank for rank, name in enumerate(_LONGEST) if f"/{name}" in item.nodeid)
    return next(found, len(_LONGEST))
