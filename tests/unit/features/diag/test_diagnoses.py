"""The service: who may ask, what is gathered, and what silence of any part does to the page."""

from __future__ import annotations

from datetime import timedelta
from types import SimpleNamespace
from typing import Any, cast

import pytest

from lattice.access.limits import CallerLimits, Questions
from lattice.base.errors import DataUnavailable, NotFound, RateLimited, Unavailable, UsageError
from lattice.domain.allocation import State
from lattice.domain.jobfacts import RankStack, StackFrame, StackLanguage
from lattice.domain.metricstore import BadQuery, StoreSilent
from lattice.domain.node import Condition, NodeHealth
from lattice.domain.node_snapshot import NodeUnreachable
from lattice.domain.presence import Presence, PresenceReading, Presences
from lattice.domain.source import AGREED, Source
from lattice.features.diag.model import Area, Verdict
from lattice.features.diag.operations import DiagRequest
from lattice.features.diag.service.case_builder import PreviousFacts
from lattice.features.diag.wiring import bindings
from lattice.wire.convert import value_of
from lattice.wire.v1.diag_pb2 import GetDiagnosticsRequest
from tests.unit.features.diag.site import ALICE, BOB, DiagSite
from tests.unit.features.diag.wards import healthy, refact, still, task


@pytest.mark.spec("AUTH-12")
async def test_anothers_job_is_not_there() -> None:
    site = DiagSite()
    for name in ("2", "777"):
        with pytest.raises(NotFound) as refusal:
            await site.diagnose(name)
        assert refusal.value.message == f"No allocation {name} of yours."


@pytest.mark.spec("DIAG-6")
async def test_stacks_are_the_owners_alone_and_nobody_else_reaches_a_node() -> None:
    site = DiagSite()
    for actor, name in ((ALICE, "2"), (BOB, "1")):
        with pytest.raises(NotFound):
            await site.picture(name, actor)
    assert not site.stacks.asked


@pytest.mark.spec("LIMIT-1", "LIMIT-2")
async def test_a_question_too_many_is_refused_before_anything_is_asked() -> None:
    class Limits(CallerLimits):
        async def ask(self, sub: str, kind: Questions) -> None:
            assert (sub, kind) == ("sub-alice", Questions.DIAGNOSTICS)
            raise RateLimited("too many")

    site = DiagSite()
    site.limits = Limits()  # type: ignore[abstract]
    with pytest.raises(RateLimited):
        await site.diagnose()
    with pytest.raises(RateLimited):
        await site.picture()
    assert not site.facts.asked
    assert not site.stacks.asked


async def test_a_job_that_waits_or_is_over_says_where_to_look_instead() -> None:
    waiting = DiagSite(started=None, state=State.PENDING)
    with pytest.raises(DataUnavailable) as refusal:
        await waiting.diagnose()
    assert "lattice status 1" in refusal.value.hint
    at = waiting.clock.now() - timedelta(minutes=1)
    ended = DiagSite(state=State.COMPLETED, ended=at)
    with pytest.raises(DataUnavailable) as refusal:
        await ended.diagnose()
    assert "lattice report 1" in refusal.value.hint


@pytest.mark.spec("DIAG-1", "SRC-2")
@pytest.mark.parametrize(
    ("problem", "words"),
    [
        (StoreSilent("timeout"), "the metric store does not answer (timeout)"),
        (BadQuery("too many series"), "the metric store can't answer this (too many series)"),
    ],
)
async def test_a_silent_store_is_said_and_the_rest_is_judged(
    problem: Exception, words: str
) -> None:
    site = DiagSite()
    site.store.problem = problem
    told = await site.diagnose()
    assert told.verdict is Verdict.UNKNOWN
    assert words in {each.reason for each in told.findings}
    assert sum(each.verdict is Verdict.OK for each in told.findings) > 15


@pytest.mark.spec("DIAG-1", "SRC-2")
async def test_nodes_that_never_come_back_do_not_hold_up_the_page() -> None:
    site = DiagSite()
    site.within_s = -0.45
    site.facts.hangs = True
    told = await site.diagnose()
    assert told.verdict is Verdict.UNKNOWN
    assert told.covered.measured == 0
    assert "it was not heard in time" in {each.reason for each in told.findings}


@pytest.mark.spec("DIAG-1", "SRC-2")
async def test_a_silent_node_is_named_and_makes_the_whole_unknown() -> None:
    ward = healthy()
    ward[1].silence = NodeUnreachable("n2", "its agent is lost")
    told = await DiagSite(ward).diagnose()
    assert (told.verdict, str(told.covered)) == (Verdict.UNKNOWN, "3/4 nodes")
    assert "not everything could be looked at" in told.words


@pytest.mark.spec("DIAG-1", "DIAG-2")
async def test_a_healthy_job_is_ok_in_every_area() -> None:
    site = DiagSite()
    told = await site.diagnose()
    assert told.verdict is Verdict.OK
    assert {Area.NETWORK, Area.STORAGE, Area.GPU, Area.JOB, Area.MEMORY} == {
        each.area for each in told.findings
    }
    spans = next(each for each in told.findings if each.rule == "group_span")
    assert spans.evidence == "spans 2 (g1, g2)"
    assert len(site.store.asked) == 1
    assert 'user="alice"' in site.store.asked[0]


@pytest.mark.spec("DIAG-1")
@pytest.mark.parametrize("area", [Area.NETWORK, Area.STORAGE, Area.GPU])
async def test_one_area_has_its_own_lines_alone_and_who_does_not_answer(area: Area) -> None:
    ward = healthy()
    ward[1].silence = NodeUnreachable("n2", "its agent is lost")
    told = await DiagSite(ward).diagnose(areas=(area,))
    assert {each.area for each in told.findings if each.rule != "node_silent"} == {area}
    assert "node_silent" in {each.rule for each in told.findings}


