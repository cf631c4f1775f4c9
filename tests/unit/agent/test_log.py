"""The agent's log: the lines of a server's, with less behind them."""

from __future__ import annotations

import io
import json
import logging
import subprocess
import sys
from collections.abc import Iterator

import pytest

from lattice.agent.log import configure_logging
from lattice.base.loglines import REDACTED

TOKEN = "eyJhbGciOiJFUzI1NiJ9.eyJzdWIiOiJ1LTEifQ.c2lnbmF0dXJlLW9mLXRoaXM"


@pytest.fixture(autouse=True)
def restored() -> Iterator[None]:
    root = logging.getLogger()
    handlers, level = list(root.handlers), root.level
    yield
    root.handlers[:] = handlers
    root.setLevel(level)
    logging.captureWarnings(capture=False)


def written(*, console: bool = False, level: str = "info") -> tuple[logging.Logger, io.StringIO]:
    stream = io.StringIO()
    configure_logging(level, console=console, stream=stream)
    return logging.getLogger("lattice.agent"), stream


def test_a_line_is_json_with_what_was_told() -> None:
    log, stream = written()
    log.warning("linked to %s", "s1", extra={"ahead_s": 0.25, "reason": None})
    log.debug("unseen")
    (line,) = [json.loads(each) for each in stream.getvalue().splitlines()]
    assert line.pop("time").endswith("Z")
    assert line == {
        "event": "linked to s1",
        "level": "warning",
        "logger": "lattice.agent",
        "ahead_s": 0.25,
        "reason": None,
    }


@pytest.mark.parametrize("console", [False, True], ids=["json", "console"])
def test_no_secret_in_any_place_of_a_line(console: bool) -> None:
    log, stream = written(console=console)
    log.info("Authorization: Bearer %s", TOKEN, extra={"enrol_token": "t-hush", "url": TOKEN})
    try:
        int(f"with Bearer {TOKEN}")
    except ValueError:
        log.exception("failed")
    text = stream.getvalue()
    assert "t-hush" not in text
    assert TOKEN.partition(".")[2] not in text
    assert REDACTED in text
    assert "invalid literal for int" in text


@pytest.mark.parametrize("console", [False, True], ids=["json", "console"])
def test_nothing_written_can_act_on_a_terminal(console: bool) -> None:
    log, stream = written(console=console)
    log.info("job \x1b]52;c;aGk=\x07 \x9b31m \u202e", extra={"words": "a\x1b[2Jb\rc"})
    text = stream.getvalue()
    assert text.count("\n") == 1
    assert all(each.isprintable() for each in text.rstrip("\n")), ascii(text)


@pytest.mark.parametrize("module", ["lattice.agent.main", "lattice.helper.main"])
def test_what_runs_on_nodes_loads_nothing_large(module: str) -> None:
    # Each of these is megabytes on every node of the cluster.
    heavy = "('rich', 'structlog', 'pygments', 'httpx2', 'click', 'fastapi', 'cryptography')"
    look = f"import {module}, sys; print([each for each in {heavy} if each in sys.modules])"
    told = subprocess.run([sys.executable, "-c", look], capture_output=True, text=True, check=True)
    assert told.stdout.strip() == "[]"
