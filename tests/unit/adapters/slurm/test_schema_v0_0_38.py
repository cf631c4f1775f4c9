"""The decoder of Slurm 22.05 on what a real one answered."""

from __future__ import annotations

import json
from dataclasses import replace
from datetime import UTC, datetime
from typing import Any

import pytest

from lattice.adapters.slurm.schema import PastRow, fields
from lattice.adapters.slurm.schema.decoder import Schema
from lattice.adapters.slurm.tenancy import Placing
from lattice.domain.allocation import (
    Allocation,
    Array,
    ExitCode,
    Heterogeneous,
    NodeGpus,
    State,
)
from lattice.domain.node import Node, NodeState
from tests.fakes.recorded_slurm import recorded

SCHEMA = Schema("v0.0.38")


def at(seconds: int) -> datetime:
    return datetime.fromtimestamp(seconds, UTC)


def raw(record: Any) -> bytes:
    return json.dumps(record).encode()


def job(placing: Placing, job_id: int, **changes: Any) -> Allocation:
    record = next(each for each in recorded("jobs")["jobs"] if each["job_id"] == job_id)
    found = SCHEMA.job(raw(record | changes), placing)
    assert found is not None
    return found


def past(placing: Placing, job_id: int, **changes: Any) -> list[PastRow]:
    records = [each for each in recorded("past-jobs")["jobs"] if each["job_id"] == job_id]
    rows = [SCHEMA.past_job(raw(record | changes), placing) for record in records]
    return [row for row in rows if row is not None]


def node(name: str, **changes: Any) -> Node:
    record = next(each for each in recorded("nodes")["nodes"] if each["name"] == name)
    found = SCHEMA.node(raw(record | changes))
    assert found is not None
    return found


@pytest.mark.spec("ALLOC-1")
def test_a_running_gpu_job_on_two_nodes(placing: Placing) -> None:
    assert job(placing, 1) == Allocation(
        cluster="lab",
        id="1",
        job_id=1,
        name="train",
        user="alice",
        account="research",
        tenant="physics",
        partition="main",
        qos="normal",
        vcluster="train",
        state=State.RUNNING,
        submitted=at(1794702382),
        first_submitted=at(1794702382),
        eligible=at(1794702382),
        started=at(1794702383),
        time_limit_s=1800,
        nodes="n[1-2]",
        node_count=2,
        tasks=2,
        cpus=2,
        gpus=4,
        memory_bytes=512 * 2**20,
        work_dir="/home/alice",
        command="/home/alice/s.sh 900",
        gpu_indices=(NodeGpus("n1", (0, 1)), NodeGpus("n2", (0, 1))),
    )


def test_a_running_job_s_expected_end_is_never_its_end(placing: Placing) -> None:
    assert job(placing, 1).ended is None
    assert job(placing, 1, job_state="CONFIGURING").ended is None
    assert job(placing, 1, job_state="SUSPENDED", pre_sus_time=12).ended is None


@pytest.mark.spec("ALLOC-2")
def test_a_waiting_job_says_why_and_when_it_may_start(placing: Placing) -> None:
    waiting = job(placing, 9)
    assert waiting.state is State.PENDING
    assert waiting.reason is not None
    assert waiting.reason.code == "Resources"
    assert waiting.started is None
    assert waiting.ended is None
    assert waiting.expected_start == at(1826238405)
    assert waiting.time_limit_s is None
    fresh = job(placing, 9, state_reason="None", start_time=0)
    assert fresh.reason is not None
    assert fresh.reason.words == "Slurm has not looked at it yet"
    assert fresh.expected_start is None


def test_a_failed_job_has_its_exit_code_and_reason(placing: Placing) -> None:
    failed = job(placing, 6)
    assert failed.state is State.FAILED
    assert failed.exit_code == ExitCode(3)
    assert failed.elapsed_s == 1
    assert failed.reason is not None
    assert failed.reason.code == "NonZeroExitCode"
    assert job(placing, 6, exit_code=9).exit_code == ExitCode(0, 9)
    assert job(placing, 6, exit_code=3893).exit_code == ExitCode(0, 53)


def test_a_job_cancelled_before_it_ran_never_started(placing: Placing) -> None:
    cancelled = job(placing, 7, job_state="CANCELLED", start_time=1794702400, end_time=1794702400)
    assert cancelled.started is None
    assert cancelled.ended == at(1794702400)
    assert cancelled.elapsed_s is None
    assert cancelled.reason is None


def test_array_tasks_and_the_rest_that_waits(placing: Placing) -> None:
    assert (job(placing, 12).id, job(placing, 12).array) == ("2_1", Array(2, 1))
    assert (job(placing, 2).id, job(placing, 2).array) == ("2", Array(2, None, "3-6%2"))


def test_het_components(placing: Placing) -> None:
    assert (job(placing, 15).id, job(placing, 15).heterogeneous) == ("14+1", Heterogeneous(14, 1))
    assert job(placing, 14).id == "14+0"


