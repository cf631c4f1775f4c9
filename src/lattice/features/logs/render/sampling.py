"""One line in so many, when more come than anyone could read. Pure but for the time it is told."""

from __future__ import annotations

from lattice.features.logs.render.lines import Head

MOST_LINES_S = 5000
_SHOWN_LINES_S = 1000
_WINDOW_S = 0.5
_KEPT = 200


class Sampler:
    """Says of each line whether to show it; what was left out last is kept, for when it ends."""

    def __init__(self, now: float) -> None:
        self._start = now
        self._seen = 0
        self.rate = 0
        self.step = 1
        self.skipped = 0
        self._since: list[tuple[Head, str]] = []
        self._left_out_since = 0

    def begin(self, count: int, now: float) -> None:
        """So many lines have come."""
        self._seen += count
        passed = now - self._start
        if passed >= _WINDOW_S:
            self.rate = round(self._seen / passed)
            self._start, self._seen = now, 0
        else:
            # Within a window it only rises: a flood is met at once, and its end is made sure of.
            self.rate = max(self.rate, round(self._seen / _WINDOW_S))
        self.step = 1 if self.rate <= MOST_LINES_S else -(-self.rate // _SHOWN_LINES_S)

    def shows(self, head: Head, line: str) -> bool:
        """Whether to show this one, which has that before it."""
        if self.step == 1 or self._left_out_since + 1 >= self.step:
            self._left_out_since = 0
            self._since.clear()
            return True
        self._left_out_since += 1
        self.skipped += 1
        self._since.append((head, line))
        if len(self._since) > _KEPT:
            del self._since[: _KEPT // 2]
        return False

    def calm(self, now: float) -> tuple[list[tuple[Head, str]], int]:
        """At the end of a flood: the last lines that were left out, and how many stay so."""
        self._start, self._seen, self.rate, self.step = now, 0, 0, 1
        last, self._since = self._since, []
        skipped, self.skipped = self.skipped - len(last), 0
        self._left_out_since = 0
        return last, skipped
