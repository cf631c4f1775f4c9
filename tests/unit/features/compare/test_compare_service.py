"""Comparing runs: who may, from which source, and what is told of them."""

from __future__ import annotations

import random
from dataclasses import replace
from datetime import timedelta
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lattice.access.actor import Actor, Role
from lattice.access.limits import Questions
from lattice.base.errors import (
    DataUnavailable,
    LatticeError,
    NotFound,
    PermissionRefused,
    RateLimited,
    UsageError,
)
from lattice.domain.allocation import State
from lattice.domain.attempts import JobAttempt, attempts_of
from lattice.domain.measured import Shown
from lattice.domain.metric import Provenance
from lattice.domain.metricstore import BadQuery, StoreSilent
from lattice.domain.promql import BadSelector
from lattice.domain.statistics.sureness import Sureness
from lattice.features.compare.model import USUAL, Comparison, MetricComparison
from lattice.features.compare.operations import CompareRequest
from lattice.features.compare.service.series import MOST_SAMPLES, origin_question, series_question
from lattice.features.compare.wiring import bindings
from lattice.features.prometheus.service.parser import parse
from lattice.features.prometheus.service.tree import Matcher, selectors
from lattice.observe.metric_query import OwnerFilter
from lattice.observe.windows import RunWindow
from lattice.wire.convert import message_of, value_of
from lattice.wire.v1 import compare_pb2 as pb
from tests.fakes.cluster import allocation
from tests.fakes.required_trail import RequiredTrail
from tests.unit.features.compare.runs import ALICE, BOB, CPU, GPU, Site, course, noise

METRIC = "gpu_utilization"


def row(answer: Comparison, metric: str = METRIC) -> MetricComparison:
    return next(each for each in answer.metrics if each.metric == metric)


def measured() -> Site:
    site = Site()
    site.measure(41, course(90, seed=1))
    site.measure(42, course(79, seed=2))
    return site


# Who may.


@pytest.mark.spec("COMPARE-3", "AUTH-12")
@pytest.mark.parametrize("names", [("41", "{}"), ("{}", "41"), ("{}", "77"), ("41", "42", "{}")])
async def test_anothers_job_and_none_are_one_answer(names: tuple[str, ...]) -> None:
    told = []
    for other in ("50", "77777"):
        site = measured()
        site.measure(50, course(50, seed=3))
        with pytest.raises(NotFound) as refused:
            await site.compare(*(each.format(other) for each in names))
        told.append(
            (
                refused.value.message.replace(other, "ID"),
                refused.value.hint,
                len(site.scheduler.questions),
                site.scheduler.looked_again,
                len(site.store.asked),
            )
        )
    assert told[0] == told[1]
    assert told[0][4] == 0


@pytest.mark.spec("COMPARE-3")
async def test_sensitive_and_other_work_never_mix() -> None:
    site = measured()
    site.job(43, vcluster="safe")
    site.job(44, vcluster="safe")
    for names in (("41", "43"), ("43", "41"), ("43", "44", "41")):
        with pytest.raises(PermissionRefused):
            await site.compare(*names)
    assert site.store.asked == []
    trail = RequiredTrail()
    assert len((await site.compare("43", "44", audit=trail)).runs) == 2
    assert [each.allocation.split("@")[0] for each in trail.events] == ["43", "44"]


@pytest.mark.spec("AUTH-7")
async def test_a_read_by_another_is_written_down_for_every_run_or_for_none() -> None:
    site = measured()
    admin = Actor(sub="sub-root", user="root", role=Role.SYSTEM_ADMIN)
    theirs = [each for each in site.scheduler.allocations if each.user == "alice"]
    with pytest.raises(NotFound):
        await site.compare("41", "777", actor=admin)
    assert await site.sharing.notes.of(theirs) == ()
    await site.compare("41", "42", actor=admin)
    noted = await site.sharing.notes.of(theirs)
    assert {each.allocation for each in noted} == {each.ref for each in theirs}
    assert {each.reader for each in noted} == {"root"}


