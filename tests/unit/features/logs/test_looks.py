"""Patterns that mark, and levels told in colour: in linear time, and no letter is changed."""

from __future__ import annotations

import re
import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lattice.base.errors import UsageError
from lattice.domain.logs import LONGEST_LINE_BYTES, Position
from lattice.features.logs.command.first_error import LOOKS_LIKE
from lattice.features.logs.lines import Lines
from lattice.features.logs.model import LogQuery
from lattice.features.logs.render.lines import Highlight, levelled
from lattice.features.logs.service.records import LineFilter

SGR = re.compile(r"\x1b\[[\d;]*m")
WORST = ["(a+)+$", "(a|aa)+$", "(a*)*b", "(.*a){25}", "(x+x+)+y", "a{1,900}$"]


def _match_the_longest_line(pattern: str) -> float:
    """Attack 24: on the longest line there is, both where lines are chosen and where marked."""
    line = "a" * (LONGEST_LINE_BYTES - 1) + "!"
    begun = time.perf_counter()
    Highlight.read(pattern)(line)
    text = (line + "\n").encode() * 4
    lines = Lines(Position(), Position(len(text), 4), 0, False, text, 4)
    kept = [*filter(None, LineFilter(LogQuery(grep=pattern, exclude=pattern)).steps(lines))]
    took_s = time.perf_counter() - begun
    assert kept == [], "what is chosen is also left out"
    return took_s


@pytest.mark.spec("LOG-4")
@pytest.mark.threat("heavy-search")
@pytest.mark.parametrize("pattern", WORST)
def test_a_pattern_that_would_take_for_ever_comes_to_an_end(pattern: str) -> None:
    _match_the_longest_line(pattern)


@pytest.mark.timing
@pytest.mark.spec("LOG-4")
@pytest.mark.parametrize("pattern", WORST)
def test_a_pattern_that_would_take_for_ever_takes_less_than_five_seconds(pattern: str) -> None:
    assert _match_the_longest_line(pattern) < 5.0


@pytest.mark.parametrize("pattern", ["(", "a**", "(?=x)", r"(a)\1", "x" * 501])
def test_what_is_no_pattern(pattern: str) -> None:
    with pytest.raises(UsageError) as caught:
        Highlight.read(pattern)
    assert caught.value.hint


@pytest.mark.spec("LOG-4")
@given(st.text(max_size=60), st.sampled_from(["a", "[a-z]+", "x*", "^", ".", r"\w+$", "é|日"]))
def test_marking_changes_no_letter(text: str, pattern: str) -> None:
    text = SGR.sub("", text).replace("\x1b", "")
    shown = Highlight.read(pattern)(text)
    assert SGR.sub("", shown) == text
    assert shown.count("\x1b[1;7m") == shown.count("\x1b[22;27m")


@pytest.mark.parametrize(
    ("line", "shown"),
    [
        ('{"level": "error", "m": 1}', '{"level": "\x1b[1;31merror\x1b[0m", "m": 1}'),
        ('{"a":1,"severity":"WARNING"}', '{"a":1,"severity":"\x1b[33mWARNING\x1b[0m"}'),
        ('{"level": "other"}', '{"level": "other"}'),
        ('{"level": 3}', '{"level": 3}'),
        ("level: error", "level: error"),
    ],
)
def test_levels_of_json(line: str, shown: str) -> None:
    assert levelled(line) == shown


@given(st.text(max_size=80))
def test_levels_change_no_letter(text: str) -> None:
    line = f'{{"level": "info", "text": "{text}"}}'
    assert levelled(line).replace("\x1b[32m", "", 1).replace("\x1b[0m", "", 1) == line


@pytest.mark.parametrize(
    "line",
    [
        "Traceback (most recent call last):",
        "torch.cuda.OutOfMemoryError: CUDA out of memory",
        "RuntimeError: x",
        "slurmstepd: error: Detected 1 oom_kill event",
        "[n1:0] Segmentation fault (core dumped)",
        "FATAL: no such file",
        "train.c:7: assertion `n > 0' failed.",
        "srun: error: n2: task 3: Killed",
        "NCCL WARN Call to connect failed",
    ],
)
def test_what_looks_like_an_error(line: str) -> None:
    assert matches(line)


@pytest.mark.parametrize("line", ["0 errors", "error_rate=0.1", "loss 0.3"])
def test_what_does_not(line: str) -> None:
    assert not matches(line)


def matches(line: str) -> bool:
    text = (line + "\n").encode()
    lines = Lines(Position(), Position(len(text), 1), 0, False, text, 1)
    return any(LineFilter(LogQuery(grep=LOOKS_LIKE)).steps(lines))
