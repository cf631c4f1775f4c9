"""The plan and the cost model of `just soak scale`."""

from __future__ import annotations

import pytest

from bench.soak.scale_model import fitted
from bench.soak.scale_plan import Plan
from bench.soak.scale_viewers import Follower


def test_each_node_has_one_job_that_can_be_followed_and_the_first_is_the_largest() -> None:
    plan = Plan(4000, 50_000, 0)

    nodes = [node for job in plan.jobs for node in job.nodes]

    assert sorted(nodes) == sorted(plan.names)
    assert len(plan.jobs[0].nodes) == 1000
    assert max(len(job.nodes) for job in plan.jobs[1:]) == 64


def test_nodes_of_an_allocation_are_those_of_its_job_and_one_that_waits_has_none() -> None:
    plan = Plan(200, 2000, 0)

    assert plan.nodes_of(1) == plan.jobs[0].nodes
    assert len(plan.nodes_of(len(plan.jobs) + 1)) == 1
    assert plan.nodes_of(2000) == ()


def test_the_model_finds_the_costs_that_made_the_values() -> None:
    parts = [
        {"itself": 1.0, "links": links, "viewers": viewers}
        for links, viewers in ((0.0, 0.0), (1000.0, 0.0), (2000.0, 100.0), (500.0, 700.0))
    ]

    model = fitted(parts, [5 + 0.01 * each["links"] + 0.2 * each["viewers"] for each in parts])

    assert model.costs == pytest.approx({"itself": 5.0, "links": 0.01, "viewers": 0.2})


def test_a_part_that_would_cost_less_than_nothing_is_left_out() -> None:
    parts = [{"itself": 1.0, "links": 0.0}, {"itself": 1.0, "links": 10.0}]

    assert set(fitted(parts, [5.0, 4.0]).costs) == {"itself"}


def test_a_line_that_is_missing_and_one_that_comes_twice_are_counted() -> None:
    job = Plan(200, 2000, 0).jobs[1]
    viewer = Follower(1, job, ("https://127.0.0.1:1",), "")

    for number in (1, 2, 5, 5, 6):
        viewer.take(f"{job.nodes[0]} line {number} loss 0.1")

    assert (viewer.lines, viewer.missing, viewer.twice) == (5, 2, 1)
    assert viewer.newest == {job.nodes[0]: 6}
