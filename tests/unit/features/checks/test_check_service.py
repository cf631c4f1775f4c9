"""A check is a job of its operator, and its results are kept whoever asks for them, once."""

from __future__ import annotations

import json
from dataclasses import replace
from datetime import timedelta

import pytest

from lattice.access.actor import Actor, Role
from lattice.base.errors import NotFound, PermissionRefused, Unavailable, UsageError
from lattice.domain.allocation import Reason, State
from lattice.domain.job_text import JobText
from lattice.domain.node_check import CheckJob, read_check_job
from lattice.domain.submission import ProgramRefused, Unsure
from lattice.features.checks.model import CheckRequest
from lattice.features.checks.service.book import CheckBook
from lattice.features.checks.service.checks import LOST, CheckService
from tests.fakes.cluster import populated
from tests.fakes.foundation import NoLimits
from tests.fakes.in_memory_gate import InMemoryGate
from tests.fakes.in_memory_state import InMemoryStateStore
from tests.fakes.judged_nodes import KeptActs
from tests.fakes.manual_clock import ManualClock

DAVE = Actor(sub="sub-dave", user="dave", role=Role.OPERATOR)


class Texts:
    """The output of the job; `away` while nobody can read it."""

    def __init__(self) -> None:
        self.text, self.complete, self.away = "", True, False
        self.readers: list[str] = []

    async def of(self, _: str, user: str) -> JobText:
        self.readers.append(user)
        if self.away:
            raise Unavailable("The archive does not answer.")
        return JobText(self.text, self.complete)


class Site:
    """A service and what it stands on."""

    def __init__(self) -> None:
        self.clock = ManualClock()
        self.scheduler = populated(self.clock)
        (node,) = self.scheduler.nodes
        self.scheduler.nodes = [replace(node, name=f"n{number}", gpus=4) for number in (1, 2, 3)]
        self.gate = InMemoryGate(self.scheduler)
        self.state = InMemoryStateStore(self.clock)
        self.texts = Texts()
        self.acts = KeptActs()
        self.book = CheckBook(self.state)
        self.service = self.another()

    def another(self, **parts: object) -> CheckService:
        given: dict[str, object] = {"gate": self.gate, "texts": self.texts} | parts
        return CheckService(
            self.scheduler, given["gate"], CheckBook(self.state), given["texts"],  # type: ignore[arg-type]
            self.clock, self.acts, NoLimits(),
        )  # fmt: skip

    def gate_job(self) -> int:
        """The job that was submitted last."""
        return max(each.job_id for each in self.scheduler.allocations)

    async def secret(self, job_id: int) -> str:
        entry = await self.state.get(f"check-jobs/{job_id}")
        assert entry is not None
        return read_check_job(entry.value).secret

    def become(self, job_id: int, state: State, **changes: object) -> None:
        (at,) = [n for n, e in enumerate(self.scheduler.allocations) if e.job_id == job_id]
        found = self.scheduler.allocations[at]
        self.scheduler.allocations[at] = replace(found, state=state, **changes)  # type: ignore[arg-type]

    def end(self, job_id: int, state: State = State.COMPLETED) -> None:
        now = self.clock.now()
        self.become(job_id, state, started=now, ended=now)

    async def print_results(self, job_id: int, *nodes: str, disk: float = 1e9) -> None:
        secret = await self.secret(job_id)
        for node in nodes:
            measures = [{"name": "disk_read", "value": disk, "tool": "", "peer": ""}]
            document = json.dumps({"node": node, "measures": measures})
            self.texts.text += f"lattice-check {secret} {document}\n"


@pytest.fixture
def site() -> Site:
    return Site()


@pytest.mark.spec("OPS-10")
async def test_a_check_is_a_job_of_the_caller_that_has_the_nodes_alone(site: Site) -> None:
    answer = await site.service.check(DAVE, CheckRequest(name="n[1-2]", walltime_s=90))
    ((who, question, script),) = site.gate.submitted
    assert (who.user, answer.nodes) == ("dave", "n[1-2]")
    assert {
        "--gres=gpu:4",
        "--exclusive",
        "--nodelist=n[1-2]",
        "--nodes=2",
        "--time=2",
        "--no-requeue",
    } <= set(question.options)
    assert (await site.secret(answer.job_id)).encode() in script
    assert site.acts.acts[-1][:2] == ("check", "n[1-2]")


@pytest.mark.spec("OPS-10")
@pytest.mark.parametrize("is_live", [True, False])
async def test_a_check_is_found_whose_server_never_learned_its_job(
    site: Site, is_live: bool
) -> None:
    site.gate.lost_answers = 1
    with pytest.raises(Unsure):
        await site.service.check(DAVE, CheckRequest(name="n1"))
    job_id = site.gate_job()
    site.scheduler.down = True
    site.clock.advance(60)
    assert (await site.another().checks("n1")).open == (), "Slurm does not answer"
    site.scheduler.down = False
    if is_live:
        found = await site.another().checks("n1")
        assert [each.job_id for each in found.open] == [job_id]
        await site.print_results(job_id, "n1")
    site.end(job_id)
    if not is_live:
        site.scheduler.remembered.append(site.scheduler.allocations.pop())
    (node,) = (await site.another().checks("n1")).nodes
    assert [each.job_id for each in node.checks] == [job_id]
    assert bool(node.checks[0].measures) == is_live
    assert (await site.another().checks("n1")).open == ()


@pytest.mark.spec("OPS-10")
async def test_a_check_is_found_if_the_state_went_away_during_its_submission(site: Site) -> None:
    async def goes_away() -> None:
        site.state.away = True

    site.gate.before_submit = goes_away
    answer = await site.service.check(DAVE, CheckRequest(name="n1"))
    site.state.away = False
    assert [each.job_id for each in await site.another().collect()] == [answer.job_id]


