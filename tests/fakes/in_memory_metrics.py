"""A metric store in memory: writes, selectors, and the PromQL that is composed.

Passes the contract suite of the port.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from functools import cache

from lattice.domain.metricstore import BadQuery, Point, SeriesPoints, StoreSilent, WriteRefused
from tests.fakes.in_memory_promql import Evaluation
from tests.fakes.remote_write import points_in

_SELECTOR = re.compile(r"(?P<name>[a-zA-Z_:][a-zA-Z0-9_:]*)?\s*(?:\{(?P<inside>.*)\})?", re.DOTALL)
_MATCHER = re.compile(r'\s*([a-zA-Z_]\w*)\s*(=~|!=|=)\s*"((?:[^"\\]|\\.)*)"\s*(?:,|$)')
_Labels = tuple[tuple[str, str], ...]


class InMemoryMetricStore:
    """`away`: nothing answers. `refuses`: writes that hold a series of this name are refused."""

    def __init__(self) -> None:
        self.away = False
        self.refuses = ""
        self.writes: list[tuple[SeriesPoints, ...]] = []
        self._points: dict[_Labels, dict[float, float]] = {}

    async def write(self, series: Sequence[SeriesPoints]) -> None:
        if not series:
            return
        self._answer()
        if self.refuses and any(each.labels["__name__"] == self.refuses for each in series):
            raise WriteRefused(f"it answered 400: {self.refuses} is not liked")
        self.writes.append(tuple(series))
        for each in series:
            labels = tuple(sorted(pair for pair in each.labels.items() if pair[1]))
            self._points.setdefault(labels, {}).update(each.points)

    async def write_encoded(self, request: bytes) -> None:
        await self.write(points_in(request))

    async def query(
        self,
        promql: str,
        *,
        at: float,
        within_s: float = 10.0,  # noqa: ARG002
    ) -> tuple[SeriesPoints, ...]:
        self._answer()
        found = Evaluation(promql, self._points).at(at)
        return tuple(SeriesPoints(dict(labels), ((at, value),)) for labels, value in found.items())

    async def query_range(
        self,
        promql: str,
        *,
        start: float,
        end: float,
        step_s: float,
        within_s: float = 10.0,  # noqa: ARG002
    ) -> tuple[SeriesPoints, ...]:
        found: dict[_Labels, list[Point]] = {}
        for step in range(int((end - start) / step_s) + 1):
            for each in await self.query(promql, at=start + step * step_s):
                found.setdefault(tuple(sorted(each.labels.items())), []).extend(each.points)
        return tuple(SeriesPoints(dict(labels), tuple(each)) for labels, each in found.items())

    async def series(
        self,
        match: str,
        *,
        start: float,
        end: float,
        within_s: float = 10.0,  # noqa: ARG002
    ) -> tuple[Mapping[str, str], ...]:
        self._answer()
        return tuple(
            dict(labels)
            for labels, points in self._matching(match)
            if any(start <= each <= end for each in points)
        )

    def named(self, name: str) -> dict[_Labels, dict[float, float]]:
        """What was written under a name, for those who test what was."""
        return {
            labels: points
            for labels, points in self._points.items()
            if ("__name__", name) in labels
        }

    def _matching(self, selector: str) -> list[tuple[_Labels, dict[float, float]]]:
        wanted = _matchers(selector)
        return [
            (labels, points)
            for labels, points in self._points.items()
            if all(_holds(dict(labels).get(name, ""), *test) for name, *test in wanted)
        ]

    def _answer(self) -> None:
        if self.away:
            raise StoreSilent("it did not answer within 10 s")


def _holds(value: str, operator: str, wanted: str) -> bool:
    if operator == "=~":
        return re.fullmatch(wanted, value) is not None
    return (value == wanted) == (operator == "=")


@cache
def _matchers(selector: str) -> tuple[tuple[str, str, str], ...]:
    whole = _SELECTOR.fullmatch(selector.strip())
    if whole is None or not (whole["name"] or whole["inside"]):
        raise BadQuery(f"this fake knows plain selectors only, not {selector!r}")
    found = [("__name__", "=", whole["name"])] if whole["name"] else []
    inside, at = whole["inside"] or "", 0
    while at < len(inside.rstrip()):
        each = _MATCHER.match(inside, at)
        if each is None:
            raise BadQuery(f"not a matcher: {inside[at:]!r}")
        found.append((each[1], each[2], re.sub(r"\\(.)", r"\1", each[3])))
        at = each.end()
    return tuple(found)
