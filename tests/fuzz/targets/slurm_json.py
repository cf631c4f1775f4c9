"""Answers of slurmrestd, in every schema version: the envelope, and each record in it.

- An envelope gives records or `SlurmRefused`; a record gives a card or None. Nothing else escapes,
  however deep it nests and however large its numbers are.
- Every card can be told: it becomes a message, and its texts are text.
- Times, counts and memory are within bounds, or unknown.
"""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import suppress

from lattice.adapters.slurm.answer import SlurmRefused, checked, read_answer
from lattice.adapters.slurm.attempts import fold
from lattice.adapters.slurm.dialect import choose, offered
from lattice.adapters.slurm.schema.decoder import Schema, known_schemas
from lattice.adapters.slurm.tenancy import Placing
from lattice.domain.accounts import AccountTree
from lattice.domain.allocation import Allocation
from lattice.domain.node import Node
from lattice.domain.vcluster import Vclusters
from lattice.features.allocations.model import AllocationList
from lattice.features.nodes.model import NodeList
from lattice.wire.convert import message_of
from lattice.wire.v1 import allocations_pb2, nodes_pb2

TOKENS = (
    b'{"set":true,"infinite":false,"number":5}',
    b'{"set":true,"number":1e300}',
    b'"infinite":true',
    b'"jobs":[',
    b'"nodes":[',
    b'"errors":[',
    b'"last_update":',
    b'"job_id":1,',
    b'"submit_time":1700000000,',
    b'"tres_alloc_str":"cpu=2,mem=512M,gres/gpu:a100=4"',
    b'"mem=1_0M"',
    b'"mem=999999999999P"',
    b'"tres":{"allocated":[{"type":"cpu","name":"","count":4}]}',
    b'"exit_code":{"status":["SIGNALED"],"signal":{"signal_id":9}}',
    b'"job_state":["PENDING","COMPLETING"]',
    b'"gres_detail":["gpu:a100:2(IDX:0-1)"]',
    b'"nodes":"n[1-2]"',
    b"4294967294",
    b"18446744073709551616",
    b"-9223372036854775809",
    b"1e999",
    b"NaN",
    b"Infinity",
    b"null",
    b"true",
    b"[[[[[[[[[[[[[[[[",
    b'{"a":{"a":{"a":{"a":',
    b"\xff",
    b"\\ud800",
    b"\\u0000",
)
_KEYS = ("jobs", "nodes", "accounts", "associations")
_SCHEMAS = known_schemas()
_KNOWN = {each.version: each for each in _SCHEMAS}
_PLACING = Placing("lab", AccountTree(), Vclusters())
_MOST_RECORDS = 4
_LARGEST = 2**63
_TEXT_LIMIT = 1024


def seeds() -> Iterable[bytes]:
    yield b'{"jobs":[{"job_id":1,"submit_time":5,"job_state":"RUNNING","tres_alloc_str":"mem=5M"}]}'
    yield b'{"job_id":1,"submit_time":{"set":true,"number":5},"job_state":["RUNNING"]}'
    yield b'{"job_id":1,"submit_time":5,"tres_alloc_str":"cpu=1,mem=1000000000000P"}'
    yield b'{"errors":[{"error":"x","error_number":9003}],"nodes":[{"name":"n1"}]}'
    # Deep enough for Python's own frames and not for the parser's.
    yield b'{"jobs":[],"errors":' + b"[" * 600 + b"]" * 600 + b"}"
    yield b'{"jobs":[],"last_update":' + b"9" * 4300 + b"}"
    yield b'{"job_id":1,"submit_time":5,"x":' + b"[" * 900 + b"]" * 900 + b',"name":5}'


def try_one(data: bytes) -> None:
    for schema in _SCHEMAS:
        _record(schema, data)
    for key in _KEYS:
        try:
            answer = read_answer(data, key)
        except SlurmRefused:
            continue
        assert answer.last_update is None or answer.last_update > 0
        for status in (200, 500):
            try:
                checked(answer, status, "this")
            except SlurmRefused as refused:
                str(refused).encode()
        for raw in answer.records[:_MOST_RECORDS]:
            for schema in _SCHEMAS:
                _record(schema, bytes(raw))
    with suppress(SlurmRefused):
        choose(offered(data), _KNOWN)


def _record(schema: Schema, raw: bytes) -> None:
    job, row, node = schema.job(raw, _PLACING), schema.past_job(raw, _PLACING), schema.node(raw)
    rows = [] if row is None else [row]
    jobs = [] if job is None else [job]
    for each in (*jobs, *(each.allocation for each in rows), *fold(rows * 2)):
        _check_job(each)
    if node is not None:
        _check_node(node)
    account, association = schema.account(raw), schema.association(raw)
    if account is not None:
        assert account.name
        account.name.encode()
    if association is not None:
        assert association.account
        assert association.cluster


def _check_job(job: Allocation) -> None:
    assert 0 < job.job_id < 2**32
    assert len(job.name) <= _TEXT_LIMIT
    counts = (job.elapsed_s, job.suspended_s, job.time_limit_s, job.node_count, job.tasks, job.cpus)
    for count in (*counts, job.gpus, job.memory_bytes):
        assert count is None or (type(count) is int and 0 <= count < _LARGEST)
    told = AllocationList(allocations=(job,), sources=())
    message_of(told, allocations_pb2.AllocationList).SerializeToString()


def _check_node(node: Node) -> None:
    assert 0 < len(node.name) <= _TEXT_LIMIT
    for count in (node.cpus, node.cpus_allocated, node.gpus, node.memory_bytes):
        assert type(count) is int
        assert 0 <= count < _LARGEST
    told = NodeList(nodes=(node,), sources=())
    message_of(told, nodes_pb2.NodeList).SerializeToString()
