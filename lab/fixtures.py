"""The lab as pytest fixtures: a plugin, named in the tests' own conftest.

LATTICE_TEST_LAB=NAME uses a lab that is up already and leaves it up; otherwise the session has
its own, called "test", and takes it down with everything in it.
"""

from __future__ import annotations

import os
from collections.abc import Iterator

import pytest

from lab.addresses import ETCD_CLIENT_PORTS, SEAWEED_S3_PORT
from lab.doorway import Doorway
from lab.laboratory import Lab

DOWN_AFTER_S = 45.0
_PARTS = ("slurm", "oidc", "etcd", "victoriametrics", "seaweedfs", "server", "agents")


def lab_name(base: str) -> str:
    """Each worker of a parallel run has labs of its own."""
    return base + os.environ.get("PYTEST_XDIST_WORKER", "")


@pytest.fixture(scope="session")
def lab() -> Iterator[Lab]:
    """Slurm and its nodes, etcd, S3, the identity provider, two servers, an agent a node, once."""
    if os.geteuid() != 0:
        pytest.skip("the lab makes namespaces and accounts: it needs root")
    if name := os.environ.get("LATTICE_TEST_LAB"):
        yield Lab.attach(name)
        return
    # Down after half the usual time: a story about it need not take two minutes.
    own = Lab(
        lab_name("test"),
        parts=_PARTS,
        servers=2,
        settings={"node_agent": {"grace_period_s": DOWN_AFTER_S}},
    )
    try:
        own.up()
        yield own
    finally:
        own.down(purge=True)


@pytest.fixture(scope="session")
def etcd_lab() -> Iterator[Lab]:
    """Three members of etcd and nothing else, for tests that kill and freeze them."""
    if os.geteuid() != 0:
        pytest.skip("the lab makes namespaces and accounts: it needs root")
    own = Lab(lab_name("testetcd"), parts=("etcd",))
    try:
        own.up()
        yield own
    finally:
        own.down(purge=True)


@pytest.fixture(scope="session")
def etcd_doorway(etcd_lab: Lab) -> Iterator[Doorway]:
    """Loopback addresses that lead to those members."""
    with Doorway(etcd_lab.network, ETCD_CLIENT_PORTS) as doorway:
        yield doorway


@pytest.fixture(scope="session")
def seaweed_lab() -> Iterator[Lab]:
    """An object store and nothing else."""
    if os.geteuid() != 0:
        pytest.skip("the lab makes namespaces and accounts: it needs root")
    own = Lab(lab_name("tests3"), parts=("seaweedfs",))
    try:
        own.up()
        yield own
    finally:
        own.down(purge=True)


@pytest.fixture(scope="session")
def seaweed_doorway(seaweed_lab: Lab) -> Iterator[Doorway]:
    """A loopback address that leads to it."""
    with Doorway(seaweed_lab.network, (SEAWEED_S3_PORT,)) as doorway:
        yield doorway


@pytest.fixture
def quiet_lab(lab: Lab) -> Iterator[Lab]:
    """The session's lab with no job in the queue, before and after."""
    lab.jobs.cancel_all()
    yield lab
    lab.jobs.cancel_all()
