"""Every input that was ever worth keeping, through its target: the quick part of fuzzing."""

from __future__ import annotations

import pytest

from tests.fuzz.engine import CORPUS, inputs, judge, load, names


@pytest.mark.parametrize("name", names())
def test_the_corpus_of_a_target_passes(name: str) -> None:
    target = load(name)
    assert target.__doc__, "a target says what it holds"
    count = 0
    for label, data in inputs(name):
        try:
            judge(target.try_one, data)
        except BaseException as failure:
            failure.add_note(f"{name}: {label}: {data[:200]!r}")
            raise
        count += 1
    assert count >= 10, "a target begins with inputs of its own"


def test_every_corpus_has_its_target() -> None:
    assert {each.name for each in CORPUS.iterdir()} <= set(names())
