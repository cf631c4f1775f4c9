"""Checkpoints that lead from run to run: chains, loops, hostile tags, and their bounds."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime, timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lattice.domain.checkpoint_lineage import (
    MOST_LINEAGE_RUNS,
    MOST_QUESTIONS,
    LineageWalk,
    RunLineage,
)
from lattice.domain.training_run import (
    LOADED_TAG,
    MOST_CHECKSUMS,
    SAVED_TAG,
    StoredTraining,
    TrainingRun,
)

NOON = datetime(2026, 11, 15, 12, tzinfo=UTC)


def checksum(number: int) -> str:
    return f"{number:064x}"


def run(number: int, *, loaded: tuple[int, ...] = (), saved: tuple[int, ...] = ()) -> TrainingRun:
    started = NOON + timedelta(hours=number)
    return TrainingRun(
        id=f"r{number}",
        name=f"fit-{number}",
        experiment="vision",
        user="alice",
        status="finished",
        started=started,
        ended=started + timedelta(minutes=30),
        allocation=str(40 + number),
        attempts=(1,),
        loaded=tuple(map(checksum, loaded)),
        saved=tuple(map(checksum, saved)),
    )


def followed(begin: TrainingRun, others: list[TrainingRun]) -> RunLineage:
    """As a store answers that has all of them."""
    walk = LineageWalk([begin])
    while (question := walk.next()) is not None:
        walk.found(
            each
            for each in others
            if question.checksum in (each.saved if question.tag == SAVED_TAG else each.loaded)
        )
    return walk.lineage()


def links(lineage: RunLineage) -> list[tuple[str, str]]:
    return [(each.saved_by, each.loaded_by) for each in lineage.links]


@pytest.mark.spec("RUN-2")
@pytest.mark.parametrize("begin", [1, 2, 3])
def test_a_chain_of_three_runs_is_found_from_each_of_them(begin: int) -> None:
    chain = [run(1, saved=(1,)), run(2, loaded=(1,), saved=(2,)), run(3, loaded=(2,), saved=(3,))]
    found = followed(chain[begin - 1], [*chain, run(4, saved=(9,))])
    assert [each.id for each in found.runs] == ["r1", "r2", "r3"]
    assert links(found) == [("r1", "r2"), ("r2", "r3")]
    assert found.notes == ()


def test_two_children_and_two_parents_are_all_shown() -> None:
    runs = [run(1, saved=(1,)), run(2, saved=(2,)), run(3, loaded=(1, 2)), run(4, loaded=(1,))]
    assert links(followed(runs[2], runs)) == [("r1", "r3"), ("r2", "r3"), ("r1", "r4")]


def test_a_missing_parent_is_told() -> None:
    found = followed(run(2, loaded=(1,)), [])
    assert found.links == ()
    (note,) = found.notes
    assert note == f"No run that you may see wrote {checksum(1)[:12]}, which fit-2 loaded."


def test_a_run_that_resumes_from_its_own_checkpoint_is_no_link() -> None:
    own = run(1, loaded=(1,), saved=(1,))
    assert followed(own, [own]) == RunLineage(runs=(own,))


def test_several_that_claim_one_checkpoint_are_told() -> None:
    runs = [run(1, saved=(1,)), run(2, saved=(1,)), run(3, loaded=(1,))]
    found = followed(runs[2], runs)
    assert links(found) == [("r1", "r3"), ("r2", "r3")]
    assert "2 runs say that they wrote" in found.notes[0]


def test_what_began_after_the_end_did_not_write_it() -> None:
    runs = [run(1, loaded=(1,)), run(2, saved=(1,))]
    found = followed(runs[0], runs)
    assert found.links == ()
    assert "began after fit-1 had ended" in found.notes[0]


def test_a_loop_ends_and_is_told() -> None:
    first, second = run(1, loaded=(2,), saved=(1,)), run(2, loaded=(1,), saved=(2,))
    runs = [replace(first, ended=None), replace(second, ended=None), run(3, loaded=(1,))]
    found = followed(runs[0], runs)
    assert len(found.runs) == 3
    assert found.notes == (
        "A loop: fit-1 and fit-2 load what each other wrote. That can't be true.",
    )


def test_a_long_chain_is_cut_and_that_is_told() -> None:
    runs = [run(n, loaded=(n,), saved=(n + 1,)) for n in range(5 * MOST_LINEAGE_RUNS)]
    found = followed(runs[0], runs)
    assert len(found.runs) == MOST_LINEAGE_RUNS
    assert any("The chain goes on" in each for each in found.notes)


@given(
    st.lists(
        st.tuples(st.sets(st.integers(0, 12), max_size=6), st.sets(st.integers(0, 12), max_size=6)),
        min_size=1,
        max_size=50,
    )
)
def test_any_tags_end_within_bounds(tags: list[tuple[set[int], set[int]]]) -> None:
    runs = [
        run(n, loaded=tuple(sorted(loaded)), saved=tuple(sorted(saved)))
        for n, (loaded, saved) in enumerate(tags)
    ]
    asked = 0
    walk = LineageWalk(runs[:1])
    while (question := walk.next()) is not None:
        asked += 1
        walk.found(
            each
            for each in runs
            if question.checksum in (each.saved if question.tag == SAVED_TAG else each.loaded)
        )
    found = walk.lineage()
    assert asked <= MOST_QUESTIONS
    assert len(found.runs) <= MOST_LINEAGE_RUNS
    known = {each.id: each for each in found.runs}
    for each in found.links:
        assert each.checksum in known[each.saved_by].saved
        assert each.checksum in known[each.loaded_by].loaded


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("", ()),
        (checksum(1), (checksum(1),)),
        (f" sha256:{checksum(10).upper()},\n{checksum(2)}; ", (checksum(10), checksum(2))),
        (f"{checksum(1)} {checksum(1)}", (checksum(1),)),
        ("../../etc/passwd", ()),
        (f"x{checksum(1)}", ()),
        ("é" * 64, ()),
        (" ".join(map(checksum, range(500))), tuple(map(checksum, range(MOST_CHECKSUMS)))),
    ],
)
def test_a_tag_is_read_as_checksums(text: str, expected: tuple[str, ...]) -> None:
    stored = StoredTraining(
        id="r1",
        name="",
        experiment="",
        user="",
        status="",
        started=NOON,
        ended=None,
        tags={SAVED_TAG: text, LOADED_TAG: text},
    )
    assert stored.saved == expected
    assert stored.loaded == expected
