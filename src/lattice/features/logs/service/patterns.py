"""A caller's pattern, matched against many lines at once. No I/O.

RE2 matches in linear time and releases Python's lock meanwhile. Line by line most of the time would
go into the calls. So whole blocks are searched if that finds the very same lines.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import suppress
from typing import Any

import re2  # type: ignore[import-untyped]

from lattice.base.errors import UsageError

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


def line_pattern(text: str) -> LinePattern | None:
    """The compiled pattern; None for an empty text."""
    return LinePattern(text) if text else None


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
        said = problem.args[0] if problem.args else ""
        reason = said.decode(errors="replace") if isinstance(said, bytes) else str(said)
        raise UsageError(
            f"The pattern can't be used: {reason}.",
            hint="RE2 patterns, without look-around and back-references.",
        ) from None
    # The module would cache 128 patterns, with up to 8 MiB each.
    re2.purge()
    return compiled
