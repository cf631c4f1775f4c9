"""Whether what Slurm accounts of a job may be that of a slice's host."""

from __future__ import annotations

from dataclasses import replace

import pytest

from lattice.domain.allocation import NodeGpus
from lattice.domain.node import Condition, HealthState, NodeHealth
from lattice.domain.presence import Presence, PresenceReading, may_be_in_slice
from lattice.domain.slices import NodeSlice, SliceGuest, SliceHost
from lattice.domain.source import AGREED, Source
from tests.fakes.cluster import allocation

BLUE = NodeSlice(guest=SliceGuest(name="blue", gpus=(0, 1)), host=SliceHost())
HEALTH = NodeHealth(HealthState.HEALTHY, slices=(BLUE,))
RECORD = Presence(
    node="n1",
    epoch=1,
    linked=False,
    since=1.0,
    condition=Condition.DOWN,
    registered=1.0,
    health=HEALTH,
)
READING = PresenceReading({"n1": RECORD}, {}, Source(name=AGREED, ok=True))
JOB = allocation(7, "alice", "research")


@pytest.mark.spec("SRC-3")
@pytest.mark.parametrize(
    ("gpus", "indices", "nodes", "expected"),
    [
        (2, (0, 1), "n1", True),
        (1, (1,), "n1", True),
        (1, (2,), "n1", False),
        (2, (), "n1", True),
        (None, (), "n1", True),
        (0, (), "n1", False),
        (2, (), "n2", False),
        (2, (), "", False),
    ],
)
def test_a_job_whose_place_is_not_known_may_be_in_a_slice(
    gpus: int | None, indices: tuple[int, ...], nodes: str, expected: bool
) -> None:
    held = (NodeGpus("n1", indices),) if indices else ()
    job = replace(JOB, gpus=gpus, gpu_indices=held)
    assert may_be_in_slice(job, nodes, READING) is expected
