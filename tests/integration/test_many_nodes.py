"""A job of many nodes on a terminal, over real links: readable, and nothing is left out."""

from __future__ import annotations

import os
import re
import signal
import sys
from collections import Counter
from pathlib import Path

import pytest

from tests.fakes.terminal import PROGRAM, Terminal

ROOT = Path(__file__).resolve().parents[2]
NODES, RANKS = 24, 4
ALL = NODES * RANKS
FALLEN = "n20:77"
STARTING = (
    "NCCL INFO Bootstrap : Using eth0",
    "NCCL INFO NET/Plugin : No plugin found, using internal implementation",
    "NCCL INFO comm ready, 24 channels",
)
LOST = "NCCL WARN [Rank 77] remote process exited or there was a network error"
ROW = re.compile(r"(×(?P<count>\d+)|n\d\d:\d+) *│ (?P<text>.*?)(  \((?P<who>[^()]*)\))?")


def crowd(tmp_path: Path, story: str, *words: str) -> Terminal:
    sizes = ["--nodes", str(NODES), "--ranks", str(RANKS), "--story", story]
    program = [sys.executable, "-m", "bench.crowd", *sizes, "--", *PROGRAM, "logs"]
    paths = [str(ROOT), str(ROOT / "src")]
    environment = {
        "PATH": os.environ["PATH"],
        "HOME": str(tmp_path),
        "LANG": "C.UTF-8",
        "TERM": "xterm-256color",
        "PYTHONPATH": os.pathsep.join(paths),
    }
    return Terminal(environment, *words, columns=110, lines=40, program=program)


def told(rows: list[str]) -> Counter[str]:
    """How often each text stands there, by the counts that stand before it."""
    found: Counter[str] = Counter()
    for row in rows:
        if match := ROW.fullmatch(row):
            found[match["text"]] += int(match["count"] or 1)
    return found


def interrupt(terminal: Terminal) -> list[str]:
    os.killpg(terminal.process.pid, signal.SIGINT)
    return terminal.end(130)


@pytest.mark.spec("LOG-7")
@pytest.mark.long
def test_a_crowd_that_starts_alike_and_one_that_falls(tmp_path: Path) -> None:
    terminal = crowd(tmp_path, "training", "-f", "42")
    terminal.until(lambda rows: told(rows)[LOST] == ALL - 1, timeout_s=120)
    rows = interrupt(terminal)
    counted = told(rows)
    for text in STARTING:
        assert counted[text] == ALL, text
    alike = [row for row in rows if row.endswith(STARTING[0]) or f"{STARTING[0]}  (" in row]
    assert len(alike) <= ALL // 4, "most of them stand together"
    trace = [row for row in rows if row.startswith(FALLEN)]
    at = next(number for number, row in enumerate(trace) if "Traceback" in row)
    assert trace[at + 3].endswith("Tried to allocate 2.00 GiB"), "its own lines are in order"
    # The bar of rank 0 was redrawn fifty times and stands there five times, in its last state.
    bars = [row for row in rows if row.startswith("n01:0 ") and "step" in row]
    assert [re.sub(r".*step (\d) 100%.*", r"\1", row) for row in bars] == list("12345")
    moved = re.search(rb"step \d +[1-9]0%\|", terminal.written)
    assert moved, "and it was seen to move"
    columns = {row.index("│") for row in rows if "│" in row}
    assert len(columns) == 1, "one column of labels"
