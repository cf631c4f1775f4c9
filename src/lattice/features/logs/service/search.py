"""Searches lines in a text. Pure, so that it can run in another process.

The result is spans: whole lines that match, neighbours of one rank joined.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import NamedTuple, Protocol, TypeAlias

from lattice.domain.loglabels import rank_of
from lattice.features.logs.service.patterns import line_pattern

Span: TypeAlias = tuple[int | None, int, int]
"""The rank from the lines' labels, and the begin and the end of the lines."""


class LineQuestion(NamedTuple):
    """The part of a query that concerns the text of single lines."""

    grep: str = ""
    exclude: str = ""
    ranks: tuple[int, ...] = ()
    """Empty: any."""


class Search(Protocol):
    """Searches texts, in this process or another."""

    def spans(
        self, question: LineQuestion, text: bytes, *, labelled: bool, torn: bool
    ) -> list[Span]:
        """The lines of a text that match.

        `labelled`: lines begin with the rank that wrote them. `torn`: the beginning of the first
        line is missing, so it has no label.
        """


class LineSearch:
    """The compiled patterns of one query."""

    def __init__(self, question: LineQuestion) -> None:
        """Raises `UsageError` for invalid patterns."""
        self._grep = line_pattern(question.grep)
        self._exclude = line_pattern(question.exclude)
        self._ranks = frozenset(question.ranks)

    def spans(self, text: bytes, *, labelled: bool, torn: bool) -> list[Span]:
        """As `Search.spans`."""
        found = self._matching(text)
        if not labelled:
            return _joined((None, begin, end) for begin, end in found)
        return _joined(
            span
            for begin, end in found
            for span in _by_rank(text, begin, end, torn)
            if not self._ranks or span[0] in self._ranks
        )

    def _matching(self, text: bytes) -> Iterator[tuple[int, int]]:
        if self._grep is not None:
            found = self._grep.lines(text)
            if self._exclude is not None:
                exclude = self._exclude
                found = (span for span in found if not exclude.is_in(text[slice(*span)]))
            return found
        if self._exclude is not None:
            return _between(self._exclude.lines(text), len(text))
        return iter([(0, len(text))])


class SearchHere:
    """Searches in the calling thread."""

    def __init__(self) -> None:
        self._last: tuple[LineQuestion, LineSearch] | None = None

    def check(self, question: LineQuestion) -> None:
        """Raises `UsageError` for invalid patterns."""
        self._compiled(question)

    def spans(
        self, question: LineQuestion, text: bytes, *, labelled: bool, torn: bool
    ) -> list[Span]:
        """As `Search.spans`."""
        return self._compiled(question).spans(text, labelled=labelled, torn=torn)

    def _compiled(self, question: LineQuestion) -> LineSearch:
        """Caches the patterns of the last query, up to 16 MiB."""
        if self._last is None or self._last[0] != question:
            self._last = (question, LineSearch(question))
        return self._last[1]


def _joined(spans: Iterable[Span]) -> list[Span]:
    joined: list[Span] = []
    for rank, begin, end in spans:
        if joined and joined[-1][0] == rank and joined[-1][2] == begin:
            joined[-1] = (rank, joined[-1][1], end)
        else:
            joined.append((rank, begin, end))
    return joined


def _by_rank(text: bytes, begin: int, end: int, torn: bool) -> Iterator[Span]:
    """Every line of a span with the rank from its label."""
    while begin < end:
        after = text.find(b"\n", begin, end) + 1 or end
        yield None if torn and begin == 0 else rank_of(text[begin:after]), begin, after
        begin = after


def _between(spans: Iterator[tuple[int, int]], size: int) -> Iterator[tuple[int, int]]:
    """The ranges between the spans, in a text of that size."""
    at = 0
    for begin, end in spans:
        if begin > at:
            yield at, begin
        at = end
    if size > at:
        yield at, size
