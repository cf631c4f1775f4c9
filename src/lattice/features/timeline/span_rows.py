"""Merges spans and marks by name as they are read, so that many thousands take little room. Pure.

A number at the end of a name counts spans of one kind: `epoch 1` and `epoch 2` are `epoch #`.
"""

from __future__ import annotations

import re
from array import array
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from datetime import UTC, datetime
from itertools import pairwise

from lattice.domain.span import WrittenMark, WrittenSpan
from lattice.features.timeline.model import (
    MOST_LINE_POINTS,
    MOST_SPAN_NAMES,
    MarkKind,
    MarkRow,
    SpanKind,
    SpanRow,
    SpanStretch,
)

_NUMBER = re.compile(r"(?<=[ _.\-/:#=])\d+$")
_MOST_PARENTS = 8
"""Of spans whose parent is looked for, for each name."""
_MOST_DEPTH = 20
_EPOCH, _CHECKPOINT = ("epoch",), ("checkpoint", "ckpt")
_SLACK_S = 1e-6
"""Times are written with microseconds, so the end of a span may be just after the next begins."""


@dataclass(slots=True)
class _Spans:
    """The spans of one name. Even places of `times` are begins and odd ones ends."""

    times: array[float] = field(default_factory=lambda: array("d"))
    parents: Counter[str] = field(default_factory=Counter)
    asked: int = 0


@dataclass(slots=True)
class _Marks:
    times: array[float] = field(default_factory=lambda: array("d"))
    newest: tuple[float, str] = (0.0, "")


_Key = tuple[str, bool]
"""A name, and whether these name their job."""


class SpanMerger:
    """Takes records in any order, on an axis from `begin` to `until`."""

    def __init__(self, begin: datetime, until: datetime) -> None:
        self._begin_s = begin.timestamp()
        self._until_s = max(until.timestamp(), self._begin_s + 1.0)
        self._spans: dict[tuple[str, bool, int], _Spans] = {}
        self._marks: dict[tuple[str, bool, bool], _Marks] = {}
        self._wanted: dict[str, list[_Spans]] = {}
        self.left_out: int = 0
        """Records whose names were too many."""

    def add(self, record: WrittenSpan | WrittenMark, *, is_named: bool, rank: int = -1) -> None:
        """Add a span with its events, or a mark."""
        if isinstance(record, WrittenMark):
            self._add_mark(record, is_named)
            return
        name = _NUMBER.sub("#", record.name) or "(no name)"
        # Epochs of many tasks overlap, so that only one task's can be told apart.
        key = (name, is_named, rank if _kind(name) is SpanKind.EPOCH else -1)
        found = self._spans.get(key)
        if found is None:
            if len(self._spans) >= 4 * MOST_SPAN_NAMES:
                self.left_out += 1
                return
            found = self._spans[key] = _Spans()
        found.times.append(record.begin_s)
        found.times.append(record.end_s)
        for child in self._wanted.pop(record.id, ()) if record.id else ():
            child.parents[name] += 1
        if record.parent and found.asked < _MOST_PARENTS:
            # A child is written before its parent, which ends later.
            found.asked += 1
            self._wanted.setdefault(record.parent, []).append(found)
        for mark in record.marks:
            self._add_mark(mark, is_named)

    def _add_mark(self, mark: WrittenMark, is_named: bool) -> None:
        key = (_NUMBER.sub("#", mark.name) or "(no name)", is_named, mark.is_log)
        found = self._marks.get(key)
        if found is None:
            if len(self._marks) >= MOST_SPAN_NAMES:
                self.left_out += 1
                return
            found = self._marks[key] = _Marks()
        found.times.append(mark.time_s)
        if mark.time_s >= found.newest[0]:
            found.newest = (mark.time_s, mark.text)

    def spans(self) -> tuple[SpanRow, ...]:
        """A row for each name: parents before what is in them, otherwise by their first time."""
        chosen: dict[_Key, tuple[int, _Spans]] = {}
        for (name, is_named, rank), found in sorted(self._spans.items(), key=lambda each: each[0]):
            chosen.setdefault((name, is_named), (rank, found))
        parents = {key: _parent(key, found, chosen) for key, (_, found) in chosen.items()}
        first_s = {key: min(found.times) for key, (_, found) in chosen.items()}
        rows = []
        for key, depth in _in_order(parents, first_s):
            rank, found = chosen[key]
            above = parents[key]
            rows.append(self._row(key, found, rank, above[0] if above else "", depth))
        if len(rows) > MOST_SPAN_NAMES:
            self.left_out += sum(each.count for each in rows[MOST_SPAN_NAMES:])
        return tuple(rows[:MOST_SPAN_NAMES])

    def marks(self) -> tuple[MarkRow, ...]:
        """A row for each name: events first, then log records; otherwise by their first time."""
        rows = [
            MarkRow(
                name=name,
                kind=MarkKind.LOG if is_log else MarkKind.EVENT,
                named=is_named,
                count=len(found.times),
                first=_time(min(found.times)),
                last=_time(max(found.times)),
                text=found.newest[1],
                times=tuple(map(_time, _thinned(sorted(found.times)))),
            )
            for (name, is_named, is_log), found in self._marks.items()
        ]
        return tuple(sorted(rows, key=lambda each: (each.kind, each.first, each.name)))

    def _row(self, key: _Key, found: _Spans, rank: int, parent: str, depth: int) -> SpanRow:
        pairs = sorted(zip(found.times[::2], found.times[1::2], strict=True))
        lengths = [end - begin for begin, end in pairs]
        united = [*_united(pairs)]
        apart = all(end <= after + _SLACK_S for (_, end), (after, _) in pairwise(pairs))
        if apart and len(pairs) <= MOST_LINE_POINTS:
            stretches = tuple(_stretch(*each) for each in pairs)
        elif len(united) <= MOST_LINE_POINTS:
            stretches = tuple(_stretch(*each) for each in united)
        else:
            stretches = tuple(self._cells(united))
        return SpanRow(
            name=key[0],
            kind=_kind(key[0]),
            named=key[1],
            parent=parent,
            depth=depth,
            count=len(pairs),
            total_s=sum(lengths),
            longest_s=max(lengths),
            busy_s=sum(end - begin for begin, end in united),
            first=_time(pairs[0][0]),
            last=_time(max(end for _, end in pairs)),
            rank=rank if rank >= 0 else None,
            stretches=stretches,
            each=apart and len(pairs) <= MOST_LINE_POINTS,
        )

    def _cells(self, united: Iterable[tuple[float, float]]) -> Iterator[SpanStretch]:
        """Equal parts of the axis, each with the share of it that was busy."""
        size_s = (self._until_s - self._begin_s) / MOST_LINE_POINTS
        busy_s = [0.0] * MOST_LINE_POINTS
        for begin, end in united:
            first = max(int((begin - self._begin_s) / size_s), 0)
            last = min(int((end - self._begin_s) / size_s), MOST_LINE_POINTS - 1)
            for cell in range(first, last + 1):
                from_s = self._begin_s + cell * size_s
                busy_s[cell] += max(min(end, from_s + size_s) - max(begin, from_s), 0.0)
        for cell, busy in enumerate(busy_s):
            if busy > 0.0:
                from_s = self._begin_s + cell * size_s
                share = min(busy / size_s, 1.0)
                yield SpanStretch(started=_time(from_s), ended=_time(from_s + size_s), share=share)


