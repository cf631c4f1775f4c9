"""Results of active checks: what a job's text may say, and what in it is a warning."""

from __future__ import annotations

import json
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from lattice.domain.node_check import (
    MOST_RESULTS,
    WRONG,
    BadCheck,
    CheckMeasure,
    NodeCheck,
    judged_check,
    read_output,
    read_results,
    warning_of,
    with_result,
    written_check,
)

SECRET = "ab" * 16
NOW = datetime(2026, 11, 19, 12, 0, tzinfo=UTC)


def line(node: str, *measures: dict[str, Any], secret: str = SECRET) -> str:
    return f"lattice-check {secret} {json.dumps({'node': node, 'measures': measures})}\n"


def result(number: int, name: str = "disk_read", value: float | None = 1e9, tool: str = "",
           reason: str = "") -> NodeCheck:  # fmt: skip
    measure = CheckMeasure(name=name, value=value, tool=tool, reason=reason)
    at = NOW + timedelta(minutes=number)
    return NodeCheck(job_id=number, at=at, by="oscar", nodes="n1", measures=(measure,))


def test_lines_of_the_check_count_and_nothing_else() -> None:
    disk = {"name": "disk_read", "value": 5e8, "tool": "O_DIRECT", "peer": ""}
    text = (
        "srun: a line of Slurm\n"
        + line("n1", disk)
        + line("n1", {"name": "disk_read", "value": 1})
        + line("n2", disk, secret="cd" * 16)
        + line("n3", {"name": "unknown", "value": 1})
        + line("n4", {"name": "disk_read", "value": -1})
        + line("n5", {"name": "disk_read", "value": True})
        + f'lattice-check {SECRET} {{}}\nlattice-check {SECRET} {{"node": 1e999}}\n'
        + line("n6", {"name": "link"}, {"name": "trip", "reason": "\x1b[2J" + "x" * 500})
    )
    found = read_output(text, SECRET)
    assert set(found) == {"n1", "n6"}
    assert found["n1"] == (CheckMeasure(name="disk_read", value=5e8, tool="O_DIRECT"),)
    link, trip = found["n6"]
    assert (link.value, link.reason) == (None, "the check gave no reason")
    assert trip.reason.isprintable()
    assert len(trip.reason) == 200


@pytest.mark.spec("OPS-10")
def test_half_of_what_a_node_had_is_a_warning_with_the_figures() -> None:
    earlier = [result(number, value=1e9) for number in range(1, 4)]
    slow = judged_check(result(9, value=4e8), earlier, ())
    assert slow.warnings == (
        "disk, reading: 381M/s; the median in 3 earlier checks of this node is 954M/s",
    )
    assert judged_check(result(9, value=6e8), earlier, ()).warnings == ()
    assert judged_check(result(9, value=4e8), earlier[:2], ()).warnings == ()


def test_other_tools_and_missing_figures_are_not_compared() -> None:
    others = [result(number, "all_reduce", 1e9, "torch gloo") for number in range(1, 5)]
    assert judged_check(result(9, "all_reduce", 1e8, "TCP ring"), others, ()).warnings == ()
    assert judged_check(result(9, "all_reduce", None, reason="why"), others, ()).warnings == ()


def test_a_link_is_compared_with_the_links_of_the_same_check() -> None:
    peers = [result(9, "link", 1e9), result(9, "link", 1.2e9)]
    (warning,) = judged_check(result(9, "link", 1e8), (), peers).warnings
    assert warning.endswith("of 2 other nodes in the same check is 1.02G/s")
    assert judged_check(result(9, "trip", 1.0), (), [result(9, "trip", 1e-6)] * 3).warnings == ()


def test_a_wrong_result_and_ports_that_are_down_are_warnings() -> None:
    assert judged_check(result(1, "all_reduce", None, reason=WRONG), (), ()).warnings == (WRONG,)
    down = judged_check(result(1, "rdma_ports_down", 1.0, "mlx5_1/1"), (), ())
    assert down.warnings == ("RDMA ports are down: mlx5_1/1",)
    assert judged_check(result(1, "rdma_ports_down", 0.0), (), ()).warnings == ()


def test_the_newest_results_are_kept_and_one_check_counts_once() -> None:
    results: tuple[NodeCheck, ...] = ()
    for number in (3, 1, 2, 2, *range(4, 20)):
        results = with_result(results, result(number))
    assert [each.job_id for each in results] == list(range(19, 19 - MOST_RESULTS, -1))
    assert read_results(written_check(results)) == results


def test_only_the_newest_result_warns() -> None:
    warned = judged_check(result(1, "all_reduce", None, reason=WRONG), (), ())
    assert warning_of([warned]) == f"check 1: {WRONG}"
    assert warning_of([result(2), warned]) == warning_of([]) == ""


@pytest.mark.parametrize("value", [b"", b"[1]", b"[" * 9000, b'[{"job_id":"x"}]', b"\xff"])
def test_a_stored_value_that_is_not_valid_is_named(value: bytes) -> None:
    with pytest.raises(BadCheck):
        read_results(value)
