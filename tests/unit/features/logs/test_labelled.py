"""Lines with their task before them: whose they are, chosen, counted, and whole again."""

from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lattice.domain.logs import Gap, GapCause, LogKind, LogSource, Position, StreamName
from lattice.features.logs.lines import Lines
from lattice.features.logs.model import LogBlock, LogGap, LogPage, LogQuery
from lattice.features.logs.service.records import LineFilter, block
from tests.unit.features.logs.test_reading import Site

AT = Position(100, 7)


def lines_of(*texts: bytes) -> Lines:
    text = b"".join(texts)
    return Lines(AT, AT.past(text), 5, False, text, len(texts))


def blocks(page: LogPage) -> list[LogBlock]:
    return [each for each in page.records if isinstance(each, LogBlock)]


def ranks_and_texts(page: LogPage) -> list[tuple[int | None, str]]:
    return [(each.rank, each.text) for each in blocks(page)]


labelled_lines = st.lists(
    st.one_of(
        st.builds(lambda rank, text: b"%2d: %s\n" % (rank, text), st.integers(0, 3), st.just(b"x")),
        st.sampled_from([b"none\n", b"\n", b"3:\n"]),
    ),
    min_size=1,
)


@pytest.mark.spec("LOG-2")
@given(labelled_lines)
def test_runs_of_one_rank_are_the_whole_again(texts: list[bytes]) -> None:
    lines = lines_of(*texts)
    runs = list(LineFilter(LogQuery()).matching_by_rank(lines))
    assert b"".join(run.text for _, run in runs) == lines.text
    at = AT
    for _, run in runs:
        assert run.at == at
        assert run.end == at.past(run.text)
        assert run.count == run.text.count(b"\n")
        at = run.end
    assert at == lines.end
    neighbours = [rank for rank, _ in runs]
    assert all(one != other for one, other in pairwise(neighbours))


@pytest.mark.spec("LOG-2")
@given(labelled_lines, st.sets(st.integers(0, 3), min_size=1))
def test_ranks_are_chosen_and_keep_their_places(texts: list[bytes], ranks: set[int]) -> None:
    lines = lines_of(*texts)
    chosen = [*LineFilter(LogQuery(ranks=tuple(ranks))).matching_by_rank(lines)]
    wanted = [each for each in texts if each[:4] in {b"%2d: " % rank for rank in ranks}]
    assert b"".join(run.text for _, run in chosen) == b"".join(wanted)
    for rank, run in chosen:
        assert rank in ranks
        begin = run.at.offset - AT.offset
        assert lines.text[begin:].startswith(run.text)
        assert lines.text[:begin].count(b"\n") == run.at.line - AT.line


@pytest.mark.spec("LOG-2")
def test_a_line_without_its_beginning_has_no_label() -> None:
    lines = lines_of(b"3: rest of `epoch 3: x`\n", b"3: whole\n")
    runs = list(LineFilter(LogQuery()).matching_by_rank(lines, torn=True))
    assert [(rank, run.at.line) for rank, run in runs] == [(None, 7), (3, 8)]


def test_the_rest_of_a_broken_line_counts_as_none() -> None:
    broken = Lines(AT, Position(106, 7), 5, False, b"3: beg", 0)
    for grep in ("", "beg"):
        ((rank, run),) = LineFilter(LogQuery(grep=grep)).matching_by_rank(broken)
        assert (rank, run) == (3, broken)


def test_only_the_run_with_the_long_line_is_cut() -> None:
    long = b"1: " + b"x" * 65533 + b"\n"
    text = b"0: a\n" + long + b"2: b\n"
    lines = Lines(AT, Position(900_000, 10), 5, False, text, 3, cut=1)
    runs = [run for _, run in LineFilter(LogQuery()).matching_by_rank(lines)]
    assert [run.cut for run in runs] == [0, 1, 0]


