"""`top` without a server: samples of a step become the rows of the usual answer."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from lattice.base.clock import SystemClock
from lattice.base.errors import DataUnavailable
from lattice.domain.allocation import Allocation, State
from lattice.domain.measured import Shown
from lattice.domain.metric import Provenance
from lattice.features.allocations.model import AllocationCard
from lattice.features.top.model import TopAnswer, TopMode, TopRow
from lattice.features.top.operations import TopRequest
from lattice.local.probe_script import ProbeSample
from lattice.local.probe_step import ProbeStep, step_command
from lattice.local.top import LocalTop
from tests.fakes.cluster import allocation
from tests.fakes.manual_clock import ManualClock
from tests.unit.local.fake_slurm import FakeSlurm


class FakeStep:
    """Each question adds a second of the node's time and half a second of one core's."""

    def __init__(self, site: Site) -> None:
        self.site = site
        self.is_running = True
        self.error = site.error
        self.closed = False

    def ask(self, within_s: float) -> dict[str, ProbeSample]:  # noqa: ARG002
        site = self.site
        site.up_s += 1
        found = {}
        for node in site.answering:
            found[node] = ProbeSample(up_s=site.up_s)
            found[node].add("group 1")
            found[node].add(f"usage {int(site.up_s * 5e8)}")
        return found

    def close(self) -> None:
        self.closed = True


class Site:
    def __init__(self) -> None:
        self.clock = ManualClock()
        self.up_s = 100.0
        self.answering: tuple[str, ...] = ("n1", "n2")
        self.error = ""
        self.steps: list[FakeStep] = []
        self.allocation: Allocation = allocation(
            1,
            "alice",
            "research",
            started=self.clock.now() - timedelta(hours=1),
            nodes="n[1-2]",
            node_count=2,
            gpus=0,
        )
        self.top = LocalTop(self.card, self.clock, step=self.step, sleep=self.sleep)

    async def card(self, reference: str) -> AllocationCard:  # noqa: ARG002
        return AllocationCard(allocation=self.allocation, sources=())

    def step(self, command: Sequence[str], nodes: Sequence[str], clock: Any) -> Any:  # noqa: ARG002
        self.steps.append(FakeStep(self))
        return self.steps[-1]

    async def sleep(self, seconds: float) -> None:
        self.clock.advance(seconds)

    async def read(self, mode: TopMode = TopMode.PER_NODE, **more: Any) -> TopAnswer:
        return await self.top.read(TopRequest(id="1", mode=mode, **more))


def cpu(row: TopRow) -> float | None:
    (cell,) = [each for each in row.cells if each.metric is Shown.CPU_UTILIZATION]
    return cell.value


@pytest.fixture
def site() -> Site:
    return Site()


@pytest.mark.spec("TRY-3", "SRC-2")
async def test_a_rate_comes_from_two_samples_by_the_nodes_own_time(site: Site) -> None:
    answer = await site.read()
    assert [cpu(each) for each in answer.rows] == [100.0, 50.0, 50.0]
    origin = answer.origin
    assert (origin.source, str(origin.coverage)) == (Provenance.IN_JOB_PROBE, "2/2 nodes")
    assert origin.resolution_s == 1.0


async def test_further_questions_go_to_the_same_step(site: Site) -> None:
    await site.read()
    site.clock.advance(5)
    assert cpu((await site.read()).rows[1]) == 50.0
    assert len(site.steps) == 1
    site.steps[0].is_running = False
    await site.read()
    assert [each.closed for each in site.steps] == [True, False]
    site.top.close()
    assert site.steps[1].closed


@pytest.mark.spec("TRY-3", "SRC-2")
async def test_a_node_that_does_not_answer_has_no_number(site: Site) -> None:
    site.answering = ("n1",)
    site.error = "srun: error: n2: no slots"
    answer = await site.read()
    assert [cpu(each) for each in answer.rows] == [50.0, 50.0, None]
    assert "no slots" in answer.rows[2].reason
    assert str(answer.origin.coverage) == "1/2 nodes"


@pytest.mark.spec("TRY-3", "SRC-2")
async def test_every_missing_number_has_a_reason(site: Site) -> None:
    answer = await site.read(TopMode.WIDE)
    empty = [each for row in answer.rows for each in row.cells if each.value is None]
    assert empty
    assert all(each.reason for each in empty)
    gpus = {each.reason for each in empty if each.metric is Shown.GPU_UTILIZATION}
    assert gpus == {"the job has no GPUs"}


async def test_a_time_range_is_said_to_be_missing(site: Site) -> None:
    answer = await site.read(duration_s=600)
    assert answer.duration_s is None
    assert answer.notes == ("The values are those of now, not of the time that was asked for.",)


async def test_a_suspended_job_is_not_measured(site: Site) -> None:
    site.allocation = replace(site.allocation, state=State.SUSPENDED)
    answer = await site.read()
    assert answer.origin.source is Provenance.UNAVAILABLE
    assert "suspended" in answer.origin.reason
    assert site.steps == []


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"started": None, "state": State.PENDING}, "has not started"),
        ({"state": State.COMPLETED}, "needs a server"),
    ],
)
async def test_only_a_running_job_can_be_measured(
    site: Site, change: dict[str, Any], words: str
) -> None:
    ended = {"ended": site.clock.now()} if change["state"].finished else {}
    site.allocation = replace(site.allocation, **change, **ended)
    with pytest.raises(DataUnavailable, match=words):
        await site.read()
    assert site.steps == []


def started(
    tmp_path: Path,
    script: str,
    monkeypatch: pytest.MonkeyPatch,
    nodes: Sequence[str] = ("n1", "n2"),
) -> ProbeStep:
    slurm = FakeSlurm(tmp_path / "bin")
    slurm.program("srun", script)
    monkeypatch.setenv("PATH", f"{slurm.folder}:/usr/bin:/bin")
    monkeypatch.setenv("SLURM_JOB_ID", "7")
    job = allocation(1, "alice", "research", nodes="n[1-2]", gpus=0)
    return ProbeStep(step_command(job, nodes), nodes, SystemClock())


ONE_ANSWERS = (
    "echo '0: node n1'; while read -r _; do printf '0: begin\\n0: up 1.5\\n0: end\\n'; done"
)


def test_a_step_answers_each_question_and_ends_with_its_input(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    step = started(tmp_path, ONE_ANSWERS, monkeypatch, ["n1"])
    for _ in range(2):
        assert {node: each.up_s for node, each in step.ask(20).items()} == {"n1": 1.5}
    assert step.is_running
    step.close()
    assert not step.is_running


@pytest.mark.parametrize(
    "script",
    [
        "printf 'noise\\n0: end\\n7: begin\\n0: node x\\n\\377\\n'; echo broken >&2",
        "echo broken >&2; exit 1",
    ],
)
def test_nonsense_is_no_sample(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, script: str
) -> None:
    step = started(tmp_path, script, monkeypatch)
    assert step.ask(20) == {}
    assert step.error == "broken"
    step.close()


def test_variables_of_another_job_stay_outside(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    step = started(tmp_path, "env >&2", monkeypatch)
    step.ask(20)
    assert "SLURM_JOB_ID" not in step.error
    step.close()