def test_a_requeued_job_s_first_submit_is_not_known_here(placing: Placing) -> None:
    again = job(placing, 11)
    assert again.attempt == 2
    assert again.submitted == at(1794702403)
    assert again.first_submitted is None


def test_hostile_names_stay_data_and_are_bounded(placing: Placing) -> None:
    assert job(placing, 4).name == "evil\nname"
    assert job(placing, 5).name == "\x1b]0;pwn\x07<script>"
    assert len(job(placing, 5, name="x" * 10_000_000).name) == 1024


def test_suspension_is_taken_off_the_running_time(placing: Placing) -> None:
    start = 1794702383
    suspended = job(placing, 1, job_state="SUSPENDED", pre_sus_time=40, suspend_time=start + 40)
    assert suspended.elapsed_at(at(start + 1000)) == 40
    resumed = job(placing, 1, pre_sus_time=40, suspend_time=start + 100)
    assert resumed.suspended_s == 60
    assert resumed.elapsed_at(at(start + 110)) == 50
    ended = job(
        placing,
        1,
        job_state="COMPLETED",
        pre_sus_time=40,
        suspend_time=start + 100,
        end_time=start + 110,
    )
    assert ended.elapsed_s == 50


def test_preemption_notice(placing: Placing) -> None:
    assert job(placing, 1).preempted_at is None
    assert job(placing, 1, preempt_time=1794702500).preempted_at == at(1794702500)


def test_a_job_of_several_partitions_belongs_to_the_first_view(placing: Placing) -> None:
    assert job(placing, 9, partition="other,main").vcluster == "train"
    assert job(placing, 9, partition="other").vcluster is None


def test_an_unknown_account_has_no_tenant(placing: Placing) -> None:
    assert job(placing, 1, account="elsewhere").tenant == ""


@pytest.mark.parametrize(
    ("tres", "gpus", "memory"),
    [
        ("cpu=2,mem=2G,gres/gpu=4,gres/gpu:a100=4", 4, 2**31),
        ("cpu=2,mem=1.50T,gres/gpu:a100=2,gres/gpu:h100=1", 3, int(1.5 * 2**40)),
        ("cpu=2,mem=512", 0, 2**29),
        ("cpu=2", 0, None),
        ("mem=lots,gres/gpu=many", 0, None),
        ("mem=1e300T", 0, None),
        ("mem=-1M", 0, None),
    ],
)
def test_resources_in_slurm_s_strings(
    placing: Placing, tres: str, gpus: int, memory: int | None
) -> None:
    found = job(placing, 1, tres_alloc_str=tres)
    assert (found.gpus, found.memory_bytes) == (gpus, memory)


def test_what_waits_shows_what_it_asked_for(placing: Placing) -> None:
    found = job(placing, 9, tres_alloc_str="", tres_req_str="mem=1G,gres/gpu=8")
    assert (found.gpus, found.memory_bytes) == (8, 2**30)


@pytest.mark.parametrize("state", [state for state in State if state is not State.UNKNOWN])
def test_every_state_of_slurm_is_known(placing: Placing, state: State) -> None:
    assert job(placing, 1, job_state=state.name).state is state


def test_a_state_of_a_later_slurm_is_unknown_and_no_crash(placing: Placing) -> None:
    assert job(placing, 1, job_state="TELEPORTING").state is State.UNKNOWN


FIELDS = sorted(set(recorded("jobs")["jobs"][0]) - {"job_id", "submit_time"})


@pytest.mark.parametrize("value", [None, -1, 2**70, 1.5, "x", [], {}, [1], {"set": True}, True])
def test_a_wrongly_typed_field_costs_that_field_only(placing: Placing, value: Any) -> None:
    for field in FIELDS:
        found = job(placing, 1, **{field: value})
        assert (found.job_id, found.cluster, found.submitted) == (1, "lab", at(1794702382))
        assert found.name == "train" or field == "name"
        assert found.user == "alice" or field == "user_name"
        assert found.state is State.RUNNING or field == "job_state"
        assert found.account == "research" or field == "account"
        assert found.nodes == "n[1-2]" or field == "nodes"


@pytest.mark.parametrize("job_id", [None, 0, -1, "1", 2**40, 1.5, [], {}])
def test_a_record_without_a_job_id_is_dropped(placing: Placing, job_id: Any) -> None:
    record = recorded("jobs")["jobs"][0] | {"job_id": job_id}
    assert SCHEMA.job(raw(record), placing) is None
    del record["job_id"]
    assert SCHEMA.job(raw(record), placing) is None


def test_broken_text_in_one_field_keeps_the_record(placing: Placing) -> None:
    broken = raw(recorded("jobs")["jobs"][0]).replace(b'"train"', b'"tr\xff\xfe"')
    found = SCHEMA.job(broken, placing)
    assert found is not None
    assert found.name == "tr��"
    assert found.user == "alice"


