"""Searches lines in a text. Pure, so that it can run in another process.

The result is spans: whole lines that match, neighbours of one rank joined.

RE2 matches in linear time and releases Python's lock meanwhile. Line by line most of the time would
go into the calls. So whole blocks are searched if that finds the very same lines.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from contextlib import suppress
from typing import Any, NamedTuple, TypeAlias

import re2  # type: ignore[import-untyped]

from lattice.base.errors import UsageError
from lattice.domain.loglabels import rank_of

_LONGEST_PATTERN = 500
_PATTERN_BYTES = 8 * 1024 * 1024
_LINE_ONLY = re.compile(r"\\[AzCQ]|\(\?[a-zA-Z-]*m")
"""Patterns that mean something else in a block than in a line.

They are the ends of the text, any byte, a quotation without an end, and the multi-line flag.
"""


class LinePattern:
    """One pattern, compiled for single lines and, if possible, for blocks."""

    def __init__(self, text: str) -> None:
        """Raises `UsageError` for an invalid pattern."""
        if len(text) > _LONGEST_PATTERN:
            raise UsageError(f"A pattern has at most {_LONGEST_PATTERN} characters.")
        self._line = _compiled(text.encode(), never_nl=False)
        self._block: Any = None
        if _LINE_ONLY.search(text) is None:
            # Match up to the end of the line, so that each line is found once.
            with suppress(UsageError):
                self._block = _compiled(b"(?m)(?:%s).*" % text.encode(), never_nl=True)

    def is_in(self, line: bytes) -> bool:
        """Whether the line, with or without its line feed, matches."""
        return self._line.search(line.removesuffix(b"\n")) is not None

    def lines(self, text: bytes) -> Iterator[tuple[int, int]]:
        """The ranges of matching lines, in order; each with its line feed."""
        return self._single(text) if self._block is None else self._found(text)

    def _found(self, text: bytes) -> Iterator[tuple[int, int]]:
        end = 0
        for found in self._block.finditer(text):
            at = found.start()
            if at < end:
                # The end of a line that was found already.
                continue
            if at == len(text) and text.endswith(b"\n"):
                # There is no line behind the last line feed.
                return
            begin = text.rfind(b"\n", end, at) + 1 or end
            end = text.find(b"\n", at) + 1 or len(text)
            if end > begin:
                yield begin, end

    def _single(self, text: bytes) -> Iterator[tuple[int, int]]:
        begin = 0
        while begin < len(text):
            end = text.find(b"\n", begin) + 1 or len(text)
            if self.is_in(text[begin:end]):
                yield begin, end
            begin = end


def _compiled(pattern: bytes, *, never_nl: bool) -> Any:
    options = re2.Options()
    options.max_mem = _PATTERN_BYTES
    options.log_errors = False
    options.encoding = re2.Options.Encoding.LATIN1
    options.never_nl = never_nl
    # Captures are not needed; without them some patterns take a thousandth of the work.
    options.never_capture = True
    try:
        compiled = re2.compile(pattern, options)
    except re2.error as problem:
        detail = problem.args[0] if problem.args else ""
        reason = detail.decode(errors="replace") if isinstance(detail, bytes) else str(detail)
        raise UsageError(
            f"The pattern can't be used: {reason}.",
            hint="RE2 patterns, without look-around and back-references.",
        ) from None
    # The module would cache 128 patterns, with up to 8 MiB each.
    re2.purge()
    return compiled


LineSpan: TypeAlias = tuple[int | None, int, int]
"""The rank from the lines' labels, and the begin and the end of the lines."""


class LineQuestion(NamedTuple):
    """The part of a query that concerns the text of single lines."""

    grep: str = ""
    exclude: str = ""
    ranks: tuple[int, ...] = ()
    """Empty: any."""


class LineSearch:
    """The compiled patterns of one query."""

    def __init__(self, question: LineQuestion) -> None:
        """Raises `UsageError` for invalid patterns."""
        self._grep = LinePattern(question.grep) if question.grep else None
        self._exclude = LinePattern(question.exclude) if question.exclude else None
        self._ranks = frozenset(question.ranks)

    def spans(self, text: bytes, *, labelled: bool, torn: bool) -> list[LineSpan]:
        """The lines of a text that match.

        `labelled`: lines begin with the rank that wrote them. `torn`: the beginning of the first
        line is missing, so it has no label.
        """
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


def _joined(spans: Iterable[LineSpan]) -> list[LineSpan]:
    joined: list[LineSpan] = []
    for rank, begin, end in spans:
        if joined and joined[-1][0] == rank and joined[-1][2] == begin:
            joined[-1] = (rank, joined[-1][1], end)
        else:
            joined.append((rank, begin, end))
    return joined


def _by_rank(text: bytes, begin: int, end: int, torn: bool) -> Iterator[LineSpan]:
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
