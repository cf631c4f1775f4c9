"""The texts that floods write."""

from __future__ import annotations

import zlib

from bench.stories import constant_text, log_text

SIZE = 300_000


def test_lines_are_varied_and_the_same_in_every_run() -> None:
    text = log_text(SIZE)
    lines = text.splitlines()[:-1]
    assert len(text) == SIZE
    assert 100 < len(text) / len(lines) < 140
    assert len(set(lines)) == len(lines)
    assert log_text(SIZE) == text


def test_a_compressor_takes_the_constant_line_for_nothing_and_the_varied_ones_not() -> None:
    assert len(zlib.compress(constant_text(SIZE))) < SIZE / 100
    assert len(zlib.compress(log_text(SIZE))) > SIZE / 8
    assert len(set(constant_text(SIZE).splitlines()[:-1])) == 1
