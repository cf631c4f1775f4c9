"""Reads a job from the metric store: the queries, and what is missing in the answers."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TypeAlias

from lattice.domain.measured import Shown
from lattice.domain.metricstore import BadQuery, MetricStore, SeriesPoints, StoreSilent
from lattice.features.top.model import HISTORY_POINTS, TopMode, TopQuery
from lattice.features.top.service.composer import Climbs, Composer, composer, of_all
from lattice.features.top.service.figures import ALL, Figures, read_figures, read_history
from lattice.observe.metric_query import OwnerFilter
from lattice.observe.windows import live_window, step_s

Answered: TypeAlias = tuple[SeriesPoints, ...]

NOW_S, PAST_S = 2.0, 10.0
"""Query timeouts: for current values, and for a time range."""
_AT_ONCE_S = 0.5
"""Extra time after the query timeout before the store counts as down."""
_MOST_HISTORIES = 64
"""Rows; above this only the summary has a history."""


@dataclass(frozen=True, slots=True)
class Stretch:
    """The time range of a request: its end, and its length."""

    at: float
    lasted_s: float
    running: bool
    duration_s: int | None
    """None for the newest values."""


@dataclass(slots=True)
class StoredReading:
    """The store's answer."""

    figures: Figures
    fresh_s: int
    silent: tuple[str, ...] = ()
    """Nodes without current data."""
    summary: Figures | None = None
    notes: list[str] = field(default_factory=list)
    queries: tuple[str, ...] = ()

    def lacking(self, mode: TopMode, metrics: Sequence[Shown], nodes: Sequence[str]) -> list[str]:
        """Return the nodes with data that lack some figure."""
        silent = frozenset(self.silent)
        there = [each for each in nodes if each not in silent]
        known = len(self.figures.values) + len(self.figures.none)
        if mode in {TopMode.PER_NODE, TopMode.WIDE} and known == len(metrics) * len(nodes):
            return []
        return [node for node in there if any(self.lacks(mode, each, node) for each in metrics)]

    def lacks(self, mode: TopMode, metric: Shown, node: str) -> bool:
        """Return True if the mode's row has no number for this metric of this node."""
        row_key = ("", "") if mode is TopMode.SUMMARY else (node, "")
        if mode is TopMode.PER_GPU:
            return not any(of is metric and at[0] == node for of, at in self.figures.values)
        key = (metric, row_key)
        return key not in self.figures.values and key not in self.figures.none


