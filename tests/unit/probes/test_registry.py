"""The registry: one that fails, hangs or lies is an absence with a reason, and nobody else's."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lattice.domain.metric import CATALOGUE, Absence, MetricReading, Sample, labelled
from lattice.domain.nodejobs import JobIdentity, NodeJob, StartSign
from lattice.probes.probe import Found, ProbeFailed
from lattice.probes.registry import Registry
from tests.fakes.manual_clock import ManualClock

NOW = 1_794_702_411.0


def job(number: int = 7) -> NodeJob:
    return NodeJob(identity=JobIdentity("boot", number, number, NOW), started_by=StartSign.FOLDER)


@dataclass
class Told:
    """A probe that does what a test says."""

    name: str
    metrics: frozenset[str]
    does: Callable[[Sequence[NodeJob]], Any]
    asked: int = 0
    threads: set[int] = field(default_factory=set)

    def read(self, jobs: Sequence[NodeJob]) -> Found:
        self.asked += 1
        self.threads.add(threading.get_ident())
        return self.does(jobs)  # type: ignore[no-any-return]


def telling(name: str, metric: str, value: float) -> Told:
    return Told(
        name,
        frozenset({metric}),
        lambda jobs: {j.identity: (Sample(metric, value, NOW),) for j in jobs},
    )


def failing(error: BaseException, *metrics: str) -> Told:
    def fail(_: Sequence[NodeJob]) -> Found:
        raise error

    return Told("nvml", frozenset(metrics or {"cpu_cores"}), fail)


def only(found: Sequence[MetricReading], metric: str) -> MetricReading:
    (reading,) = (each for each in found if each.metric == metric)
    return reading


async def _read_beside_one_that_hangs() -> float:
    clock, free = ManualClock(), threading.Event()
    good = telling("processes", "processes", 3)

    def hang(jobs: Sequence[NodeJob]) -> Found:
        free.wait(120)
        return {each.identity: (Sample("cpu_cores", 4, NOW),) for each in jobs}

    bad = Told("nvml", frozenset({"cpu_cores"}), hang)
    registry = Registry([bad, good], clock, patience_s=0.5)
    found = (await registry.read([job()]))[job().identity]
    assert only(found, "cpu_cores") == Absence("cpu_cores", "nvml did not answer in 0.5 s")
    assert only(found, "processes") == Sample("processes", 3, NOW)

    found = (await registry.read([job()]))[job().identity]
    assert only(found, "cpu_cores") == Absence("cpu_cores", "nvml does not answer")
    clock.advance(12)
    begun = asyncio.get_running_loop().time()
    found = (await registry.read([job()], patience_s=20))[job().identity]
    took_s = asyncio.get_running_loop().time() - begun
    assert only(found, "cpu_cores") == Absence("cpu_cores", "nvml has not answered for 12 s")
    assert only(found, "processes") == Sample("processes", 3, NOW)
    assert bad.asked == 1

    free.set()
    async with asyncio.timeout(60):
        while isinstance(only(found, "cpu_cores"), Absence):
            found = (await registry.read([job()], patience_s=60))[job().identity]
    assert only(found, "cpu_cores") == Sample("cpu_cores", 4, NOW)
    assert bad.asked == 2
    registry.close()
    return took_s


@pytest.mark.spec("SRC-2")
async def test_one_that_hangs_holds_nothing_up_and_is_not_asked_again_until_it_is_back() -> None:
    await _read_beside_one_that_hangs()


@pytest.mark.timing
@pytest.mark.spec("SRC-2")
async def test_beside_one_that_hangs_the_others_answer_within_ten_seconds() -> None:
    assert await _read_beside_one_that_hangs() < 10


@pytest.mark.spec("SRC-2")
async def test_whoever_shares_a_thread_with_one_that_hangs_says_so() -> None:
    free = threading.Event()
    first = telling("cgroup", "cpu_cores", 2)
    hanging = Told("processes", frozenset({"processes"}), lambda _: free.wait(120) and {})
    last = telling("network", "threads", 9)
    clock = ManualClock()
    registry = Registry([], clock, together=[first, hanging, last], patience_s=0.5)
    found = (await registry.read([job()]))[job().identity]
    assert only(found, "cpu_cores") == Sample("cpu_cores", 2, NOW)
    assert only(found, "processes") == Absence("processes", "processes did not answer in 0.5 s")
    clock.advance(3)
    found = (await registry.read([job()]))[job().identity]
    assert only(found, "cpu_cores") == Absence(
        "cpu_cores", "cgroup waits: processes has not answered for 3 s"
    )
    free.set()
    registry.close()


@pytest.mark.spec("SRC-2")
@pytest.mark.parametrize(
    ("error", "reason", "last_error"),
    [
        (ProbeFailed("no driver", "Driver Not Loaded"), "no driver", "Driver Not Loaded"),
        (OSError(5, "Input/output error"), "nvml failed", "OSError: [Errno 5] Input/output error"),
        (ZeroDivisionError("\x1b[2J"), "nvml failed", "ZeroDivisionError: ␛[2J"),
        (SystemExit(3), "nvml failed", "SystemExit: 3"),
    ],
)
async def test_what_is_raised_is_the_reason_for_each_of_its_metrics(
    error: BaseException, reason: str, last_error: str
) -> None:
    registry = Registry([failing(error, "cpu_cores", "threads")], ManualClock())
    for _ in range(2):  # its thread lives on
        found = (await registry.read([job(), job(8)]))[job(8).identity]
        assert set(found) == {
            Absence("cpu_cores", reason, last_error), Absence("threads", reason, last_error)
        }  # fmt: skip
    registry.close()


@pytest.mark.spec("SRC-2")
@pytest.mark.parametrize(
    "answer",
    [
        None, 7, [], {"x": 1}, {job().identity: 4}, {job().identity: [4.0]},
        {job().identity: (Sample("threads", 4, NOW),)}, {job().identity: None},
    ],
)  # fmt: skip
async def test_an_answer_that_is_none_is_no_number(answer: Any) -> None:
    registry = Registry([Told("odd", frozenset({"cpu_cores"}), lambda _: answer)], ManualClock())
    found = (await registry.read([job()]))[job().identity]
    assert [type(each) for each in found] == [Absence]
    registry.close()


@pytest.mark.spec("SRC-2")
async def test_what_was_declared_and_not_told_is_said_to_be_missing() -> None:
    probe = Told("cgroup", frozenset({"cpu_cores", "threads"}), telling("", "threads", 1).does)
    registry = Registry([probe], ManualClock())
    found = (await registry.read([job()]))[job().identity]
    assert only(found, "cpu_cores") == Absence("cpu_cores", "cgroup told nothing of it")
    registry.close()


async def test_the_first_of_two_who_measure_the_same_is_believed() -> None:
    gpu = labelled(gpu_uuid="GPU-1")
    other = labelled(gpu_uuid="GPU-2")

    def told(*readings: MetricReading) -> Callable[[Sequence[NodeJob]], Found]:
        return lambda jobs: {each.identity: readings for each in jobs}

    power = frozenset({"gpu_power_watts"})
    first = Told("nvml", power, told(Sample("gpu_power_watts", 300, NOW, labels=gpu)))
    second = Told(
        "dcgm",
        power,
        told(
            Sample("gpu_power_watts", 299, NOW, labels=gpu),
            Absence("gpu_power_watts", "blank", labels=other),
            Absence("gpu_power_watts", "no exporter"),
        ),
    )
    registry = Registry([first, second], ManualClock())
    assert (await registry.read([job()]))[job().identity] == (
        Sample("gpu_power_watts", 300, NOW, labels=gpu),
        Absence("gpu_power_watts", "blank", labels=other),
    )
    registry.close()


async def test_threads_are_kept_and_shared_as_told() -> None:
    quick = [telling("a", "cpu_cores", 1), telling("b", "threads", 1)]
    alone = telling("c", "processes", 1)
    registry = Registry([alone], ManualClock(), together=quick)
    before = set(threading.enumerate())
    for _ in range(5):
        await registry.read([job()])
    assert quick[0].threads == quick[1].threads
    assert len(quick[0].threads) == len(alone.threads) == 1
    assert quick[0].threads != alone.threads
    assert len(set(threading.enumerate()) - before) == 2
    assert await registry.read([]) == {}
    assert registry.metrics == {"cpu_cores", "threads", "processes"}
    registry.close()


garbage = st.recursive(
    st.none() | st.integers() | st.floats() | st.text(max_size=5) | st.just(job().identity),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.integers(), inner, max_size=3),
    max_leaves=6,
)


@pytest.mark.spec("SRC-2")
@given(
    answers=st.lists(
        garbage
        | st.fixed_dictionaries({})
        | garbage.map(lambda inner: {job().identity: inner})
        | st.sampled_from([OSError("x"), ProbeFailed("y"), KeyboardInterrupt(), RecursionError()]),
        min_size=1,
        max_size=3,
    )
)
def test_whatever_probes_do_nothing_is_raised_and_no_number_comes_out(answers: list[Any]) -> None:
    def does(answer: Any) -> Callable[[Sequence[NodeJob]], Any]:
        def read(_: Sequence[NodeJob]) -> Any:
            if isinstance(answer, BaseException):
                raise answer
            return answer

        return read

    metrics = sorted(CATALOGUE)
    probes = [
        Told(f"probe {at}", frozenset({metrics[at]}), does(answer))
        for at, answer in enumerate(answers)
    ]
    registry = Registry(probes[1:], ManualClock(), together=probes[:1])
    found = asyncio.run(registry.read([job()]))
    registry.close()
    assert {type(each) for each in found[job().identity]} == {Absence}
    assert {each.metric for each in found[job().identity]} == set(metrics[: len(answers)])