def _kind(name: str) -> SpanKind:
    plain = name.lower()
    if any(each in plain for each in _CHECKPOINT):
        return SpanKind.CHECKPOINT
    return SpanKind.EPOCH if any(each in plain for each in _EPOCH) else SpanKind.SPAN


def _united(pairs: Iterable[tuple[float, float]]) -> Iterator[tuple[float, float]]:
    """Sorted pairs without overlap."""
    begin, end = None, 0.0
    for first, last in pairs:
        if begin is not None and first <= end:
            end = max(end, last)
            continue
        if begin is not None:
            yield begin, end
        begin, end = first, last
    if begin is not None:
        yield begin, end


def _parent(key: _Key, found: _Spans, rows: Iterable[_Key]) -> _Key | None:
    """The row around most of these spans; not themselves, as a recursive function's are."""
    known = set(rows)
    for name, _ in found.parents.most_common():
        above = (name, key[1])
        if above != key and above in known:
            return above
    return None


def _in_order(
    parents: dict[_Key, _Key | None], first_s: dict[_Key, float]
) -> Iterator[tuple[_Key, int]]:
    """Each row once, with its depth. Parents that go round in a circle are rows of the top."""
    inner: dict[_Key | None, list[_Key]] = {}
    for key in sorted(parents, key=lambda each: (first_s[each], each)):
        inner.setdefault(parents[key], []).append(key)
    done: set[_Key] = set()
    for top in (*inner.get(None, ()), *parents):
        waiting = [(top, 0)]
        while waiting:
            key, depth = waiting.pop()
            if key not in done:
                done.add(key)
                yield key, min(depth, _MOST_DEPTH)
                waiting += [(each, depth + 1) for each in reversed(inner.get(key, []))]


def _thinned(times: list[float]) -> list[float]:
    if len(times) <= MOST_LINE_POINTS:
        return times
    parts = MOST_LINE_POINTS - 1
    return [times[at * (len(times) - 1) // parts] for at in range(parts + 1)]


def _stretch(begin_s: float, end_s: float) -> SpanStretch:
    return SpanStretch(started=_time(begin_s), ended=_time(end_s))


def _time(seconds: float) -> datetime:
    return datetime.fromtimestamp(seconds, UTC)