async def test_two_servers_that_find_the_job_write_it_down_once(site: Site) -> None:
    site.gate.lost_answers = 1
    with pytest.raises(Unsure):
        await site.service.check(DAVE, CheckRequest(name="n1"))
    (mark,) = await site.book.begun()
    job_id = site.gate_job()
    await site.book.submitted(mark, job_id)
    await site.book.remove(job_id)
    await site.book.submitted(mark, job_id)
    assert await site.book.jobs() == (), "a check that is over does not come again"


async def test_a_check_that_was_never_submitted_is_forgotten(site: Site) -> None:
    with pytest.raises(ProgramRefused):
        await site.service.check(DAVE, CheckRequest(name="n1", partition="nowhere"))
    assert await site.book.begun() == {}
    at = site.clock.now()
    job = CheckJob(job_id=0, nodes="n1", user="dave", by="dave", secret="s", submitted=at)
    await site.book.begin("ab" * 16, job)
    assert await site.service.collect() == ()
    assert list(await site.book.begun()) == ["ab" * 16]
    site.clock.advance(timedelta(days=1).total_seconds() + 1)
    assert await site.service.collect() == ()
    assert await site.book.begun() == {}


async def test_what_waits_is_shown_with_its_reason(site: Site) -> None:
    answer = await site.service.check(DAVE, CheckRequest(name="n1"))
    site.become(answer.job_id, State.PENDING, reason=Reason("Resources", "waits for free nodes"))
    found = await site.service.checks("n1")
    assert found.nodes[0].checks == ()
    assert (found.open[0].state, found.open[0].reason) == ("pending", "waits for free nodes")
    assert (await site.service.checks("n3")).open == ()


@pytest.mark.spec("OPS-10")
async def test_every_node_of_an_ended_check_has_a_result_or_a_reason(site: Site) -> None:
    answer = await site.service.check(DAVE, CheckRequest(name="n[1-2]"))
    await site.print_results(answer.job_id, "n1", "n9")
    site.end(answer.job_id, State.TIMEOUT)
    found = await site.another().checks("n[1-2]")
    first, second = (each.checks[0] for each in found.nodes)
    assert first.value("disk_read") == 1e9
    assert second.reason == "the job ended without a result for this node (timeout)"
    assert site.texts.readers == ["dave"], "its output is read as its own"
    assert await site.state.get("check-results/n9") is None
    again = await site.service.checks("n[1-2]")
    assert [len(each.checks) for each in again.nodes] == [1, 1]
    assert again.open == ()


async def test_a_result_waits_for_output_that_is_not_stored_yet(site: Site) -> None:
    answer = await site.service.check(DAVE, CheckRequest(name="n1"))
    site.end(answer.job_id)
    site.texts.away = True
    assert (await site.service.checks("n1")).open[0].reason == "its output is not stored yet"
    site.clock.advance(400)
    (node,) = (await site.service.checks("n1")).nodes
    assert node.checks[0].reason.startswith("the output of the job could not be read")


async def test_a_job_that_slurm_forgot_is_given_up_after_a_day(site: Site) -> None:
    at = site.clock.now()
    job = CheckJob(job_id=0, nodes="n1", user="dave", by="dave", secret="s", submitted=at)
    await site.book.begin("ab" * 16, job)
    await site.book.submitted("ab" * 16, 99_999)
    assert len((await site.service.checks("n1")).open) == 1
    site.clock.advance(timedelta(days=1).total_seconds() + 1)
    (node,) = (await site.service.checks("n1")).nodes
    assert node.checks[0].reason == LOST


async def test_while_slurm_is_away_nothing_is_concluded(site: Site) -> None:
    answer = await site.service.check(DAVE, CheckRequest(name="n1"))
    site.scheduler.allocations.clear()
    site.scheduler.past_down = True
    found = await site.service.checks("n1")
    assert found.open[0].job_id == answer.job_id
    assert found.nodes[0].checks == ()


@pytest.mark.spec("OPS-10")
async def test_a_slow_node_is_a_warning_until_a_sound_check(site: Site) -> None:
    for disk in (1e9, 1e9, 1e9, 1e8):
        answer = await site.service.check(DAVE, CheckRequest(name="n1"))
        await site.print_results(answer.job_id, "n1", disk=disk)
        site.clock.advance(60)
        site.end(answer.job_id)
        await site.service.collect()
    await site.book.refresh()
    assert site.book.warnings()["n1"].startswith("check 503: disk, reading: 95.4M/s")
    answer = await site.service.check(DAVE, CheckRequest(name="n1"))
    await site.print_results(answer.job_id, "n1")
    site.clock.advance(60)
    site.end(answer.job_id)
    await site.service.collect()
    await site.book.refresh()
    assert site.book.warnings() == {}


async def test_what_can_not_be_checked_is_refused(site: Site) -> None:
    nobody = Actor(sub="s", role=Role.OPERATOR)
    with pytest.raises(PermissionRefused, match="names no Unix user"):
        await site.service.check(nobody, CheckRequest(name="n1"))
    with pytest.raises(NotFound):
        await site.service.check(DAVE, CheckRequest(name="n77"))
    with pytest.raises(UsageError):
        await site.service.check(DAVE, CheckRequest(name="n[1"))
    with pytest.raises(Unavailable, match="no submit gate"):
        await site.another(gate=None).check(DAVE, CheckRequest(name="n1"))
    with pytest.raises(Unavailable, match="stores no output"):
        await site.another(texts=None).check(DAVE, CheckRequest(name="n1"))
    site.state.away = True
    with pytest.raises(Unavailable):
        await site.service.check(DAVE, CheckRequest(name="n1"))
    assert site.gate.submitted == []
