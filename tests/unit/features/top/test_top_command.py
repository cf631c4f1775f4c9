"""`lattice top` in a pipe."""

from __future__ import annotations

import json
from typing import Any

import msgspec
import pytest

from lattice.base.errors import UsageError
from lattice.domain.metric import Provenance
from lattice.domain.telemetry import Coverage, MetricOrigin
from lattice.features.top.command.top import read_attempt, read_interval, top
from lattice.features.top.model import TopMode
from tests.fakes.shell import FakeShell
from tests.unit.features.top.test_top_render import NOW, answer, gone, row

PATH = "/v1/allocations/42/metrics"
NOTHING = {
    "id": "42",
    "per_node": False,
    "per_gpu": False,
    "wide": False,
    "duration": None,
    "interval": None,
    "attempt": None,
    "once": False,
    "csv": False,
    "explain": False,
}


def encoded(mode: TopMode = TopMode.SUMMARY, **changes: Any) -> Any:
    looked = answer(mode, row(mode), row(mode, "n1"), **changes)
    return json.loads(msgspec.json.encode(looked))


def run(shell: FakeShell, **values: Any) -> int:
    return top(shell, **NOTHING | values)


@pytest.mark.spec("TOP-3")
def test_a_pipe_gets_one_plain_table() -> None:
    shell = FakeShell({PATH: encoded()})
    assert run(shell) == 0
    assert "gpu_utilization" in shell.out
    assert "83%" in shell.out
    assert len(shell.calls) == 1
    assert dict(shell.calls[0].params) == {"mode": "summary"}


@pytest.mark.spec("TOP-3")
@pytest.mark.parametrize(
    ("flag", "mode"), [("per_node", "per_node"), ("per_gpu", "per_gpu"), ("wide", "wide")]
)
def test_each_mode_is_asked_for(flag: str, mode: str) -> None:
    shell = FakeShell({PATH: encoded(TopMode(mode))})
    run(shell, **{flag: True}, duration=300, attempt=2)
    asked = dict(shell.calls[0].params)
    assert asked == {"mode": mode, "duration": "300", "attempt": "2"}


def test_modes_exclude_each_other() -> None:
    with pytest.raises(UsageError):
        run(FakeShell({}), per_node=True, wide=True)


@pytest.mark.spec("CLI-1", "SRC-1")
def test_json_has_all_of_it() -> None:
    shell = FakeShell({PATH: encoded()}, output="json")
    run(shell)
    told = json.loads(shell.out)
    assert told["origin"]["coverage"] == {"measured": 1, "nodes": 2}
    assert told["rows"][0]["cells"][0]["value"] == 83.0


def test_with_an_interval_it_goes_on_until_the_job_is_over() -> None:
    left = [encoded(), encoded(), encoded(ended=NOW)]
    shell = FakeShell({PATH: lambda: left.pop(0)}, output="json")
    assert run(shell, interval=30) == 0
    assert len(shell.out.splitlines()) == 3
    assert shell.clock.passed_s == 60.0


def test_commas_have_one_heading() -> None:
    left = [encoded(), encoded(ended=NOW)]
    shell = FakeShell({PATH: lambda: left.pop(0)})
    run(shell, interval=1, csv=True)
    assert shell.out.count("time,allocation") == 1


@pytest.mark.spec("CLI-2")
def test_nothing_measured_at_all_is_an_exit_code() -> None:
    mode = TopMode.SUMMARY
    origin = MetricOrigin(
        source=Provenance.UNAVAILABLE, coverage=Coverage(0, 2), reason="gone", via="store"
    )
    looked = answer(mode, gone(mode, "", "gone"), origin=origin)
    shell = FakeShell({PATH: json.loads(msgspec.json.encode(looked))})
    assert run(shell) == 76


def test_explain_says_what_was_asked() -> None:
    shell = FakeShell({PATH: encoded(queries=["sum(x)"])})
    run(shell, explain=True)
    assert ("explain", "true") in shell.calls[0].params
    assert any("sum(x)" in each for each in shell.notes)


@pytest.mark.parametrize("text", ["0", "2h", "x", "-1"])
def test_a_time_between_looks_has_bounds(text: str) -> None:
    with pytest.raises(UsageError):
        read_interval(text)


@pytest.mark.parametrize("text", ["0", "x", "-1", "٣"])
def test_an_attempt_is_a_number(text: str) -> None:
    with pytest.raises(UsageError):
        read_attempt(text)
