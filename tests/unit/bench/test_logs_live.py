"""The pure parts of the live benches: ages of lines, costs of processes and viewers."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from bench.logs_live_costs import cost_figures
from bench.logs_live_jobs import FLOOD, TickerLines, flood_mb_per_s, until_ready
from bench.logs_live_viewers import viewer_figures
from bench.stories import log_text


@pytest.fixture
def pipe() -> Iterator[tuple[int, int]]:
    reader, writer = os.pipe()
    yield reader, writer
    for each in (reader, writer):
        os.close(each)


def ticker_line(age_s: float) -> bytes:
    return b"%d a line\n" % (time.time_ns() - int(age_s * 1e9))


def test_lines_from_before_the_viewer_do_not_count(pipe: tuple[int, int]) -> None:
    reader, writer = pipe
    lines = TickerLines(reader)
    # A line from the future is fresh on any machine.
    os.write(writer, ticker_line(3600) + ticker_line(1800) + ticker_line(-60) + ticker_line(3600))
    first, second = lines.ages_ms(2)
    assert first < 0 < second


def test_a_line_that_comes_in_two_pieces_is_one(pipe: tuple[int, int]) -> None:
    reader, writer = pipe
    lines = TickerLines(reader)
    line = ticker_line(-60)
    os.write(writer, ticker_line(-60) + line[:7])
    assert len(lines.ages_ms(1)) == 1
    os.write(writer, line[7:])
    assert len(lines.ages_ms(1)) == 1


def test_a_flood_writes_the_whole_text_and_how_fast_it_was(tmp_path: Path) -> None:
    program, text, pace = (tmp_path / name for name in ("flood.py", "text", "pace"))
    program.write_text(FLOOD)
    text.write_bytes(log_text(100_000))
    sign = tmp_path / "go"
    argv = [sys.executable, str(program), "250000", str(sign), str(text), str(pace)]
    with subprocess.Popen(argv, stdout=subprocess.PIPE) as job:
        try:
            assert job.stdout is not None
            until_ready(job.stdout.fileno())
            assert flood_mb_per_s(job.stdout.fileno(), sign, 250_000) > 0
            while not (pace.exists() and pace.read_text()):
                os.sched_yield()
            assert float(pace.read_text()) > 0
        finally:
            job.kill()


def test_each_process_stands_beside_its_peer() -> None:
    used = {
        "ours": [{"agent": 4.0, "helper": 1.0, "server": 6.0, "client": 3.0}] * 3,
        "bare": [{"node": 2.0, "relay": 3.0, "client": 1.0}] * 3,
        "ssh": [{"sshd": 5.0, "ssh": 2.0}] * 3,
        "nobody": [{"agent": 0.5, "helper": 0.1, "server": 0.2}] * 3,
    }
    found = {each.name: each for each in cost_figures("a line", "ms", used)}
    ratios = {name: each.ratio for name, each in found.items() if each.ratio}
    assert ratios == {
        "a line, agent to bare node": 2.0,
        "a line, server to bare relay": 2.0,
        "a line, client to bare client": 3.0,
        "a line, all processes, bare relay": 14 / 6,
        "a line, all processes, ssh and sshd": 2.0,
    }
    assert found["a line, helper"].value == 1.0
    assert found["a line, agent while nobody follows"].value == 0.5


def test_a_viewer_costs_what_many_use_more_than_one() -> None:
    rounds = [
        {
            "one_server": 0.1, "many_server": 0.1 + 199 * 2 * 150e-6,
            "one_lines": 2.0, "many_lines": 2.0,
            "one_kib": 100_000.0, "many_kib": 100_000.0 + 199 * 131,
            "one_node_bytes": 100.0, "many_node_bytes": 110.0,
            "one_read_bytes": 100.0, "many_read_bytes": 130.0,
        }
    ] * 3  # fmt: skip
    found = {each.name: each for each in viewer_figures(rounds, 200)}
    line = found["server processor a viewer and line, of 200"]
    assert line.value == pytest.approx(150)
    assert line.ok is True
    memory = found["server memory a viewer, of 200"]
    assert (memory.value, memory.ok) == (131.0, False)
    assert found["bytes the node sends, 200 viewers to one"].ok is True
    assert found["bytes the agent reads, 200 viewers to one"].ok is False
