"""The lab as pytest fixtures: a plugin, named in the tests' own conftest.

LATTICE_TEST_LAB=NAME uses a lab that is up already and leaves it up; otherwise the session has
its own, called "test", and takes it down with everything in it.
"""

from __future__ import annotations

import os
from collections.abc import Iterator

import pytest

from lab.laboratory import Lab

_PARTS = ("slurm", "oidc", "server")


@pytest.fixture(scope="session")
def lab() -> Iterator[Lab]:
    """Slurm with its nodes, the identity provider and one lattice-server, once a session."""
    if os.geteuid() != 0:
        pytest.skip("the lab makes namespaces and accounts: it needs root")
    if name := os.environ.get("LATTICE_TEST_LAB"):
        yield Lab.attach(name)
        return
    own = Lab("test", parts=_PARTS)
    try:
        own.up()
        yield own
    finally:
        own.down(purge=True)


@pytest.fixture
def quiet_lab(lab: Lab) -> Iterator[Lab]:
    """The session's lab with no job in the queue, before and after."""
    lab.jobs.cancel_all()
    yield lab
    lab.jobs.cancel_all()
