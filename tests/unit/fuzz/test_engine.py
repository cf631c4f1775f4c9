"""The fuzzing engine finds what was planted, and finds it again."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.fuzz.engine import TooMuchWork, found_name, fuzz, inputs, judge
from tests.unit.fuzz import endless, planted

PACKAGE = "tests.unit.fuzz"
RUNS = 200_000


def test_a_planted_bug_is_found_and_the_same_one_by_the_same_seed(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    first, second = (
        fuzz("planted", seconds=60, seed=7, most_runs=RUNS, package=PACKAGE, corpus=tmp_path / each)
        for each in ("first", "second")
    )
    (kept,) = (tmp_path / "first" / "planted").iterdir()
    assert kept.read_bytes().startswith(b"\xffBUG")
    assert first.failures == [kept.name] == [found_name(kept.read_bytes())]
    assert (first.failures, first.runs) == (second.failures, second.runs)
    assert first.arcs > 0
    assert "ValueError: planted" in capsys.readouterr().err


def test_an_input_of_the_corpus_that_fails_is_found_at_once(tmp_path: Path) -> None:
    (tmp_path / "planted").mkdir()
    (tmp_path / "planted" / "found-before").write_bytes(b"\xffBUG again")
    outcome = fuzz("planted", seconds=60, seed=1, package=PACKAGE, corpus=tmp_path)
    assert outcome.failures == [found_name(b"\xffBUG again")]


def test_work_without_an_end_is_a_failure(tmp_path: Path) -> None:
    with pytest.raises(TooMuchWork):
        judge(endless.try_one, b"LOOP", endless.LONGEST_CPU_S)
    outcome = fuzz("endless", seconds=60, seed=1, most_runs=RUNS, package=PACKAGE, corpus=tmp_path)
    assert outcome.failures == [found_name(b"LOOP")]


def test_a_target_without_a_failure_ends_after_its_runs(tmp_path: Path) -> None:
    outcome = fuzz("planted", seconds=60, seed=1, most_runs=50, package=PACKAGE, corpus=tmp_path)
    assert (outcome.runs, outcome.failures) == (50, [])
    assert not (tmp_path / "planted").exists()


def test_inputs_are_the_seeds_and_the_files(tmp_path: Path) -> None:
    (tmp_path / "planted").mkdir()
    (tmp_path / "planted" / "mine").write_bytes(b"x")
    found = dict(inputs("planted", PACKAGE, tmp_path))
    assert found == {"seed-0": b"harmless", "mine": b"x"}
    for data in found.values():
        judge(planted.try_one, data)