def test_a_row_of_the_accounting_store(placing: Placing) -> None:
    (row,) = past(placing, 1)
    assert row.restarts is None
    assert row.allocation == replace(
        job(placing, 1), command="", tasks=None, eligible=at(1794702382), gpu_indices=()
    )


def test_the_store_s_exit_code_is_believed_only_where_it_can_be_true(placing: Placing) -> None:
    assert past(placing, 6)[0].allocation.exit_code is None
    assert past(placing, 3)[0].allocation.exit_code == ExitCode(0)
    killed = {"status": "SIGNALED", "return_code": None, "signal": {"signal_id": 9}}
    assert past(placing, 6, exit_code=killed)[0].allocation.exit_code == ExitCode(0, 9)


def test_two_runs_of_one_job(placing: Placing) -> None:
    first, second = past(placing, 11)
    assert first.allocation.state is State.REQUEUED
    assert first.allocation.ended == at(1794702401)
    assert second.allocation.state is State.RUNNING
    assert second.allocation.ended is None
    assert second.allocation.reason is None


def test_another_cluster_s_rows_are_not_ours(placing: Placing) -> None:
    assert past(placing, 1, cluster="other") == []


def test_rows_of_an_array(placing: Placing) -> None:
    rows = [SCHEMA.past_job(raw(each), placing) for each in recorded("past-array")["jobs"]]
    assert [row.allocation.id for row in rows if row] == ["2", "2_1", "2_2"]


def test_nodes_as_slurm_tells_them() -> None:
    assert node("n1") == Node(
        name="n1",
        state=NodeState.READY,
        slurm_state="mixed",
        partitions=("main",),
        cpus=8,
        cpus_allocated=5,
        memory_bytes=4000 * 2**20,
        memory_allocated_bytes=1280 * 2**20,
        gpus=4,
        gpus_allocated=2,
        slurm_version="22.05.8",
        booted=at(1794701952),
    )


@pytest.mark.parametrize(
    ("state", "flags", "meant"),
    [
        ("idle", [], NodeState.READY),
        ("allocated", [], NodeState.READY),
        ("mixed", ["COMPLETING"], NodeState.READY),
        ("idle", ["DRAIN"], NodeState.DRAINED),
        ("idle", ["DRAIN", "COMPLETING"], NodeState.DRAINING),
        ("allocated", ["DRAIN"], NodeState.DRAINING),
        ("mixed", ["DRAIN"], NodeState.DRAINING),
        ("down", [], NodeState.DOWN),
        ("down", ["DRAIN"], NodeState.DOWN),
        ("down", ["NOT_RESPONDING"], NodeState.DOWN),
        ("idle", ["FAIL"], NodeState.DOWN),
        ("idle", ["NOT_RESPONDING"], NodeState.UNKNOWN),
        ("unknown", [], NodeState.UNKNOWN),
        ("", [], NodeState.UNKNOWN),
    ],
)
def test_what_a_node_s_state_means(state: str, flags: list[str], meant: NodeState) -> None:
    assert node("n1", state=state, state_flags=flags).state is meant


def test_a_drained_node_says_who_and_why() -> None:
    drained = node(
        "n3",
        state_flags=["DRAIN"],
        reason="bad disk\x1b[2J",
        reason_set_by_user="root",
        reason_changed_at=1794702400,
    )
    assert drained.slurm_state == "idle+drain"
    assert (drained.reason, drained.reason_by) == ("bad disk\x1b[2J", "root")
    assert drained.reason_at == at(1794702400)


def test_a_node_without_a_name_is_dropped() -> None:
    assert SCHEMA.node(b'{"state": "idle"}') is None


def test_accounts_and_associations() -> None:
    accounts = [SCHEMA.account(raw(each)) for each in recorded("accounts")["accounts"]]
    theory = next(row for row in accounts if row and row.name == "theory")
    assert theory.coordinators == {"bob"}
    rows = [SCHEMA.association(raw(each)) for each in recorded("associations")["associations"]]
    assert {(row.account, row.parent) for row in rows if row and not row.user} == {
        ("root", ""),
        ("biology", "root"),
        ("physics", "root"),
        ("theory", "physics"),
        ("research", "physics"),
    }
    assert SCHEMA.account(b"{}") is None
    assert SCHEMA.association(b'{"account": "a"}') is None


@pytest.mark.parametrize(
    "value", ["1099511627775P", "8192P", "1_0M", "٣M", "1e3M", "+5M", "nan", ""]
)
def test_memory_that_no_job_can_have_is_not_told(value: str) -> None:
    assert fields.memory_bytes(value) is None


@pytest.mark.parametrize(
    ("value", "size"), [("512M", 2**29), ("1.5G", 3 * 2**29), ("7", 7 * 2**20)]
)
def test_memory_is_read_in_slurms_units(value: str, size: int) -> None:
    assert fields.memory_bytes(value) == size
