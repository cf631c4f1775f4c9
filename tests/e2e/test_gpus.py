"""GPUs: a job's cards by Slurm's own word; nodes with a broken driver and with none; and health."""

from __future__ import annotations

from typing import Any

import pytest

from lab.gpus import uuid_of
from lab.laboratory import Lab
from lab.slurm_config import GPUS
from tests.e2e.people import Person
from tests.e2e.topped import cell, debugged, top
from tests.eventually import eventually

pytestmark = pytest.mark.lab
SLEEP = "sleep 600"


def card_of(slurm_index: int) -> int:
    """NVML's index of the card behind one of Slurm's numbers: they count in opposite ways."""
    return GPUS - 1 - slurm_index


def by_card(answer: dict[str, Any], metric: str) -> dict[str, float]:
    """What each card has of a metric, by UUID."""
    return {
        each["gpu_uuid"]: found["value"]
        for each in answer.get("rows", ())
        if each.get("gpu_uuid")
        for found in each["cells"]
        if found["metric"] == metric and found["value"] is not None
    }


@pytest.mark.story
@pytest.mark.spec("TOP-2")
def test_two_jobs_on_one_node_see_their_own_cards(lab: Lab, alice: Person, bob: Person) -> None:
    with (
        debugged(lab, alice, "-w", "n1", "--gres=gpu:2", wrap=SLEEP) as first,
        debugged(lab, bob, "-w", "n1", "--gres=gpu:1", wrap=SLEEP) as second,
    ):
        mine = eventually(lambda: by_card(top(alice, first, "--per-gpu"), "gpu_power_draw"), bool)
        theirs = eventually(lambda: by_card(top(bob, second, "--per-gpu"), "gpu_power_draw"), bool)
        told = alice.asks("status", str(first))["allocation"]["gpu_indices"]
    assert len(mine) == 2
    assert len(theirs) == 1
    assert not mine.keys() & theirs.keys()
    ((node, indices),) = [(each["node"], each["indices"]) for each in told]
    assert node == "n1"
    assert mine == {uuid_of(card_of(index)): 300 + 10 * card_of(index) for index in indices}


@pytest.mark.story
@pytest.mark.spec("SRC-2", "SRC-4")
def test_the_same_shape_from_a_broken_node_and_from_one_without_a_driver(
    lab: Lab, alice: Person
) -> None:
    with debugged(lab, alice, "-w", "n[1-3]", "--gpus-per-node=1", wrap=SLEEP) as job:
        answer = eventually(
            lambda: top(alice, job, "--per-node"),
            # A node that is slow to send its first sample has not said yet what it lacks.
            lambda seen: (
                cell(seen, "gpu_utilization", "n1").get("value") is not None
                and not any(
                    waiting in str(cell(seen, "gpu_utilization", node).get("reason"))
                    for node in ("n2", "n3")
                    for waiting in ("just begun", "no sample in the last")
                )
            ),
        )
        n1, n2, n3 = (cell(answer, "gpu_utilization", node) for node in ("n1", "n2", "n3"))
    assert 80 <= n1["value"] < 80 + GPUS
    assert n2["value"] is None
    assert "Failed to initialize NVML: Driver Not Loaded" in n2["reason"] + n2["last_error"]
    assert n3["value"] is None
    assert "this node has no NVIDIA driver" in n3["reason"]


@pytest.mark.spec("OPS-10")
@pytest.mark.long
def test_a_card_that_falls_off_the_bus_stands_beside_the_node(lab: Lab, alice: Person) -> None:
    def agent(node: str) -> dict[str, Any]:
        found: dict[str, Any] = alice.asks("nodes", node)["node"]["agent"]
        return found

    def fit(seen: dict[str, Any]) -> bool:
        # A warning stands for five minutes, from what another story did to a card.
        return seen["health"] in {"healthy", "warning"}

    broken = eventually(lambda: agent("n2"), lambda seen: seen["health"] == "failure")
    assert "Failed to initialize NVML: Driver Not Loaded" in broken["health_words"]
    assert agent("n3")["health"] == "unknown"
    with lab.slurm.nodes["n1"].agent.gpus.changed() as cards:
        eventually(lambda: agent("n1"), fit)
        cards.card(0, lost=1)
        sick = eventually(lambda: agent("n1"), lambda seen: seen["health"] == "failure")
        assert f"{uuid_of(0)} is lost (GPU is lost)" in sick["health_words"]
        # Slurm itself does not know its nodes for some seconds after a restart.
        eventually(lambda: alice.tries("nodes").out, lambda shown: "ready (failure)" in shown)
    eventually(lambda: agent("n1"), fit)
