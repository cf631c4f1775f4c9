"""Searching a block of lines finds the very lines that searching each of them would."""

from __future__ import annotations

import pytest
import re2
from hypothesis import given
from hypothesis import strategies as st

from lattice.domain.loglabels import rank_of
from lattice.domain.logs import Position
from lattice.features.logs.lines import Lines
from lattice.features.logs.model import LogQuery
from lattice.features.logs.service import records
from lattice.features.logs.service.records import LineFilter
from lattice.features.logs.service.search import LinePattern

PATTERNS = [
    "a", "^a", "a$", "^$", "^", "$", "x*", ".", "a.b", "a|b", "^a|b$", r"a\nb", r"[^a]", r"[^a]$",
    r"\s", r"\W+a", r"\D", r"\bab\b", r"\Ba", "(?i)A", "(?s)a.b", "(?s).*", "(?m)^a$", "(?-m)a$",
    "(?i:A)b$", r"\Aa", r"b\z", r"a\C", r"\Qa.b", r"\Qa.b\E$", r"[\x00-\xff]b", r"\x0a", "é",
    r"(?P<m>a)b", "(a)(b)?$", r"\pL$", r"[[:^alpha:]]", r"\r", "a{2,3}$", "(?U)a+", r"\\A", "a?",
    r"[^\n]b", r"^\s*$", r"(?:^|b)a", "()", "(|a)", r"(?s-i:.)$",
]  # fmt: skip
TEXTS = st.lists(
    st.text("ab.A \r\tx9é_", max_size=8).map(str.encode) | st.sampled_from([b"\xff\xfe", b"aab"]),
    max_size=12,
)
LABELLED = st.lists(
    st.sampled_from([b"0: a", b"1: ab", b" 1: b", b"none", b"", b"0: b"]), min_size=1
)


def one_by_one(pattern: str, lines: list[bytes]) -> list[bytes]:
    options = re2.Options()
    options.encoding = re2.Options.Encoding.LATIN1
    compiled = re2.compile(pattern.encode(), options)
    return [each for each in lines if compiled.search(each.removesuffix(b"\n"))]


def with_feeds(texts: list[bytes], *, whole: bool) -> list[bytes]:
    lines = [each + b"\n" for each in texts]
    if lines and not whole:
        lines[-1] = lines[-1].removesuffix(b"\n")
    return [each for each in lines if each]


@pytest.mark.spec("LOG-4")
@pytest.mark.parametrize("pattern", PATTERNS)
@given(texts=TEXTS, whole=st.booleans())
def test_a_block_has_the_lines_that_match_one_by_one(
    pattern: str, texts: list[bytes], whole: bool
) -> None:
    lines = with_feeds(texts, whole=whole)
    block = b"".join(lines)
    found = [block[begin:end] for begin, end in LinePattern(pattern).lines(block)]
    assert found == one_by_one(pattern, lines)


@pytest.mark.spec("LOG-4")
@given(
    texts=LABELLED,
    grep=st.sampled_from(["", "a", "b$", r"\Aa", "^$", "none"]),
    exclude=st.sampled_from(["", "1", "b", r"b\z", "^"]),
    ranks=st.sets(st.integers(0, 2)),
    labelled=st.booleans(),
    torn=st.booleans(),
    slice_bytes=st.integers(1, 20),
)
def test_runs_are_those_of_a_filter_that_looks_at_each_line(
    texts: list[bytes],
    grep: str,
    exclude: str,
    ranks: set[int],
    labelled: bool,
    torn: bool,
    slice_bytes: int,
) -> None:
    """With places, counts and ranks, however small the slices are."""
    lines = with_feeds(texts, whole=True)
    at = Position(100, 7)
    text = b"".join(lines)
    whole = Lines(at, at.past(text), 5, False, text, len(lines))
    wanted: list[tuple[int | None, Position, bytes]] = []
    follows = False
    for number, line in enumerate(lines):
        rank = None if not labelled or (torn and number == 0) else rank_of(line)
        keeps = (
            (not grep or bool(one_by_one(grep, [line])))
            and not (exclude and one_by_one(exclude, [line]))
            and not (labelled and ranks and rank not in ranks)
        )
        if keeps and follows and wanted[-1][0] == rank:
            wanted[-1] = (rank, wanted[-1][1], wanted[-1][2] + line)
        elif keeps:
            wanted.append((rank, at, line))
        follows = keeps
        at = at.past(line)
    query = LogQuery(grep=grep, exclude=exclude, ranks=tuple(ranks))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(records, "SLICE_BYTES", slice_bytes)
        steps = LineFilter(query).steps(whole, labelled=labelled, torn=torn)
        found = [each for each in steps if each is not None]
    assert [(rank, run.at, run.text) for rank, run in found] == wanted
    for _, run in found:
        assert (run.end, run.count) == (run.at.past(run.text), run.text.count(b"\n"))
