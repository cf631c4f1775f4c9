"""Highlights matches of a pattern in a line. Pure, and in linear time."""

from __future__ import annotations

from dataclasses import dataclass, field
from itertools import islice
from typing import Any

from lattice.base.errors import UsageError

_MOST = 200
"""The most marks in one line."""
_LONGEST_PATTERN = 500
_HINT = "RE2 patterns, as for --grep; put a \\ before a letter that is meant as it is."


@dataclass(frozen=True, slots=True)
class Highlight:
    """An RE2 pattern, as for `--grep`."""

    text: str
    _pattern: Any = field(compare=False, repr=False)

    @classmethod
    def read(cls, text: str) -> Highlight:
        """Compile a pattern; raises `UsageError`."""
        # Imported here: most calls don't need it.
        import re2  # type: ignore[import-untyped]  # noqa: PLC0415

        if len(text) > _LONGEST_PATTERN:
            raise UsageError(f"A pattern has at most {_LONGEST_PATTERN} characters.", hint=_HINT)
        options = re2.Options()
        options.log_errors = False
        options.never_capture = True
        try:
            return cls(text, re2.compile(text, options))
        except re2.error as problem:
            said = problem.args[0] if problem.args else ""
            words = said.decode(errors="replace") if isinstance(said, bytes) else str(said)
            raise UsageError(f"{text!r} is no regular expression: {words}", hint=_HINT) from None

    def __call__(self, text: str) -> str:
        """The text with matches in reverse video."""
        shown, at = "", 0
        for found in islice(self._pattern.finditer(text), _MOST):
            begin, end = found.span()
            if begin < end:
                shown += f"{text[at:begin]}\x1b[1;7m{text[begin:end]}\x1b[22;27m"
                at = end
        return shown + text[at:]
