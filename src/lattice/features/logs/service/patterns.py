"""A caller's pattern, searched for in many lines at once. No I/O.

RE2 matches in linear time and holds no lock of Python's meanwhile. Line by line most of the time
would go into the calls, so whole blocks are searched where that finds the very same lines.
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
"""These mean something else in a block than in a line: the ends of the text, any byte, a quotation
without an end, and the flag for many lines itself."""


class LinePattern:
    """One pattern, compiled for single lines and, where it can be, for blocks of them."""

    def __init__(self, text: str) -> None:
        """Raises `UsageError` for what is no pattern."""
        if len(text) > _LONGEST_PATTERN:
            raise UsageError(f"A pattern has at most {_LONGEST_PATTERN} characters.")
        self._line = _compiled(text.encode(), never_nl=False)
        self._block: Any = None
        if _LINE_ONLY.search(text) is None:
            # Up to the end of the line: so each line is found once.
            with suppress(UsageError):
                self._block = _compiled(b"(?m)(?:%s).*" % text.encode(), never_nl=True)

    def is_in(self, line: bytes) -> bool:
        """Whether the line, with or without its line feed, matches."""
        return self._line.search(line.removesuffix(b"\n")) is not None

    def lines(self, text: bytes) -> Iterator[tuple[int, int]]:
        """Where the lines lie that match, in order; each with its line feed."""
        return self._single(text) if self._block is None else self._found(text)

    def _found(self, text: bytes) -> Iterator[tuple[int, int]]:
        end = 0
        for found in self._block.finditer(text):
            at = found.start()
            if at < end:
                # The end of a line that was found already.
                continue
            if at == len(text) and text.endswith(b"\n"):
                # Behind the last line there is none.
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
    """None where there is no condition."""
    return LinePattern(text) if text else None


def _compiled(pattern: bytes, *, never_nl: bool) -> Any:
    options = re2.Options()
    options.max_mem = _PATTERN_BYTES
    options.log_errors = False
    options.encoding = re2.Options.Encoding.LATIN1
    options.never_nl = never_nl
    # Whether it matches is all that is asked: a thousand times less work for some patterns.
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
    # The module would hold 128 of them, with up to 8 MiB each, for whoever asks the same again.
    re2.purge()
    return compiled
