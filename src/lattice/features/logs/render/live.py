"""A terminal that follows a stream: lines that stay, and a bottom line that is repainted.

The bottom line has what may still change: an unfinished line, a run of equal lines, or how long the
stream has been quiet. It is never wider than the window and never scrolls away. Pure: the methods
return the text to write. At the end the terminal is as before.
"""

from __future__ import annotations

from lattice.base.escapes import RESET
from lattice.base.style import Style
from lattice.base.text import cells, cut
from lattice.features.logs.model import LogBlock
from lattice.features.logs.render.alike import Alike, Repeats, shown
from lattice.features.logs.render.lines import Head, LineText

MOST_LINES_S = 5000
_SHOWN_LINES_S = 1000
_WINDOW_S = 0.5
_MOST_SKIPPED = 200


class Sampler:
    """Decides for each line whether to show it, and keeps the last skipped lines."""

    def __init__(self, now: float) -> None:
        self._start = now
        self._seen = 0
        self.rate = 0
        self.step = 1
        self.skipped = 0
        self._since: list[tuple[Head, str]] = []
        self._left_out_since = 0

    def begin(self, count: int, now: float) -> None:
        """Count lines that have come."""
        self._seen += count
        passed = now - self._start
        if passed >= _WINDOW_S:
            self.rate = round(self._seen / passed)
            self._start, self._seen = now, 0
        else:
            # Within a window the rate only rises, so a flood is noticed at once.
            self.rate = max(self.rate, round(self._seen / _WINDOW_S))
        self.step = 1 if self.rate <= MOST_LINES_S else -(-self.rate // _SHOWN_LINES_S)

    def shows(self, head: Head, line: str) -> bool:
        """Whether to show this line."""
        if self.step == 1 or self._left_out_since + 1 >= self.step:
            self._left_out_since = 0
            self._since.clear()
            return True
        self._left_out_since += 1
        self.skipped += 1
        self._since.append((head, line))
        if len(self._since) > _MOST_SKIPPED:
            del self._since[: _MOST_SKIPPED // 2]
        return False

    def calm(self, now: float) -> tuple[list[tuple[Head, str]], int]:
        """At the end of a flood: the last skipped lines, and how many stay skipped."""
        self._start, self._seen, self.rate, self.step = now, 0, 0, 1
        last, self._since = self._since, []
        skipped, self.skipped = self.skipped - len(last), 0
        self._left_out_since = 0
        return last, skipped


_QUIET_S = 10.0
_HOLD_S = 0.3
"""How long a line of one of several writers waits for equal ones."""
_LONGEST_HOLD_S = 1.5
_MOST_HELD = 2000


class LiveView:
    """Turns blocks, marks and signs of life into text for the terminal."""

    def __init__(
        self,
        style: Style,
        lines: LineText,
        *,
        now: float,
        sample: bool = True,
        keys: bool = False,
    ) -> None:
        """`keys`: a person can press a key for `show_all`."""
        self._keys = keys
        self._style = style
        self._lines = lines
        self._sampler = Sampler(now) if sample else None
        self._repeats = Repeats(style.glyph("×", "x"))
        self._alike = Alike()
        self.due: float | None = None
        """When `settle` must be called at the latest; None if nothing is held."""
        self._held_until = now
        self._last_at = now
        self._bottom = ""
        self._trouble = ""
        self._open: dict[tuple[str, str, str], str] = {}

    def block(self, block: LogBlock, now: float) -> str:
        """Add lines."""
        self._last_at = now
        key = (block.node, block.stream.value, block.source)
        head = self._lines.head(block)
        if block.unfinished:
            # The newest goes last; the bottom line shows the last.
            self._open.pop(key, None)
            self._open[key] = head.time + head.label + "".join(self._lines.lines(block))
            return self._paint([], self._settling())
        self._open.pop(key, None)
        lines = self._lines.lines(block)
        settled: list[str] = []
        sampler = self._sampler
        if sampler is not None:
            sampler.begin(block.count, now)
            if sampler.step > 1:
                lines = [line for line in lines if sampler.shows(head, line)]
            else:
                settled = self._calm(now)
        settled += self._take(head, lines, now)
        return self._paint(settled, self._settling())

    def _take(self, head: Head, lines: list[str], now: float) -> list[str]:
        if head.writer is None:
            settled = self._settled()
            for line in lines:
                settled += self._repeats.take(head, line)
            return settled
        self._alike.take(head, lines)
        if self.due is None:
            self.due, self._held_until = now + _HOLD_S, now + _LONGEST_HOLD_S
        elif self._alike.joined:
            # More equal lines are still coming, so wait for them.
            self.due = min(now + _HOLD_S, self._held_until)
        return self._settled() if now >= self.due or self._alike.held > _MOST_HELD else []

    def settle(self) -> str:
        """Show the held lines."""
        return self._paint(self._settled(), self._settling())

    def _settled(self) -> list[str]:
        self.due = None
        return shown(self._alike.end(), self._lines, self._repeats)

    def _calm(self, now: float) -> list[str]:
        """After a flood: how many lines were skipped, and its last lines."""
        if self._sampler is None or not self._sampler.skipped:
            return []
        settled = [*self._settled(), *self._repeats.end()]
        last, skipped = self._sampler.calm(now)
        if skipped:
            note = f"--- {skipped:,} lines were not shown; --no-sample shows all ---"
            settled.append(self._style.paint(note, "dim"))
        for head, line in last:
            settled += self._repeats.take(head, line)
        return settled

    @property
    def samples(self) -> bool:
        """True while lines are skipped."""
        return self._sampler is not None and self._sampler.step > 1

    def show_all(self) -> str:
        """Show every line from now on."""
        settled = self._calm(self._last_at)
        self._sampler = None
        return self._paint(settled, self._settling())

    def mark(self, text: str) -> str:
        """Show a line about the stream."""
        self._trouble = ""
        settled = [*self._settled(), *self._repeats.end(), self._style.paint(text, "yellow")]
        return self._paint(settled, self._settling())

    def trouble(self, text: str) -> str:
        """Show a problem in the bottom line until the next mark."""
        self._trouble = text
        return self._paint(self._settled(), self._settling())

    def alive(self, now: float, state: str) -> str:
        """Show a sign of life while nothing comes; `state` is that of the connection."""
        settled = [*self._settled(), *self._calm(now)]
        quiet_s = now - self._last_at
        status = self._settling()
        if quiet_s >= _QUIET_S and not self._trouble:
            status += "  " if status else ""
            status += f"{self._dots} quiet {_span(quiet_s)}, {state}"
        return self._paint(settled, status)

    def end(self) -> str:
        """Show the rest; the cursor is then at the beginning of a line."""
        settled = [*self._settled(), *self._calm(self._last_at), *self._repeats.end()]
        settled += self._open.values()
        self._open.clear()
        self._trouble = ""
        return self._paint(settled, "")

    @property
    def _dots(self) -> str:
        return self._style.glyph("…", "...")

    def _settling(self) -> str:
        sampler = self._sampler
        if self._trouble:
            return self._trouble
        if sampler is not None and sampler.step > 1:
            how = "press f for all / --no-sample" if self._keys else "--no-sample shows all"
            return f"{self._dots} {sampler.rate:,} lines/s: showing 1 in {sampler.step}; {how}"
        if self._open:
            return next(reversed(self._open.values()))
        return self._repeats.waiting

    def _paint(self, lines: list[str], bottom: str) -> str:
        """The lines to keep, and the bottom line if it changed."""
        ours = bottom and bottom not in self._open.values()
        bottom = self._fitting(bottom)
        if ours:
            bottom = self._style.paint(bottom, "dim")
        if not lines and bottom == self._bottom:
            return ""
        erase = "\r\x1b[K" if self._bottom else ""
        self._bottom = bottom
        return erase + "".join(f"{line}\n" for line in lines) + bottom

    def _fitting(self, text: str) -> str:
        width = (self._style.width or 80) - 1
        text = text.expandtabs(4)
        if "\x1b" not in text:
            return cut(text, width)
        # Colours have no width, and a cut must not remove their end.
        parts, used, at = [], 0, 0
        while at < len(text):
            if text[at] == "\x1b":
                stop = text.index("m", at) + 1
                parts.append(text[at:stop])
                at = stop
                continue
            used += cells(text[at])
            if used > width:
                break
            parts.append(text[at])
            at += 1
        return "".join(parts) + RESET


def _span(value: float) -> str:
    minutes = int(value // 60)
    if minutes >= 60:
        return f"{minutes // 60} h {minutes % 60} m"
    return f"{minutes} m" if minutes else f"{int(value)} s"
