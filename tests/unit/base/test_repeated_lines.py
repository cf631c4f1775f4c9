"""Equal lines of a log are written once in five minutes, and counted."""

from __future__ import annotations

import gc
import io
import json
import logging
import subprocess
import sys
import weakref
from collections.abc import Iterator
from typing import Any

import pytest
import structlog

from lattice.agent.log import configure_logging as configure_agent_logging
from lattice.base.logs import configure_logging
from lattice.base.repeated_lines import WINDOW_S, RepeatedLines
from tests.fakes.manual_clock import ManualClock


@pytest.fixture(autouse=True)
def restored() -> Iterator[None]:
    root = logging.getLogger()
    handlers, level = list(root.handlers), root.level
    yield
    root.handlers[:] = handlers
    root.setLevel(level)
    logging.captureWarnings(capture=False)
    structlog.reset_defaults()


def configured(process: str) -> tuple[ManualClock, io.StringIO]:
    """The log of a process, with a clock of its own."""
    stream, clock = io.StringIO(), ManualClock()
    if process == "server":
        configure_logging("info", stream=stream)
    else:
        configure_agent_logging("info", stream=stream)
    (handler,) = logging.getLogger().handlers
    (old,) = handler.filters
    handler.removeFilter(old)
    handler.addFilter(RepeatedLines(handler, clock.monotonic))
    return clock, stream


def lines(stream: io.StringIO) -> list[dict[str, Any]]:
    return [json.loads(each) for each in stream.getvalue().splitlines()]


@pytest.mark.parametrize("process", ["server", "agent"])
def test_an_engine_that_is_away_for_an_hour_does_not_fill_the_log(process: str) -> None:
    clock, stream = configured(process)
    log = logging.getLogger("lattice.engine")
    for _ in range(3600):
        log.warning("the engine is away: %s", "no route")
        clock.advance(1)
    found = lines(stream)
    assert {each["event"] for each in found} == {"the engine is away: no route"}
    assert len(found) <= 2 * 3600 / WINDOW_S
    counted = sum(each.get("repeated", 1) for each in found)
    assert 3600 - WINDOW_S <= counted <= 3600


@pytest.mark.parametrize("process", ["server", "agent"])
def test_lines_that_differ_in_a_field_are_all_written(process: str) -> None:
    _, stream = configured(process)
    log = logging.getLogger("lattice.signin")
    for engine in ("etcd", "slurm", "etcd"):
        log.warning("away", extra={"engine": engine})
    log.error("away", extra={"engine": "etcd"})
    assert [(each["engine"], each["level"]) for each in lines(stream)] == [
        ("etcd", "warning"),
        ("slurm", "warning"),
        ("etcd", "error"),
    ]


@pytest.mark.parametrize("process", ["server", "agent"])
def test_every_refusal_of_somebody_is_written(process: str) -> None:
    _, stream = configured(process)
    log = logging.getLogger("lattice.signin")
    for _ in range(3):
        log.warning("refused", extra={"sub": "u-1", "reason": "expired"})
    assert len(lines(stream)) == 3


def test_a_count_has_the_time_of_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    clock, stream = configured("server")
    log: Any = structlog.stdlib.get_logger("lattice")
    log.warning("away", engine="etcd")
    log.warning("away", engine="etcd")
    monkeypatch.setattr("time.time", lambda: 1_900_000_000.0)
    clock.advance(WINDOW_S + 1)
    log.info("another")
    first, count, other = lines(stream)
    assert (count["event"], count["engine"], count["repeated"]) == ("away", "etcd", 1)
    assert count["time"] > first["time"]
    assert "repeated" not in other


@pytest.mark.parametrize("process", ["server", "agent"])
def test_each_act_has_its_line(process: str) -> None:
    # Drained, resumed, and drained again: who reads the log must not take the node for resumed.
    _, stream = configured(process)
    log = logging.getLogger("lattice.acts")
    for act in ("drain", "resume", "drain"):
        log.info("act", extra={"act": act, "target": "n1", "sub": "munge:root"})
    assert [each["act"] for each in lines(stream)] == ["drain", "resume", "drain"]


@pytest.mark.parametrize("process", ["server", "agent"])
def test_another_defect_in_the_same_place_is_another_line(process: str) -> None:
    _, stream = configured(process)
    log = logging.getLogger("lattice.loops")
    for failure in (KeyError("a"), KeyError("a"), ValueError("b")):
        try:
            raise failure
        except (KeyError, ValueError):
            log.exception("a background loop failed")
    found = [each["exception"].rstrip().splitlines()[-1] for each in lines(stream)]
    assert found == ["KeyError: 'a'", "ValueError: b"]


_ENDS = """
import logging, sys
from {module} import configure_logging
configure_logging("info")
for _ in range(5):
    logging.getLogger("lattice.engine").warning("the engine is away")
logging.getLogger("lattice.engine").warning("once")
{end}
"""


@pytest.mark.parametrize("module", ["lattice.base.logs", "lattice.agent.log"])
@pytest.mark.parametrize("end", ["", "sys.exit(1)", "raise KeyError('a defect')"])
def test_counts_are_written_when_the_process_ends(module: str, end: str) -> None:
    program = _ENDS.format(module=module, end=end)
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=False
    )
    found = [
        json.loads(each)
        for each in (done.stdout + done.stderr).splitlines()
        if each.startswith("{")
    ]
    assert [(each["event"], each.get("repeated")) for each in found] == [
        ("the engine is away", None),
        ("once", None),
        ("the engine is away", 4),
    ]


def test_what_is_counted_holds_no_frame() -> None:
    configured("agent")
    handler = logging.getLogger().handlers[0]
    (counting,) = [each for each in handler.filters if isinstance(each, RepeatedLines)]
    body = _Body()
    gone = weakref.ref(body)
    try:
        _fail(body)
    except ValueError:
        logging.getLogger("lattice.loops").exception("failed")
    del body
    gc.collect()
    assert gone() is None
    assert counting is not None


class _Body:
    """What a request holds."""


def _fail(body: _Body) -> None:
    raise ValueError(f"of {type(body).__name__}")