class StoredValues:
    """Queries the store. Raises `StoreSilent` and `BadQuery`."""

    def __init__(
        self, store: MetricStore, *, now_s: float = NOW_S, grace_s: float = _AT_ONCE_S
    ) -> None:
        self._store = store
        self._now_s = now_s
        self._grace_s = grace_s

    async def read(
        self,
        owner: OwnerFilter,
        query: TopQuery,
        stretch: Stretch,
        interval_s: float,
        nodes: Sequence[str],
    ) -> StoredReading:
        """Run as few queries as possible."""
        composed = composer(owner, query.mode)
        if stretch.duration_s is None:
            reading = await self._now(composed, query, stretch, interval_s, nodes)
        else:
            reading = await self._over(composed, stretch, stretch.duration_s, interval_s)
        if reading.figures.is_mixed and query.mode is not TopMode.SUMMARY:
            origins = str(composed.origins(reading.fresh_s))
            found = read_figures(await self._ask(origins, stretch.at, self._now_s))
            reading.figures.origins.update(found.origins)
            reading.figures.is_apart = True
        await self._find_silent(reading, composed, stretch, nodes)
        if reading.silent and not composed.by and stretch.duration_s is None:
            await self._strictly(reading, composed, stretch, interval_s)
        return reading

    async def _now(
        self,
        composed: Composer,
        query: TopQuery,
        stretch: Stretch,
        interval_s: float,
        nodes: Sequence[str],
    ) -> StoredReading:
        window = live_window(interval_s, stretch.lasted_s)
        text = str(composed.now(window))
        if not query.history:
            figures = read_figures(await self._ask(text, stretch.at, self._now_s))
            return StoredReading(figures, window.gauge_s, queries=(text,))
        answer, (history, note) = await asyncio.gather(
            self._ask(text, stretch.at, self._now_s),
            self._history(composed, stretch, interval_s, nodes),
        )
        figures = read_figures(answer)
        figures.history = history.history
        return StoredReading(figures, window.gauge_s, notes=note, queries=(text,))

    async def _strictly(
        self, reading: StoredReading, composed: Composer, stretch: Stretch, interval_s: float
    ) -> None:
        """Recompute the totals without nodes that are gone."""
        window = live_window(interval_s, stretch.lasted_s, fresh_only=True)
        text = str(composed.now(window))
        found = read_figures(await self._ask(text, stretch.at, self._now_s))
        found.history = reading.figures.history
        found.moments.update(reading.figures.moments)
        reading.figures = found
        reading.queries = (text,)

    async def _history(
        self, composed: Composer, stretch: Stretch, interval_s: float, nodes: Sequence[str]
    ) -> tuple[Figures, list[str]]:
        """Return the history of every cell; if it fails, the answer has none."""
        whole = Composer(composed.owner, composed.metrics)
        askers = [whole]
        if composed.by and len(nodes) <= _MOST_HISTORIES:
            askers.append(composed)
        span_s = min(stretch.lasted_s, interval_s * HISTORY_POINTS)
        step = step_s(span_s, interval_s, HISTORY_POINTS)
        window = live_window(interval_s, stretch.lasted_s, step)
        found = Figures()
        try:
            answers = await asyncio.gather(
                *(
                    self._range(str(each.history(window)), stretch.at - span_s, stretch.at, step)
                    for each in askers
                )
            )
        except (StoreSilent, BadQuery) as problem:
            return found, [f"There is no history: the metric store says {problem}."]
        for answer in answers:
            found.history |= read_history(answer)
        return found, []

    async def _over(
        self, composed: Composer, stretch: Stretch, duration_s: int, interval_s: float
    ) -> StoredReading:
        texts = [str(composed.over(duration_s, interval_s, stretch.lasted_s))]
        if composed.by:
            # A peak of the whole can't be computed from peaks: they may be at different times.
            whole = Composer(composed.owner, composed.metrics)
            texts.append(str(whole.over(duration_s, interval_s, stretch.lasted_s)))
        counters = Climbs(composed.owner, composed.metrics)
        climbs = counters.query(stretch.at, duration_s, interval_s)
        asked = [*texts, str(climbs)] if climbs is not None else texts
        answers = await asyncio.gather(*(self._ask(each, stretch.at, PAST_S) for each in asked))
        found = [read_figures(each) for each in answers[: len(texts)]]
        means = counters.means(answers[-1]) if climbs is not None else {}
        if composed.by:
            found[0].values |= {(of, (node, "")): mean for (of, node), mean in means.items()}
        for metric in composed.metrics:
            total = of_all(metric, means)
            if total is not None:
                found[-1].values[metric, ALL] = total
        summary = found[1] if composed.by else None
        return StoredReading(found[0], duration_s, summary=summary, queries=tuple(asked))

    async def _find_silent(
        self, reading: StoredReading, composed: Composer, stretch: Stretch, nodes: Sequence[str]
    ) -> None:
        figures, oldest = reading.figures, stretch.at - reading.fresh_s

        def silent() -> tuple[str, ...]:
            return tuple(each for each in nodes if figures.moments.get(each, 0.0) < oldest)

        if composed.by:
            reading.silent = silent()
            if not reading.silent:
                return
        elif figures.coverage is not None and figures.coverage >= len(nodes):
            return
        # A node without one heartbeat may have another; and a total does not name missing nodes.
        text = str(composed.alive())
        found = read_figures(await self._ask(text, stretch.at, self._now_s)).moments
        figures.moments.update(found)
        reading.silent = silent()
        reading.queries = (*reading.queries, text)

    async def _ask(self, promql: str, at: float, within_s: float) -> Answered:
        try:
            async with asyncio.timeout(within_s + self._grace_s):
                return await self._store.query(promql, at=at, within_s=within_s)
        except TimeoutError:
            raise StoreSilent(f"it did not answer within {within_s:g} s") from None

    async def _range(self, promql: str, start: float, end: float, step: int) -> Answered:
        return await self._store.query_range(
            promql, start=start, end=end, step_s=step, within_s=PAST_S
        )