@pytest.mark.spec("LIMIT-1")
async def test_comparisons_have_a_limit_of_their_own_that_is_asked_first() -> None:
    class Full:
        asked: list[Questions]

        def __init__(self) -> None:
            self.asked = []

        async def ask(self, sub: str, kind: Questions) -> None:
            assert sub == ALICE.sub
            self.asked.append(kind)
            raise RateLimited("too many", retry_after_s=6)

        async def open(self, sub: str, kind: object, session: str) -> object:
            raise AssertionError(sub, kind, session)

    site = measured()
    site.limits = Full()  # type: ignore[assignment]
    for names in (("41", "42"), ("41", "50"), ("41", "777")):
        with pytest.raises(RateLimited):
            await site.compare(*names)
    assert site.limits.asked == [Questions.COMPARE] * 3  # type: ignore[attr-defined]
    assert site.scheduler.questions == []


@pytest.mark.parametrize(
    ("names", "kind"),
    [
        (("41",), UsageError),
        (("41", "41"), UsageError),
        (tuple(map(str, range(41, 50))), UsageError),
        (("41", "x"), UsageError),
        (("41", "45"), DataUnavailable),
    ],
)
async def test_what_can_not_be_compared_is_refused(
    names: tuple[str, ...], kind: type[LatticeError]
) -> None:
    site = measured()
    site.job(45, started=None, ended=None, state=State.PENDING, nodes="")
    with pytest.raises(kind) as refused:
        await site.compare(*names)
    assert refused.value.hint
    assert site.store.asked == []


# What differs.


@pytest.mark.spec("COMPARE-2")
async def test_a_difference_all_the_time() -> None:
    answer = await measured().compare()
    told = row(answer)
    (one,) = told.differences
    assert [round(each.mean or 0) for each in told.levels] == [90, 79]
    assert one.change is not None
    assert one.change.percent == pytest.approx(-12.2, abs=0.8)
    assert one.change.percent_low is not None
    assert one.change.percent_high is not None
    assert one.change.percent_low < -12.2 < one.change.percent_high < -10
    assert one.sureness is Sureness.SURE
    assert one.parting is not None
    assert one.parting.whole
    assert one.smallest_percent is not None
    assert 0 < one.smallest_percent < 2


@pytest.mark.spec("COMPARE-2")
@pytest.mark.parametrize("after_s", [870.0, 1800.0, 2700.0])
async def test_a_run_that_slows_down_on_the_way_parts_there(after_s: float) -> None:
    site = measured()
    site.measure(42, course(90, seed=2, after_s=after_s, then=79))
    site.measure(41, course(400, seed=3), CPU)
    site.measure(42, course(400, seed=4, after_s=after_s + 300, then=300), CPU)
    answer = await site.compare()
    (one,) = row(answer).differences
    assert one.parting is not None
    assert not one.parting.whole
    assert abs(one.parting.at_s - after_s) <= 60
    assert one.parting.since is not None
    assert one.parting.since.percent == pytest.approx(-12.2, abs=2.0)
    (first,) = answer.partings
    assert first.metrics == (Shown.GPU_UTILIZATION,)
    assert abs(first.at_s - after_s) <= 60


@pytest.mark.spec("COMPARE-2")
async def test_metrics_that_part_together_are_named_together() -> None:
    site = measured()
    for series, level, then in ((GPU, 90, 70), (CPU, 400, 300)):
        site.measure(41, course(level, seed=level), series)
        site.measure(42, course(level, seed=level + 1, after_s=1800, then=then), series)
    (first,) = (await site.compare()).partings
    assert set(first.metrics) == {Shown.GPU_UTILIZATION, Shown.CPU_UTILIZATION}


@pytest.mark.spec("COMPARE-2")
async def test_two_alike_are_not_said_to_differ_and_what_would_be_seen_is_told() -> None:
    site = measured()
    site.measure(42, course(90, seed=2))
    (one,) = row(await site.compare()).differences
    assert one.sureness in {Sureness.NONE_FOUND, Sureness.PERHAPS}
    assert one.parting is None
    assert one.smallest_percent is not None


@pytest.mark.spec("COMPARE-2")
async def test_warm_up_is_left_out_even_if_one_takes_longer() -> None:
    site = Site()
    site.measure(41, course(90, seed=1102, warm_s=120))
    site.measure(42, course(90, seed=102, warm_s=600))
    told = row(await site.compare())
    assert [each.warm_up_s for each in told.levels] == [120.0, 600.0]
    assert [round(each.mean or 0) for each in told.levels] == [90, 90]
    (one,) = told.differences
    assert one.sureness in {Sureness.NONE_FOUND, Sureness.PERHAPS}
    assert one.parting is None