@pytest.mark.spec("LOG-2")
async def test_labelled_lines_have_ranks() -> None:
    site = Site()
    told = b"0: a\n0: b\n1: c\nno label\n"
    await site.put("n1", [(0.0, told)], source="batch~2", labelled=True)
    page = await site.page()
    assert ranks_and_texts(page) == [(0, "0: a\n0: b\n"), (1, "1: c\n"), (None, "no label\n")]
    assert [(each.seq, each.offset, each.count) for each in blocks(page)] == [
        (0, 0, 2),
        (2, 10, 1),
        (3, 15, 1),
    ]
    assert page.ranked
    assert ranks_and_texts(await site.page(ranks=(1,))) == [(1, "1: c\n")]
    assert ranks_and_texts(await site.page(ranks=(5,))) == []


@pytest.mark.spec("LOG-2")
async def test_what_a_script_writes_is_no_label() -> None:
    site = Site()
    await site.put("n1", [(0.0, b"3: x\n")])
    await site.put("n2", [(1.0, b"3: y\n")], source="0", labelled=True)
    page = await site.page()
    assert ranks_and_texts(page) == [(None, "3: x\n"), (3, "3: y\n")]
    assert not page.ranked
    assert ranks_and_texts(await site.page(ranks=(3,))) == [(3, "3: y\n")]


@pytest.mark.spec("LOG-6")
async def test_pages_of_labelled_lines_join_without_a_seam() -> None:
    """All of a moment is one reading, and many blocks: no page ends between them."""
    site = Site()
    lines = [b"%d: %d\n" % (n % 3, n) for n in range(95)]
    told = [(float(n), b"".join(lines[n : n + 20])) for n in range(0, 95, 20)]
    await site.put("n1", told, source="0", labelled=True)
    for query in ({}, {"ranks": (1,)}, {"grep": "[02468]$"}):
        whole = [each.text for each in blocks(await site.page(**query))]
        found: list[str] = []
        cursor = ""
        while True:
            page = await site.page(limit=7, cursor=cursor, **query)
            found += [each.text for each in blocks(page)]
            cursor = page.cursor
            if not cursor:
                break
        assert found == whole
        assert len(whole) > 20


@pytest.mark.spec("LOG-4")
@pytest.mark.parametrize("tail", [0, 1, 5, 200])
async def test_the_last_lines_of_a_rank(tail: int) -> None:
    site = Site()
    lines = [b"%d: %d\n" % (0 if n > 40 else n % 3, n) for n in range(95)]
    told = [(float(n), b"".join(lines[n : n + 7])) for n in range(0, 95, 7)]
    gap = Gap(Position(5, 1), GapCause.TRUNCATED, 9, site.ms(0))
    await site.put("n1", told, source="0", labelled=True, gaps=(gap,))
    page = await site.page(ranks=(2,), tail=tail)
    wanted = [line for line in lines if line.startswith(b"2: ")]
    assert "".join(each.text for each in blocks(page)).encode() == b"".join(
        wanted[len(wanted) - min(tail, len(wanted)) :]
    )
    assert [each for each in page.records if isinstance(each, LogGap)]


@pytest.mark.spec("LOG-2")
async def test_after_a_gap_a_line_has_no_rank() -> None:
    site = Site()
    gap = Gap(Position(8, 0), GapCause.POWER_CUT, 9, site.ms(0))
    await site.put(
        "n1", [(0.0, b"0: epoch"), (1.0, b"3: x\n"), (2.0, b"1: y\n")],
        source="0", labelled=True, gaps=(gap,),
    )  # fmt: skip
    told = ranks_and_texts(await site.page())
    assert told == [(0, "0: epoch"), (None, "3: x\n"), (1, "1: y\n")]


@pytest.mark.spec("LOG-2")
def test_a_file_s_own_task_stands_where_no_label_does() -> None:
    name = StreamName("n1", LogKind.STDOUT, LogSource("0", 4))
    assert block(name, lines_of(b"x\n")).rank == 4
