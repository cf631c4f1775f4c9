"""Equal lines of a log are written once in five minutes, and counted."""

from __future__ import annotations

import io
import json
import logging
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
    for user in ("alice", "bob", "alice"):
        log.warning("refused", extra={"user": user})
    log.error("refused", extra={"user": "alice"})
    assert [(each["user"], each["level"]) for each in lines(stream)] == [
        ("alice", "warning"),
        ("bob", "warning"),
        ("alice", "error"),
    ]


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
