"""Arbitrary and mutated answers: a decoder gives an object or nothing, and never raises."""

from __future__ import annotations

import copy
import json
from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from lattice.adapters.slurm.answer import read_answer
from lattice.adapters.slurm.attempts import fold
from lattice.adapters.slurm.schema import PastRow
from lattice.adapters.slurm.schema.decoder import Schema, known_schemas
from lattice.adapters.slurm.tenancy import Placing
from lattice.base.errors import Unavailable
from lattice.domain.accounts import AccountTree
from lattice.domain.allocation import Allocation
from lattice.domain.node import Node
from lattice.domain.vcluster import Vclusters
from tests.fakes.recorded_slurm import recorded

PLACING = Placing("lab", AccountTree(), Vclusters())
SCHEMAS = known_schemas()
each_schema = pytest.mark.parametrize("schema", SCHEMAS, ids=lambda schema: schema.version)

LEAVES = (
    st.none()
    | st.booleans()
    | st.integers()
    | st.integers(-(2**70), 2**70)
    | st.floats()
    | st.text(max_size=30)
    | st.sampled_from(["RUNNING", "REQUEUED", "None", "gres/gpu=1e9", "mem=9P", "n[1-", "\x00"])
)
VALUES = st.recursive(
    LEAVES,
    lambda inner: (
        st.lists(inner, max_size=4)
        | st.dictionaries(
            st.sampled_from(["set", "infinite", "number", "id", "return_code", "current"])
            | st.text(max_size=8),
            inner,
            max_size=4,
        )
    ),
    max_leaves=8,
)
LISTS = (("jobs", "jobs"), ("past-jobs", "jobs"), ("nodes", "nodes"), ("accounts", "accounts"))


def paths(value: Any, at: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    if at:
        yield at
    if isinstance(value, dict):
        for key, inner in value.items():
            yield from paths(inner, (*at, key))
    elif isinstance(value, list):
        for index, inner in enumerate(value[:2]):
            yield from paths(inner, (*at, index))


def set_at(value: Any, path: tuple[Any, ...], new: Any) -> Any:
    changed = copy.deepcopy(value)
    inner = changed
    for step in path[:-1]:
        inner = inner[step]
    inner[path[-1]] = new
    return changed


@st.composite
def mutated(draw: st.DrawFn, records: list[Any]) -> bytes:
    record = draw(st.sampled_from(records))
    for _ in range(draw(st.integers(1, 4))):
        record = set_at(record, draw(st.sampled_from(list(paths(record)))), draw(VALUES))
    return json.dumps(record).encode()


def decode_all(schema: Schema, raw: bytes) -> None:
    job = schema.job(raw, PLACING)
    row = schema.past_job(raw, PLACING)
    node = schema.node(raw)
    schema.account(raw)
    schema.association(raw)
    if job is not None:
        check(job)
    if isinstance(row, PastRow):
        check(row.allocation)
        fold([row, row])
    if isinstance(node, Node):
        assert 0 < len(node.name) <= 1024


def check(job: Allocation) -> None:
    assert 0 < job.job_id < 2**32
    assert len(job.name) <= 1024
    assert job.submitted.tzinfo is not None
    job.ref.encode("utf-8")
    for text in (job.name, job.user, job.account, job.nodes, job.comment):
        text.encode("utf-8")
    assert job.memory_bytes is None or job.memory_bytes >= 0
    assert job.elapsed_s is None or job.elapsed_s >= 0


@each_schema
@settings(suppress_health_check=[HealthCheck.too_slow])
@given(data=st.data())
def test_mutated_answers_never_raise(schema: Schema, data: st.DataObject) -> None:
    file, key = data.draw(st.sampled_from(LISTS))
    records = recorded(file, schema.version)[key]
    decode_all(schema, data.draw(mutated(records)))


@each_schema
@given(value=VALUES)
def test_arbitrary_values_never_raise(schema: Schema, value: Any) -> None:
    decode_all(schema, json.dumps(value).encode())


@given(raw=st.binary(max_size=120), schema=st.sampled_from(SCHEMAS))
def test_arbitrary_bytes_never_raise(raw: bytes, schema: Schema) -> None:
    decode_all(schema, raw)
    decode_all(schema, b'{"job_id": 1, "submit_time": 5, "name": "' + raw + b'"}')


@given(data=st.data())
def test_torn_answers_are_read_or_unavailable(data: st.DataObject) -> None:
    body = bytearray(json.dumps(recorded("jobs")).encode())
    at = data.draw(st.integers(0, len(body) - 1))
    how = data.draw(st.sampled_from(["cut", "flip", "insert"]))
    if how == "cut":
        del body[at:]
    elif how == "flip":
        body[at] ^= data.draw(st.integers(1, 255))
    else:
        body[at:at] = data.draw(st.binary(max_size=8))
    try:
        answer = read_answer(bytes(body), "jobs")
    except Unavailable:
        return
    for raw in answer.records:
        decode_all(SCHEMAS[0], bytes(raw))
