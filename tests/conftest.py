"""What all tests share: the lab, once a session, for those that ask for it."""

from __future__ import annotations

import gc
import os
from collections.abc import Generator

import pytest
from hypothesis import settings

from tests.surroundings import restore

# Some tests fork a child that runs Python, as the helper does, which has no gRPC. While a channel
# of another test is busy, gRPC's own handlers of a fork end such a child: one in six.
os.environ["GRPC_ENABLE_FORK_SUPPORT"] = "0"

pytest_plugins = ["lab.fixtures", "tests.idle_machine", "tests.gate_scopes"]

# Examples are counted, not timed: two cores may be busy with a lab. HYPOTHESIS_PROFILE=thorough
# looks longer; `gate` takes the same examples every time, so that what lands is judged by what
# changed and not by luck.
settings.register_profile("house", max_examples=40, deadline=None)
settings.register_profile("gate", max_examples=15, deadline=None, derandomize=True)
settings.register_profile("thorough", max_examples=400, deadline=None)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "house"))

_LABS = frozenset({"lab", "etcd_lab", "seaweed_lab"})


def pytest_configure() -> None:
    """Each process of a run does it, also a parallel worker."""
    restore()


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark contracts, and what needs a lab."""
    for item in items:
        if item.nodeid.startswith("tests/contract/"):
            item.add_marker(pytest.mark.contract)
        if _LABS.intersection(getattr(item, "fixturenames", ())):
            item.add_marker(pytest.mark.lab)


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Generator[None, object, object]:
    """Spare the garbage collector the modules: to walk them is a quarter of a run."""
    gc.disable()
    try:
        return (yield)
    finally:
        gc.freeze()
        gc.set_threshold(10_000, 10, 10)
        gc.enable()