@pytest.mark.spec("COMPARE-1")
async def test_a_day_against_an_hour_and_a_running_one_against_a_finished() -> None:
    site = Site()
    site.job(41, hours=24)
    site.job(42, hours=1, runs=True)
    site.measure(41, course(90, seed=1))
    site.measure(42, course(85, seed=2))
    answer = await site.compare()
    (one,) = row(answer).differences
    assert one.change is not None
    assert one.change.percent == pytest.approx(-5.5, abs=1)
    assert [each.samples for each in row(answer).levels] == [2880, 120]
    assert answer.runs[1].ended is None
    assert any("still runs" in each for each in answer.notes)
    assert all(len(each.points) <= 120 for each in row(answer).lines)


@pytest.mark.spec("COMPARE-1", "COMPARE-2")
async def test_other_nodes_and_other_resolutions() -> None:
    site = Site()
    site.job(42, nodes="n[7-9]", node_count=3)
    site.store.intervals["42"] = 2.0
    site.measure(41, course(90, seed=1))
    wave = noise(4000, 0.95, random.Random(5))
    site.measure(42, lambda at_s: 80 + wave[int(at_s // 2)] if at_s % 200 >= 60 else None)
    answer = await site.compare()
    told = row(answer)
    assert told.levels[1].samples > 1000
    assert told.levels[1].effective_samples is not None
    assert told.levels[1].effective_samples < told.levels[1].samples / 5
    (one,) = told.differences
    assert one.sureness is Sureness.SURE
    assert any("different resolutions" in each for each in answer.notes)
    assert any("1/3 nodes" in each for each in answer.notes)


@pytest.mark.spec("COMPARE-1")
@pytest.mark.parametrize(
    ("length_s", "samples", "expected_s"),
    [
        pytest.param(26.0, 21, 1.0, id="closely, soon after its beginning"),
        pytest.param(26.0, 2, 30.0, id="as usual"),
        pytest.param(3600.0, 1800 + 60, 1.0, id="closely for half of its time"),
        pytest.param(3600.0, 600 + 100, 30.0, id="closely for a sixth of it"),
        pytest.param(3600.0, 40, 30.0, id="with holes"),
    ],
)
def test_a_run_is_asked_about_as_closely_as_it_was_measured(
    length_s: float, samples: int, expected_s: float
) -> None:
    owner = OwnerFilter((("alloc", "1"), ("attempt", "1"), ("user", "alice")))
    assert RunWindow(owner, 1e9, 1e9 + length_s).interval_s([samples]) == expected_s


@pytest.mark.spec("COMPARE-1")
async def test_several_against_the_first() -> None:
    site = measured()
    site.job(43)
    site.measure(43, course(90, seed=9))
    answer = await site.compare("41", "42", "43")
    assert [each.label for each in answer.runs] == ["A", "B", "C"]
    second, third = row(answer).differences
    assert (second.sureness, third.sureness is Sureness.SURE) == (Sureness.SURE, False)
    assert {each.label for each in answer.partings} == {"B"}


# Where from.


@pytest.mark.spec("SRC-1", "SRC-2", "TOP-5")
async def test_a_run_the_store_has_forgotten_is_compared_by_what_is_kept() -> None:
    site = measured()
    del site.store.courses["41", GPU]
    wave = noise(60, 0.3, random.Random(1))
    await site.keep(41, METRIC, [90 + each for each in wave], 60.0)
    answer = await site.compare()
    assert [each.origin.via for each in answer.runs] == ["kept summary", "store"]
    assert answer.runs[0].kept is not None
    assert any("kept summary" in each for each in answer.notes)
    (one,) = row(answer).differences
    assert one.sureness is Sureness.SURE
    assert one.parting is not None


@pytest.mark.spec("TOP-5")
async def test_what_the_store_has_half_forgotten_is_taken_from_what_is_kept() -> None:
    site = measured()
    late = course(90, seed=1)
    site.measure(41, lambda at_s: late(at_s) if at_s > 2400 else None)
    await site.keep(41, METRIC, [90.0 + at % 2 for at in range(60)], 60.0)
    answer = await site.compare()
    assert answer.runs[0].origin.via == "kept summary"


@pytest.mark.spec("COMPARE-2", "TOP-5")
async def test_fine_data_with_holes_is_not_given_up_for_a_coarse_summary() -> None:
    """A summary of long stretches covers everything, and has too few samples for a mean."""
    site = measured()
    whole = course(90, seed=1)
    site.measure(41, lambda at_s: None if 1200 < at_s < 2400 else whole(at_s))
    await site.keep(41, METRIC, [90.0], 3600.0)
    answer = await site.compare()
    assert answer.runs[0].origin.via == "store"
    assert "too few" not in row(answer).levels[0].reason
    (one,) = row(answer).differences
    assert one.sureness is Sureness.SURE


@pytest.mark.spec("SRC-2")
@pytest.mark.parametrize("problem", [StoreSilent("connection refused"), BadQuery("too much")])
async def test_while_the_store_is_silent_a_running_one_has_no_numbers_and_the_reason(
    problem: Exception,
) -> None:
    site = measured()
    site.job(42, runs=True)
    site.store.problem = problem
    await site.keep(41, METRIC, [90.0, 91.0] * 30, 60.0)
    answer = await site.compare(metrics=METRIC)
    told = row(answer)
    assert told.levels[0].mean == pytest.approx(90.5)
    assert (told.levels[1].mean, told.levels[1].samples) == (None, 0)
    assert "metric store" in told.levels[1].reason
    (one,) = told.differences
    assert (one.change, one.sureness) == (None, Sureness.UNKNOWN)
    assert one.reason.startswith("B: ")
    assert answer.runs[1].origin.source is Provenance.UNAVAILABLE


@pytest.mark.spec("SRC-2")
async def test_one_metric_that_the_store_can_not_answer_for_says_so() -> None:
    site = measured()
    site.store.refuses = CPU
    answer = await site.compare(metrics=f"{METRIC},cpu_utilization")
    assert row(answer).differences[0].change is not None
    level = row(answer, "cpu_utilization").levels[0]
    assert level.mean is None
    assert level.reason == "the metric store refused the question (too many samples)"


@pytest.mark.spec("SRC-2")
async def test_nothing_anywhere_is_no_number_anywhere() -> None:
    site = Site()
    site.objects.away = True
    for answer in (await site.compare(), await site.compare(store=None, objects=None)):
        assert answer.metrics == ()
        assert all(each.origin.reason for each in answer.runs)
        assert "Not measured in any of them" in answer.notes[-1]
    told = row(await site.compare(metrics=METRIC))
    assert all(each.mean is None and each.reason for each in told.levels)


@pytest.mark.spec("SRC-2")
async def test_too_few_samples_are_no_mean() -> None:
    site = measured()
    site.measure(42, lambda at_s: 79.0 if at_s < 120 else None)
    told = row(await site.compare())
    assert told.levels[1].mean is None
    assert "too few" in told.levels[1].reason
    assert told.differences[0].change is None


# What was asked for.


@pytest.mark.spec("COMPARE-4")
async def test_what_was_asked_for_is_compared_too() -> None:
    site = measured()
    site.job(41, command="/a/train.sh", memory_bytes=64 * 2**30, time_limit_s=3600)
    site.job(42, command="/b/train.sh", memory_bytes=64 * 2**30, nodes="n[2-3]", node_count=2)
    answer = await site.compare()
    told = {each.name: [value.value for value in each.values] for each in answer.settings}
    differing = {each.name for each in answer.settings if each.differs}
    assert {"command", "nodes", "node_count"} <= differing
    assert "memory" not in differing
    assert told["memory"] == ["64 GiB", "64 GiB"]
    assert told["time_limit"] == ["01:00:00", None]
    assert "time_limit" not in differing


@pytest.mark.spec("COMPARE-4", "SRC-2")
async def test_what_nobody_says_of_a_run_has_a_reason_and_is_not_said_to_differ() -> None:
    site = measured()
    site.job(41, container="/images/a")
    site.job(42, runs=True, user="alice")
    for each in (await site.compare()).settings:
        for value in each.values:
            assert bool(value.reason) == (value.value is None), each.name
        if any(value.value is None for value in each.values):
            assert not each.differs, each.name
    told = {each.name: each.values for each in (await site.compare()).settings}
    assert told["image"][0].value == "/images/a"
    assert "--container" in told["image"][1].reason
    assert "secrets" in told["environment"][0].reason
    assert told["exit_code"][1].reason == "it has not ended"
    assert told["exit_code"][0].reason == "Slurm does not say"


@pytest.mark.spec("COMPARE-4")
async def test_other_numbers_of_nodes_are_a_note() -> None:
    site = measured()
    site.job(42, nodes="n[2-4]", node_count=3)
    assert any("(A 1, B 3)" in each for each in (await site.compare()).notes)
    site.job(42, nodes="n4", node_count=1)
    assert not any("numbers of nodes" in each for each in (await site.compare()).notes)


@pytest.mark.spec("COMPARE-1")
async def test_the_newest_attempt_that_ran_is_meant() -> None:
    site = measured()
    job = site.job(42)
    begun = job.started
    assert begun is not None
    attempts = attempts_of(job)
    again = replace(job, attempts=attempts, attempt=2, started=None, ended=None, nodes="")
    again = replace(again, state=State.PENDING)
    site.scheduler.allocations = [
        each if each.job_id != 42 else again for each in site.scheduler.allocations
    ]
    answer = await site.compare()
    assert (answer.runs[1].attempt, answer.runs[1].attempts) == (1, 2)
    assert answer.runs[1].started == begun


@pytest.mark.spec("COMPARE-1")
async def test_grpc_says_the_same() -> None:
    site = measured()
    site.job(42, runs=True)
    for answer in (await site.compare(), await site.compare(metrics="io_latency_p99")):
        message = message_of(answer, pb.Comparison)
        assert [each.label for each in message.runs] == ["A", "B"]
        assert not message.runs[1].HasField("ended")
        for told, each in zip(answer.metrics, message.metrics, strict=True):
            assert each.levels[0].HasField("mean") == (told.levels[0].mean is not None)
            assert each.differences[0].sureness == told.differences[0].sureness.value
        for setting, told_ in zip(message.settings, answer.settings, strict=True):
            for value, known in zip(setting.values, told_.values, strict=True):
                assert value.HasField("value") == (known.value is not None)
                assert value.reason == known.reason
    (binding,) = bindings(site.service())

    async def ask(**wanted: Any) -> Any:
        request = pb.CompareMetricsRequest(ids=["41", "42"], **wanted)
        return await binding.handler(ALICE, value_of(request, CompareRequest))

    answer = await ask(metrics=[METRIC, METRIC])
    assert [each.metric for each in answer.metrics] == [Shown.GPU_UTILIZATION]
    for wrong in ({"align": "wall"}, {"metrics": ["gpu"]}):
        with pytest.raises(UsageError):
            await ask(**wrong)


# What the store is asked.

NAMES = st.text(
    st.characters(exclude_categories=["Cs"]), min_size=1, max_size=20
) | st.sampled_from(['1"} or up{a="', '\\"} or {user=~".*', "a\nb", ".*", "\x00"])


@pytest.mark.spec("TOP-4")
@given(NAMES, NAMES, NAMES, st.sampled_from(Shown), st.floats(0.1, 100), st.floats(0, 1e7))
def test_every_selector_asks_for_its_owner(
    user: str, account: str, name: str, metric: Shown, interval_s: float, length_s: float
) -> None:
    made = replace(allocation(1, user, "research"), id=name, account=account)
    begun = made.started
    assert begun is not None
    job = JobAttempt(made, attempts_of(made)[0])
    run = RunWindow.of(job, (begun + timedelta(seconds=length_s)).timestamp())
    steps = run.steps(interval_s, MOST_SAMPLES)
    assert steps.count <= MOST_SAMPLES
    for question in (series_question(steps, metric), origin_question(run)):
        found = list(selectors(parse(str(question))))
        assert found
        for each in found:
            assert Matcher("user", "=", user) in each.matchers
            assert Matcher("alloc", "=", name) in each.matchers


@pytest.mark.spec("TOP-4")
def test_nobodys_run_is_never_asked_about() -> None:
    made = replace(allocation(1, "", "research"), user="")
    with pytest.raises(BadSelector):
        RunWindow.of(JobAttempt(made, attempts_of(made)[0]), 2e9)


@pytest.mark.spec("COMPARE-3", "TOP-4")
async def test_a_stranger_reaches_no_series_of_anothers() -> None:
    site = measured()
    with pytest.raises(NotFound):
        await site.compare("41", "50", actor=BOB)
    assert site.store.asked == []
    await site.compare("41", "42")
    assert all('user="alice"' in each for each in site.store.asked)
    assert len(site.store.asked) == 2 * (1 + len(USUAL))