async def test_grpc_names_areas_as_rest_does() -> None:
    site = DiagSite()
    handler = bindings(site.service)[0].handler
    asked = value_of(GetDiagnosticsRequest(id="1", areas=["gpu", "job", "gpu"]), DiagRequest)
    told: Any = await handler(ALICE, asked)
    assert told.areas == (Area.GPU, Area.JOB)
    asked = value_of(GetDiagnosticsRequest(id="1", areas=["gpus"]), DiagRequest)
    with pytest.raises(UsageError) as refusal:
        await handler(ALICE, asked)
    assert "network" in (refusal.value.hint or "")


@pytest.mark.spec("DIAG-4")
async def test_gpus_of_a_job_without_any_are_a_note() -> None:
    told = await DiagSite(healthy(gpus=False)).diagnose(areas=(Area.GPU,))
    assert told.notes == ("The job has no GPUs.",)


@pytest.mark.spec("DIAG-3")
async def test_the_second_look_knows_rates_from_the_first() -> None:
    ward = healthy()
    for each in ward.nodes:
        each.earlier = None
    site = DiagSite(ward)
    first = await site.diagnose(areas=(Area.STORAGE,))
    assert "MB/s" not in " ".join(each.evidence for each in first.findings)
    site.clock.advance(20)
    for node in ward.nodes:
        assert node.facts is not None
        mounts = tuple(
            type(each)(
                path=each.path,
                kind=each.kind,
                source=each.source,
                answered_s=each.answered_s,
                read_bytes=(each.read_bytes or 0) + 2e9,
                write_bytes=each.write_bytes,
            )
            for each in node.facts.mounts
        )
        refact(node, time=node.facts.time + 20, mounts=mounts)
        site.facts.told[node.name] = node.facts
    second = await site.diagnose(areas=(Area.STORAGE,))
    scratch = next(each for each in second.findings if each.title.startswith("/scratch"))
    assert "400 MB/s read" in scratch.evidence


async def test_facts_are_kept_of_few_nodes_and_not_for_long() -> None:
    site = DiagSite()
    kept = PreviousFacts(site.clock, most_nodes=6)
    case = site.ward.case
    kept.keep(case.job, case.facts)
    assert not kept.of(case.job), "of two looks at once no rate is told"
    site.clock.advance(10)
    assert kept.of(case.job) == case.facts
    site.clock.advance(1000)
    assert not kept.of(case.job)


@pytest.mark.spec("DIAG-6", "DIAG-1")
async def test_a_job_that_hangs_is_found_and_its_stacks_name_the_rank_and_the_line() -> None:
    ward = healthy(gpus=False)
    still(ward)
    refact(ward[3], tasks=(task(3, waits_in="hrtimer_nanosleep"),))
    site = DiagSite(ward)
    told = await site.diagnose()
    assert told.verdict is Verdict.BAD
    (hang,) = [each for each in told.findings if each.verdict.is_sick]
    assert (hang.rule, hang.subjects[0].rank) == ("job_hang", 3)
    meets = (
        StackFrame("all_reduce", "/x/site-packages/torch/d.py", 9),
        StackFrame("step", "train.py", 212),
    )
    sleeps = (StackFrame("__next__", "loader.py", 88), StackFrame("step", "train.py", 200))
    site.stacks.told = [
        RankStack(
            node=f"n{rank + 1}",
            rank=rank,
            pid=100 + rank,
            language=StackLanguage.PYTHON,
            frames=sleeps if rank == 3 else meets,
        )
        for rank in range(4)
    ]
    picture = await site.picture()
    assert picture.words == "ranks 0-2: all_reduce, train.py:212 | rank 3: __next__, loader.py:88"
    assert [each.ranks for each in picture.groups if each.is_odd] == [(3,)]
    assert site.stacks.asked == [("sub-alice", "1")]


@pytest.mark.spec("DIAG-6")
async def test_nodes_that_tell_no_stacks_are_said() -> None:
    site = DiagSite()
    site.stacks.silences = [NodeUnreachable("n2", "its agent is lost")]
    picture = await site.picture()
    assert picture.words == "no rank was seen"
    assert picture.troubles == ("n2: its agent is lost",)


async def test_a_server_that_can_take_no_stacks_says_so() -> None:
    site = DiagSite()
    site.service._stacks = None
    with pytest.raises(Unavailable):
        await site.picture()


@pytest.mark.spec("DIAG-4")
async def test_what_an_agent_lacks_is_named_and_is_no_fault_of_the_job() -> None:
    site = DiagSite()
    node = site.ward.nodes[0].name
    record = Presence(
        node=node,
        epoch=1,
        linked=True,
        since=1.0,
        condition=Condition.READY,
        registered=1.0,
        health=NodeHealth(lacks=("lattice-helper: /run/lattice/helper.sock: gone",)),
    )
    source = Source(name=AGREED, ok=True)
    reading = PresenceReading({node: record}, {}, source)
    site.presences = cast("Presences", SimpleNamespace(presences=lambda: reading))
    page = await site.diagnose()
    [found] = [each for each in page.findings if each.rule == "agent_lacks"]
    assert (found.verdict, found.reason) == (Verdict.UNKNOWN, record.health.lacks[0])
    assert [each.node for each in found.subjects] == [node]
    assert page.verdict is Verdict.UNKNOWN
