"""v0.0.39 to v0.0.44 tell the same cluster as the recording does, each in its own shapes."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest

from lattice.adapters.slurm.schema.decoder import Schema, known_schemas
from lattice.adapters.slurm.tenancy import Placing
from lattice.domain.allocation import Allocation, ExitCode, State
from lattice.domain.node import Node, NodeState
from tests.fakes.recorded_slurm import recorded

MODERN = [schema for schema in known_schemas() if schema.version not in {"v0.0.38", "v0.0.45"}]
"""Those whose answers are constructed."""
each_version = pytest.mark.parametrize("schema", MODERN, ids=lambda schema: schema.version)


def raw(record: Any) -> bytes:
    return json.dumps(record).encode()


def jobs(schema: Schema, placing: Placing) -> dict[str, Allocation]:
    records = recorded("jobs", schema.version)["jobs"]
    found = [schema.job(raw(record), placing) for record in records]
    return {job.id: job for job in found if job is not None}


def old_job(placing: Placing, job_id: int) -> Allocation:
    record = next(each for each in recorded("jobs")["jobs"] if each["job_id"] == job_id)
    found = Schema("v0.0.38").job(raw(record), placing)
    assert found is not None
    return found


@each_version
def test_live_jobs_are_those_of_the_recording(schema: Schema, placing: Placing) -> None:
    found = jobs(schema, placing)
    for job_id in (1, 2, 6, 9, 11, 12, 15):
        old = old_job(placing, job_id)
        assert replace(found[old.id], output="") == replace(old, output="")


@each_version
def test_past_rows_are_those_of_the_recording(schema: Schema, placing: Placing) -> None:
    found = [
        schema.past_job(raw(each), placing)
        for each in recorded("past-jobs", schema.version)["jobs"]
    ]
    old = [
        Schema("v0.0.38").past_job(raw(each), placing)
        for each in recorded("past-jobs")["jobs"]
        if each["job_id"] in (1, 6, 9, 11, 12, 15)
    ]
    assert len(found) == len(old) == 7
    for new_row, old_row in zip(found, old, strict=True):
        assert new_row is not None
        assert old_row is not None
        assert replace(new_row.allocation, output="", exit_code=None) == replace(
            old_row.allocation, exit_code=None
        )


@each_version
def test_exit_codes_in_their_newer_shapes(schema: Schema, placing: Placing) -> None:
    assert jobs(schema, placing)["6"].exit_code == ExitCode(3)
    record = next(
        each for each in recorded("past-jobs", schema.version)["jobs"] if each["job_id"] == 6
    )
    row = schema.past_job(raw(record), placing)
    assert row is not None
    assert row.allocation.exit_code == ExitCode(3)


@each_version
def test_the_restart_count_is_told_from_v0_0_43_on(schema: Schema, placing: Placing) -> None:
    rows = [
        schema.past_job(raw(each), placing)
        for each in recorded("past-jobs", schema.version)["jobs"]
        if each["job_id"] == 11
    ]
    told = schema.version >= "v0.0.43"
    assert [row.restarts for row in rows if row] == ([0, 1] if told else [None, None])


@pytest.mark.parametrize("schema", MODERN[1:], ids=lambda schema: schema.version)
def test_a_run_that_completes_to_be_requeued_is_still_the_old_attempt(
    schema: Schema, placing: Placing
) -> None:
    completing = jobs(schema, placing)["16"]
    assert completing.state is State.COMPLETING
    assert completing.attempt == 1
    assert completing.first_submitted == completing.submitted


@pytest.mark.spec("COMPARE-4")
@pytest.mark.parametrize("schema", known_schemas(), ids=lambda schema: schema.version)
def test_the_container_a_job_was_given_is_told_while_it_runs_and_after(
    schema: Schema, placing: Placing
) -> None:
    (live, *_), (past, *_) = (
        recorded(which, schema.version)["jobs"] for which in ("jobs", "past-jobs")
    )
    for told, container in (("/images/torch-2.9", "/images/torch-2.9"), ("", ""), (None, "")):
        running = schema.job(raw(live | {"container": told}), placing)
        ended = schema.past_job(raw(past | {"container": told}), placing)
        assert running is not None
        assert ended is not None
        assert (running.container, ended.allocation.container) == (container, container)


@each_version
def test_nodes_are_those_of_the_recording(schema: Schema) -> None:
    nodes = [schema.node(raw(each)) for each in recorded("nodes", schema.version)["nodes"]]
    old = [Schema("v0.0.38").node(raw(each)) for each in recorded("nodes")["nodes"]]
    assert nodes[:2] == old[:2]
    drained = nodes[2]
    assert isinstance(drained, Node)
    assert drained.state is NodeState.DRAINED
    assert drained.slurm_state == "idle+drain"
    assert (drained.reason, drained.reason_by) == ("ECC errors", "root")
    assert drained.reason_at is not None


@each_version
def test_accounts_are_those_of_the_recording(schema: Schema) -> None:
    def told(reader: Schema, version: str) -> list[Any]:
        return [
            *(reader.account(raw(each)) for each in recorded("accounts", version)["accounts"]),
            *(
                reader.association(raw(each))
                for each in recorded("associations", version)["associations"]
            ),
        ]

    assert told(schema, schema.version) == told(Schema("v0.0.38"), "v0.0.38")


SHAPES = [None, 5, -3, 2**70, "x", [], ["A"], {}, {"set": True}, {"set": "yes", "number": []}]


@each_version
@pytest.mark.parametrize("value", SHAPES, ids=repr)
def test_any_shape_in_any_field_costs_that_field_only(
    schema: Schema, placing: Placing, value: Any
) -> None:
    record = next(each for each in recorded("jobs", schema.version)["jobs"] if each["job_id"] == 1)
    for field in record.keys() - {"job_id", "submit_time"}:
        found = schema.job(raw(record | {field: value}), placing)
        assert found is not None, field
        assert found.user == "alice" or field == "user_name"
        assert found.state is State.RUNNING or field == "job_state"


def test_infinite_and_unset_numbers_are_not_told(placing: Placing) -> None:
    schema = MODERN[-1]
    record = recorded("jobs", schema.version)["jobs"][0]
    endless = {"set": False, "infinite": True, "number": 0}
    found = schema.job(raw(record | {"time_limit": endless, "tasks": {"set": False}}), placing)
    assert found is not None
    assert found.time_limit_s is None
    assert found.tasks is None
