"""Blocks of lines as text: safe for a terminal, labelled, timed, highlighted. Pure.

Most of what jobs write is plain; a block of it is passed on in a few steps for the whole of it,
and only a block with something odd in it is gone through line by line.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from datetime import datetime
from typing import NamedTuple

from lattice.base.escapes import plain, safe
from lattice.base.style import Style
from lattice.base.text import cells
from lattice.domain.logs import LONGEST_LINE_BYTES
from lattice.features.logs.model import LogBlock
from lattice.features.logs.render.labels import Labels, Writer
from lattice.features.logs.render.levels import levelled
from lattice.features.logs.render.template import Template

_SGR = re.compile(r"(\x1b\[[\d;:]*m)")
CUT = " … [cut: 64 KB of this line are shown, --download has all of it]"


class Head(NamedTuple):
    """What stands before a line: its time, if that is told, and whose it is.

    `writer` is None where lines are not told apart.
    """

    time: str
    label: str
    writer: Writer | None = None


class LineText:
    """How lines are shown."""

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
        """`highlight` marks what it has to in a text without colours."""
        self._style = style
        self._labels = labels
        self._today = style.local(now).date()
        self._timestamps = timestamps
        self._raw = raw
        self._highlight = highlight if style.colour else None
        self._template = template

    def head(self, block: LogBlock) -> Head:
        """What stands before each of its lines."""
        if self._template is not None:
            return Head("", "")
        time = f"{self.stamp(block.time, late=block.late)} " if self._timestamps else ""
        label = self._labels.before(block)
        writer = Writer(block.node, block.rank, block.stream) if label else None
        return Head(time, label, writer)

    def together(self, head: Head, line: str, count: int, writers: set[Writer]) -> str:
        """A line that several have written; `head` is that of the first."""
        assert head.writer is not None
        text = head.time + self._labels.several(count, head.writer.kind) + line
        named = f"  ({self._labels.named(writers)})"
        width = self._style.width
        # Not at the price of a second row; a line that has several anyway may be a bit longer.
        if width is not None and cells(_SGR.sub("", text)) <= width < cells(
            _SGR.sub("", text) + named
        ):
            return text
        return text + self._style.paint(named, "dim")

    def stamp(self, time: datetime, *, late: bool = False) -> str:
        """The time of a line; `~` behind it says that the line is older than that."""
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
        body = block.text if as_it_is else "".join(map(_ended, self.lines(block)))
        if body and not body.endswith("\n") and not self._raw:
            body += "\n"
        if not before or not body:
            return body
        last = "\n" if body.endswith("\n") else ""
        return before + body.removesuffix("\n").replace("\n", "\n" + before) + last

    def lines(self, block: LogBlock) -> list[str]:
        """The same line by line, without what stands before them."""
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
            return False  # it may tell levels
        # The server has cut what is longer; it is not taken at its word.
        return not _has_longer(block.text, LONGEST_LINE_BYTES)

    def _line(self, text: str, *, cut: bool) -> str:
        cut = len(text) > LONGEST_LINE_BYTES or (cut and _is_cut(text))
        shown = safe(text[:LONGEST_LINE_BYTES] if cut else text, colour=self._style.colour)
        if self._style.colour and text.startswith("{"):
            shown = levelled(shown)
        if self._highlight is not None:
            shown = _highlighted(shown, self._highlight)
        return shown + self._style.paint(CUT, "dim") if cut else shown


def _has_longer(text: str, longest: int) -> bool:
    """Whether a line is longer than that, in a few steps however many lines there are."""
    begin = 0
    while len(text) - begin > longest:
        end = text.rfind("\n", begin, begin + longest + 1)
        if end < 0:
            return True
        begin = end + 1
    return False


def _ended(line: str) -> str:
    return line + "\n"


def _is_cut(text: str) -> bool:
    # A letter may have stood across the cut: then it ends a few bytes early.
    return len(text.encode("utf-8", "surrogatepass")) > LONGEST_LINE_BYTES - 8


def _highlighted(line: str, mark: Callable[[str], str]) -> str:
    parts = _SGR.split(line)
    # Only between colours: a pattern must not take a colour's own digits apart.
    return "".join(part if at % 2 else mark(part) for at, part in enumerate(parts))
