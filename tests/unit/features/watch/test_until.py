"""`--until`: what is understood, what is refused and how, and when it has come."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lattice.base.errors import UsageError
from lattice.domain.allocation import State
from lattice.domain.measured import Shown
from lattice.features.watch.command.until import UntilFigure, parse_until
from lattice.features.watch.model import (
    WatchEnd,
    WatchFigure,
    WatchMeasured,
    WatchNote,
    WatchNoteKind,
    WatchState,
)

NOW = datetime(2026, 11, 15, 14, 2, 11, tzinfo=UTC)


def told(
    after_s: float, value: float | None, metric: Shown = Shown.GPU_UTILIZATION
) -> WatchMeasured:
    return WatchMeasured(
        time=NOW + timedelta(seconds=after_s),
        resolution_s=30,
        nodes=(),
        summary=(WatchFigure(metric=metric, value=value),),
        measured=1,
        node_count=1,
    )


def state(which: State) -> WatchState:
    return WatchState(allocation="42", state=which, attempt=1, time=NOW)


def test_running() -> None:
    until = parse_until("running")
    assert not until.met(state(State.PENDING))
    assert not until.met(state(State.CONFIGURING))
    assert until.met(state(State.RUNNING))


def test_ended() -> None:
    until = parse_until("ended")
    assert not until.met(state(State.RUNNING))
    assert until.met(WatchEnd(allocation="42", state=State.FAILED, attempt=1, time=NOW))


def test_a_figure_at_once() -> None:
    until = parse_until("gpu_utilization < 10")
    assert until.metric is Shown.GPU_UTILIZATION
    assert not until.met(told(0, 10))
    assert until.met(told(30, 9.9))


def test_a_figure_that_has_to_stay_so() -> None:
    until = parse_until("gpu_util<10 for 1m")
    assert [until.met(told(at, value)) for at, value in ((0, 5), (30, 5), (60, 5))] == [
        False,
        False,
        True,
    ]


@pytest.mark.spec("SRC-2")
@pytest.mark.parametrize("between", [told(30, 50), told(30, None), told(30, 5, Shown.MEMORY_USED)])
def test_what_breaks_it(between: WatchMeasured) -> None:
    """Another value, none at all, or another metric: what is not measured does not hold."""
    until = parse_until("gpu_utilization<10 for 1m")
    records = (told(0, 5), between, told(60, 5), told(90, 5))
    assert not any(until.met(each) for each in records)
    assert until.met(told(120, 5))


@pytest.mark.spec("SRC-2")
def test_nobody_knows_what_was_while_nobody_looked() -> None:
    until = parse_until("gpu_utilization<10 for 5m")
    assert not until.met(told(0, 5))
    assert not until.met(told(400, 5))
    assert not until.met(told(430, 5))
    lost: Any = WatchNote(kind=WatchNoteKind.DISCONNECTED, time=NOW)
    other = parse_until("gpu_utilization<10 for 30s")
    assert not other.met(told(0, 5))
    assert not other.met(lost)
    assert not other.met(told(30, 5))


@pytest.mark.parametrize(
    ("text", "value", "met"),
    [
        ("memory_used>2GB", 2.1e9, True),
        ("memory_used>2GiB", 2.1e9, False),
        ("memory_used >= 100", 100, True),
        ("io_write_bytes<=50MB/s", 50e6, True),
        ("io_latency_p99>10ms", 9_999, False),
        ("io_latency_p99>10ms", 10_001, True),
        ("gpu_power_draw<0.1kW", 99, True),
        ("gpu_temperature>85C", 86, True),
        ("cpu_util>150.5%", 150.6, True),
        ("oom_kills>0", 1, True),
    ],
)
def test_units(text: str, value: float, met: bool) -> None:
    until = parse_until(text)
    assert until.metric is not None
    assert until.met(told(0, value, until.metric)) is met


@pytest.mark.spec("CLI-2")
@pytest.mark.parametrize(
    ("text", "taught"),
    [
        ("", "running, ended"),
        ("soon", "running, ended"),
        ("gpu_utilization", "gpu_utilization<10 for 5m"),
        ("gpu_utilization<", "running, ended"),
        ("gpu_utilization<-1", "running, ended"),
        ("gpu_utilization<10 for", "running, ended"),
        ("gpu_utilization<10 for ever", "90s, 5m"),
        ("gpu_utilization=10", "running, ended"),
        ("gpu_utilisation<10", "gpu_utilization"),
        ("nonsense<10", "cpu_utilization"),
        ("gpu_utilization<10GB", "%"),
        ("oom_kills>1%", "none"),
        ("memory_used>1GB/s", "MB"),
        ("gpu_utilization<10; rm -rf /", "running, ended"),
    ],
)
def test_what_is_not_understood_is_refused_with_what_could_be_meant(text: str, taught: str) -> None:
    with pytest.raises(UsageError) as refusal:
        parse_until(text)
    assert taught in (refusal.value.hint or "")


@given(st.text(max_size=40))
def test_any_text_is_understood_or_refused(text: str) -> None:
    try:
        words = parse_until(text).text
    except UsageError as refusal:
        words = text.strip() if refusal.hint else "refused without a hint"
    assert words == text.strip()


@given(
    st.sampled_from(list(Shown)),
    st.sampled_from(["<", "<=", ">", ">="]),
    st.floats(0, 1e6).map(lambda value: round(value, 3)),
    st.sampled_from(["", " ", "  "]),
    st.sampled_from(["", " for 90", " for 5m", " for 1h30m"]),
)
def test_every_condition_of_the_grammar_is_read(
    metric: Shown, sign: str, bound: float, space: str, time: str
) -> None:
    until = parse_until(f"{metric.value}{space}{sign}{space}{bound:.3f}{time}")
    assert isinstance(until, UntilFigure)
    assert until.metric is metric
