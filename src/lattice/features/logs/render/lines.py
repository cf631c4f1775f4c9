"""Blocks of lines as text: safe for a terminal, with labels, times and highlights. Pure.

Most blocks are plain text and are processed as a whole. Only a block with special characters is
processed line by line.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import datetime
from itertools import islice
from typing import Any, NamedTuple

from lattice.base.errors import UsageError
from lattice.base.escapes import plain, plain_ascii, safe
from lattice.base.style import Style
from lattice.base.text import cells, inert
from lattice.domain.logs import LONGEST_LINE_BYTES
from lattice.features.logs.blocks import LinesFrame
from lattice.features.logs.model import LogBlock, has_longer
from lattice.features.logs.render.labels import Labels, LabelWriter

FIELDS = ("time", "node", "rank", "stream", "source", "seq", "text")
_TEMPLATE_PARTS = re.compile(r"\{\{|\}\}|\{([^{}]*)\}|[{}]|[^{}]+")
_LONGEST_TEMPLATE = 500
_WRITTEN = {"\\t": "\t", "\\n": "\n", "\\\\": "\\"}
_ESCAPE = re.compile(r"\\[tn\\]")
_TEMPLATE_HINT = (
    "Fields: " + ", ".join(f"{{{each}}}" for each in FIELDS) + "; \\t, \\n, and {{ for a brace."
)


@dataclass(frozen=True, slots=True)
class Template:
    """`--template`: a line in the user's format, parsed once, filled in for each line.

    Only names in braces: Python's format strings could access any attribute.
    """

    parts: tuple[tuple[str, bool], ...]
    """Each a field, or other text."""

    @classmethod
    def read(cls, text: str) -> Template:
        """Parse `{time} {node}:{rank} {text}`. Raises `UsageError`."""
        if not text or len(text) > _LONGEST_TEMPLATE:
            raise UsageError("A template has 1 to 500 characters.", hint=_TEMPLATE_HINT)
        parts: list[tuple[str, bool]] = []
        for found in _TEMPLATE_PARTS.finditer(text):
            whole, name = found.group(), found.group(1)
            if name is not None:
                if name not in FIELDS:
                    raise UsageError(f"{name!r} is no field of a line.", hint=_TEMPLATE_HINT)
                parts.append((name, True))
            elif whole in {"{", "}"}:
                raise UsageError("A brace of the template stands alone.", hint=_TEMPLATE_HINT)
            elif whole in {"{{", "}}"}:
                parts.append((whole[0], False))
            else:
                parts.append((_ESCAPE.sub(lambda each: _WRITTEN[each.group()], whole), False))
        return cls(tuple(parts))

    def line(self, block: LogBlock, time: str, number: int, text: str) -> str:
        """Format the line with that number in the block; `text` must be safe already."""
        values = {
            "time": time.rstrip(),
            "node": inert(block.node),
            "rank": "" if block.rank is None else str(block.rank),
            "stream": block.stream.value,
            "source": inert(block.source),
            "seq": str(block.seq + number),
            "text": text,
        }
        return "".join(values[part] if is_field else part for part, is_field in self.parts)


_MOST_MARKS = 200
"""The most marks in one line."""
_LONGEST_PATTERN = 500
_PATTERN_HINT = "RE2 patterns, as for --grep; put a \\ before a letter that is meant as it is."


@dataclass(frozen=True, slots=True)
class Highlight:
    """Highlights matches of an RE2 pattern, as for `--grep`, in linear time."""

    text: str
    _pattern: Any = field(compare=False, repr=False)

    @classmethod
    def read(cls, text: str) -> Highlight:
        """Compile a pattern; raises `UsageError`."""
        # Imported here: most calls don't need it.
        import re2  # type: ignore[import-untyped]  # noqa: PLC0415

        if len(text) > _LONGEST_PATTERN:
            raise UsageError(
                f"A pattern has at most {_LONGEST_PATTERN} characters.", hint=_PATTERN_HINT
            )
        options = re2.Options()
        options.log_errors = False
        options.never_capture = True
        try:
            return cls(text, re2.compile(text, options))
        except re2.error as problem:
            detail = problem.args[0] if problem.args else ""
            reason = detail.decode(errors="replace") if isinstance(detail, bytes) else str(detail)
            raise UsageError(
                f"{text!r} is no regular expression: {reason}", hint=_PATTERN_HINT
            ) from None

    def __call__(self, text: str) -> str:
        """The text with matches in reverse video."""
        shown, at = "", 0
        for found in islice(self._pattern.finditer(text), _MOST_MARKS):
            begin, end = found.span()
            if begin < end:
                shown += f"{text[at:begin]}\x1b[1;7m{text[begin:end]}\x1b[22;27m"
                at = end
        return shown + text[at:]


# Bounded, so that the search does not scan a long line.
_LEVEL = re.compile(
    r'("(?:level|levelname|severity|lvl)"\s{0,4}:\s{0,4}")([A-Za-z]{3,9})(?=")', re.IGNORECASE
)
_LOOKED_AT = 4096
_COLOURS = {
    "fatal": "1;31",
    "critical": "1;31",
    "error": "1;31",
    "err": "1;31",
    "warning": "33",
    "warn": "33",
    "notice": "36",
    "info": "32",
    "debug": "2",
    "trace": "2",
}


def levelled(line: str) -> str:
    """The line with its level in colour, by the first field that has one."""
    found = _LEVEL.search(line, 0, _LOOKED_AT)
    colour = _COLOURS.get(found[2].lower()) if found else None
    if found is None or colour is None:
        return line
    begin, end = found.span(2)
    return f"{line[:begin]}\x1b[{colour}m{line[begin:end]}\x1b[0m{line[end:]}"


_SGR = re.compile(r"(\x1b\[[\d;:]*m)")
CUT = " … [cut: 64 KB of this line are shown, --download has all of it]"


class Head(NamedTuple):
    """The text before a line: its time, if wanted, and its label.

    `writer` is None if lines have no labels.
    """

    time: str
    label: str
    writer: LabelWriter | None = None


class LineText:
    """Formats lines."""

    def __init__(
        self,
        style: Style,
        labels: Labels,
        *,
        now: datetime,
        timestamps: bool = False,
        raw: bool = False,
        highlight: Callable[[str], str] | None = None,
        template: Template | None = None,
    ) -> None:
        """`highlight` marks matches in a text without colours."""
        self._style = style
        self._labels = labels
        self._today = style.local(now).date()
        self._timestamps = timestamps
        self._raw = raw
        self._highlight = highlight if style.colour else None
        self._template = template

    def head(self, block: LogBlock) -> Head:
        """The text before each of its lines."""
        if self._template is not None:
            return Head("", "")
        time = f"{self.stamp(block.time, late=block.late)} " if self._timestamps else ""
        label = self._labels.before(block)
        writer = LabelWriter(block.node, block.rank, block.stream) if label else None
        return Head(time, label, writer)

    def together(self, head: Head, line: str, count: int, writers: set[LabelWriter]) -> str:
        """A line that several writers wrote; `head` is that of the first."""
        assert head.writer is not None
        text = head.time + self._labels.several(count, head.writer.kind) + line
        named = f"  ({self._labels.named(writers)})"
        width = self._style.width
        # Leave the names out if they would add a second row; lines of several rows may grow.
        if width is not None and cells(_SGR.sub("", text)) <= width < cells(
            _SGR.sub("", text) + named
        ):
            return text
        return text + self._style.paint(named, "dim")

    def stamp(self, time: datetime, *, late: bool = False) -> str:
        """The time of a line; a `~` after it means that the line is older."""
        style = self._style
        shown = style.local(time)
        mark = "~" if late else " "
        if style.width is None:
            return shown.isoformat(timespec="milliseconds").replace("+00:00", "Z") + mark.rstrip()
        form = "%H:%M:%S" if shown.date() == self._today else "%Y-%m-%d %H:%M:%S"
        return f"{shown:{form}}.{shown.microsecond // 1000:03}{mark}"

    def text(self, block: LogBlock) -> str:
        """The whole block, each line with its line feed."""
        head = self.head(block)
        before = head.time + head.label
        as_it_is = self._template is None and self._untouched(block)
        body = block.text if as_it_is else "".join(f"{line}\n" for line in self.lines(block))
        if body and not body.endswith("\n") and not self._raw:
            body += "\n"
        if not before or not body:
            return body
        last = "\n" if body.endswith("\n") else ""
        return before + body.removesuffix("\n").replace("\n", "\n" + before) + last

    def unchanged(self, frame: LinesFrame) -> bytes | None:
        """Its bytes, if `text` would return the very same; None if it may not."""
        if self._template is not None or self._timestamps or self._labels.before(frame):
            return None
        is_unchanged = frame.text.isascii() if self._raw else self._is_plain(frame)
        return frame.text if is_unchanged else None

    def _is_plain(self, frame: LinesFrame) -> bool:
        """As `_untouched`, for ASCII text that ends with a line."""
        text = frame.text
        if frame.cut or self._highlight is not None or not text.endswith(b"\n"):
            return False
        if not plain_ascii(text) or (self._style.colour and b'{"' in text):
            return False
        return not has_longer(text, b"\n", LONGEST_LINE_BYTES)

    def lines(self, block: LogBlock) -> list[str]:
        """The lines without their heads and line feeds."""
        lines = block.text.split("\n")
        lines = lines if lines[-1] else lines[:-1]
        if not self._untouched(block):
            lines = [self._line(each, cut=block.cut > 0) for each in lines]
        if self._template is None:
            return lines
        time = self.stamp(block.time, late=block.late)
        return [self._template.line(block, time, n, each) for n, each in enumerate(lines)]

    def _untouched(self, block: LogBlock) -> bool:
        if self._raw:
            return True
        if block.cut or self._highlight is not None or not plain(block.text):
            return False
        if self._style.colour and '{"' in block.text:
            return False  # it may have levels
        # The server cuts longer lines, but the client does not rely on that.
        return not has_longer(block.text, "\n", LONGEST_LINE_BYTES)

    def _line(self, text: str, *, cut: bool) -> str:
        cut = len(text) > LONGEST_LINE_BYTES or (cut and _is_cut(text))
        shown = safe(text[:LONGEST_LINE_BYTES] if cut else text, colour=self._style.colour)
        if self._style.colour and text.startswith("{"):
            shown = levelled(shown)
        if self._highlight is not None:
            shown = _highlighted(shown, self._highlight)
        return shown + self._style.paint(CUT, "dim") if cut else shown


def _is_cut(text: str) -> bool:
    # A character across the cut makes the line a few bytes shorter.
    return len(text.encode("utf-8", "surrogatepass")) > LONGEST_LINE_BYTES - 8


def _highlighted(line: str, mark: Callable[[str], str]) -> str:
    parts = _SGR.split(line)
    # Only between colours: a pattern must not match digits of an escape sequence.
    return "".join(part if at % 2 else mark(part) for at, part in enumerate(parts))
