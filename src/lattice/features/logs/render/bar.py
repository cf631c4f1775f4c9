"""The progress of a download: bytes, rate, and time left. Pure."""

from __future__ import annotations

from lattice.base.style import Style
from lattice.base.text import cells, cut
from lattice.features.logs.render.marks import size

_CELLS = 24


class Rate:
    """Bytes a second over the last 5 seconds."""

    def __init__(self, now: float, done: int) -> None:
        self._points = [(now, done)]

    def at(self, now: float, done: int) -> float:
        """Add a point and return the rate."""
        self._points.append((now, done))
        while len(self._points) > 2 and now - self._points[0][0] > 5.0:
            self._points.pop(0)
        first_at, first = self._points[0]
        return (done - first) / (now - first_at) if now > first_at else 0.0


def bar(name: str, done: int, total: int, rate: float, style: Style) -> str:
    """`n1.batch.stdout  ████████░░░░  41 %  4.1 MB of 10.0 MB  1.2 MB/s  5 s left`."""
    share = min(done / total, 1.0) if total else 1.0
    full = int(share * _CELLS)
    drawn = style.glyph("█", "#") * full + style.glyph("░", ".") * (_CELLS - full)
    left = ""
    if rate > 0 and total > done:
        left = f"  {_left((total - done) / rate)} left"
    tail = f"  {int(share * 100):3} %  {size(done)} of {size(total)}  {size(rate)}/s{left}"
    width = (style.width or 80) - 1
    room = width - cells(drawn) - cells(tail) - 2
    if room < 8:
        return cut(f"{name}{tail}", width)
    return f"{cut(name, room)}  {drawn}{tail}"


def _left(value: float) -> str:
    whole = int(value) + 1
    if whole < 60:
        return f"{whole} s"
    minutes, rest = divmod(whole, 60)
    return f"{minutes}:{rest:02}" if minutes < 60 else f"{minutes // 60}:{minutes % 60:02} h"
