"""Which GPUs a job has: read from Slurm's GRES detail, or not known. Never another's."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lattice.adapters.slurm.gres import gpus_of, indices_in
from lattice.adapters.slurm.schema.decoder import known_schemas
from lattice.adapters.slurm.tenancy import Placing
from lattice.domain.allocation import Allocation, NodeGpus


@pytest.mark.spec("TOP-2")
@pytest.mark.parametrize(
    ("detail", "indices"),
    [
        ("gpu:2(IDX:0-1)", (0, 1)),
        ("gpu:1(IDX:2)", (2,)),
        ("gpu:a100:2(IDX:0-1)", (0, 1)),
        ("gpu:a100:3(IDX:0,2-3)", (0, 2, 3)),
        ("gpu:a100:2(IDX:0-1),gpu:v100:1(IDX:4)", (0, 1, 4)),
        ("gpu:nvidia_a100-sxm4-40gb:1(IDX:7)", (7,)),
        ("shard:2(0/4,2/4),gpu:1(IDX:3)", (3,)),
        ("gpu:0(IDX:)", ()),
        ("nic:1(IDX:0)", ()),
        ("craynetwork:1", ()),
        ("", ()),
    ],
)
def test_what_slurm_writes(detail: str, indices: tuple[int, ...]) -> None:
    assert indices_in(detail) == indices


@pytest.mark.spec("TOP-2")
@pytest.mark.parametrize(
    "detail",
    [
        "gpu:2(CNT:2)",
        "gpu:2",
        "gpu:2(IDX:0)",
        "gpu:1(IDX:0-1)",
        "gpu:2(IDX:1-0)",
        "gpu:1(IDX:0),gpu:1(IDX:0)",
        "gpu:1(IDX:99999)",
        "gpu:100000(IDX:0)",
        "gpu:1(IDX:٣)",
        "gpu:1(IDX:0",
        "gpu:1(IDX:0))",
        "gpu:1(IDX:-1)",
        "gpu:1(IDX:0) ; rm",
        "gpu:1(IDX:0)gpu:1(IDX:1)",
        "gpu(IDX:0)",
        "(null)",
        "gpu:1(IDX:0)" * 1000,
    ],
)
def test_what_says_no_number_gives_none(detail: str) -> None:
    assert indices_in(detail) is None


@pytest.mark.spec("TOP-2")
def test_texts_belong_to_nodes_in_the_order_of_the_list() -> None:
    assert gpus_of("n[1-2],n9", ["gpu:1(IDX:3)", "gpu:0(IDX:)", "gpu:2(IDX:0-1)"]) == (
        NodeGpus("n1", (3,)),
        NodeGpus("n9", (0, 1)),
    )


@pytest.mark.spec("TOP-2")
@pytest.mark.parametrize(
    ("nodes", "details"),
    [
        ("n[1-2]", ["gpu:1(IDX:0)"]),
        ("n1", ["gpu:1(IDX:0)", "gpu:1(IDX:1)"]),
        ("n[1-2]", ["gpu:1(IDX:0)", "gpu:1(CNT:1)"]),
        ("n[1-", ["gpu:1(IDX:0)"]),
        ("", ["gpu:1(IDX:0)"]),
        ("n[1-99999999]", ["gpu:1(IDX:0)"]),
        ("n1", []),
        ("n1", [""]),
    ],
)
def test_where_one_node_is_not_known_none_is(nodes: str, details: list[str]) -> None:
    assert gpus_of(nodes, details) == ()


LISTED = st.sets(st.integers(0, 63), min_size=1, max_size=16)


def _written(indices: set[int], ranges: bool) -> str:
    parts: list[str] = []
    for index in sorted(indices):
        if ranges and parts and int(parts[-1].split("-")[-1]) == index - 1:
            parts[-1] = f"{parts[-1].split('-')[0]}-{index}"
        else:
            parts.append(str(index))
    return ",".join(parts)


@given(
    indices=LISTED,
    kind=st.sampled_from(["", ":a100", ":nvidia_h100-80gb"]),
    ranges=st.booleans(),
    others=st.sampled_from(["", ",nic:1(IDX:0)", ",shard:2(0/4)"]),
)
def test_what_is_written_is_read(indices: set[int], kind: str, ranges: bool, others: str) -> None:
    detail = f"gpu{kind}:{len(indices)}(IDX:{_written(indices, ranges)}){others}"
    assert indices_in(detail) == tuple(sorted(indices))


@given(text=st.text(max_size=60) | st.text("gpu:IDXCNT()0123456789,-a ", max_size=60))
def test_hostile_text_gives_nothing_or_small_numbers_each_once(text: str) -> None:
    found = indices_in(text)
    assert found is None or (
        list(found) == sorted(set(found)) and all(0 <= index < 1024 for index in found)
    )


@pytest.mark.spec("TOP-2")
@given(
    nodes=st.text(max_size=30) | st.sampled_from(["n[1-3]", "n1", "n[1-"]),
    details=st.lists(st.text(max_size=30) | st.just("gpu:1(IDX:0)"), max_size=4),
)
def test_no_node_is_named_that_is_not_the_jobs(nodes: str, details: list[str]) -> None:
    found = gpus_of(nodes, details)
    assert len(found) <= len(details)
    assert all(each.node in nodes or "[" in nodes for each in found)


@pytest.mark.spec("TOP-2")
@pytest.mark.parametrize("schema", known_schemas(), ids=lambda each: each.version)
@pytest.mark.parametrize(
    ("detail", "known"),
    [
        (["gpu:1(IDX:2)"], (NodeGpus("n1", (2,)),)),
        ([], ()),
        (None, ()),
        ("gpu:1(IDX:2)", ()),
        ([7], ()),
        ({"n1": "gpu:1(IDX:2)"}, ()),
    ],
)
def test_every_schema_reads_it(
    schema: Any, placing: Placing, detail: Any, known: tuple[NodeGpus, ...]
) -> None:
    record = {
        "job_id": 5,
        "submit_time": 1794702400,
        "job_state": "RUNNING",
        "nodes": "n1",
        "gres_detail": detail,
    }
    found = schema.job(json.dumps(record).encode(), placing)
    assert isinstance(found, Allocation)
    assert found.gpu_indices == known
