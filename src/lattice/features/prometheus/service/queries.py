"""The calls of Prometheus' API, each narrowed to its caller."""

from __future__ import annotations

import math
import re
from collections import OrderedDict
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from datetime import UTC, datetime
from typing import Any

from lattice.access.actor import Actor
from lattice.access.limits import CallerLimits, Questions
from lattice.base.clock import Clock
from lattice.base.errors import PermissionRefused, Unavailable, UsageError
from lattice.domain.metricstore import BadQuery, MetricStore, SeriesPoints, StoreSilent
from lattice.features.prometheus.model import MOST_STEPS, PrometheusQuestion
from lattice.features.prometheus.service.parser import parse, parse_selector
from lattice.features.prometheus.service.scope import CallerFilter, scoped
from lattice.features.prometheus.service.tree import Node, Selector, Text, Type, type_of

_EARLIEST, _LATEST = 0.0, 1e11
_LONGEST_STEP_S = 366 * 86400.0
_SIZES_S = {
    "ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0, "w": 604800.0, "y": 31536000.0,
}  # fmt: skip
_DURATION = re.compile(r"(?:[0-9]{1,12}(?:ms|[smhdwy]))+")
_PIECE = re.compile(r"([0-9]+)(ms|[smhdwy])")
_NUMBER = re.compile(r"-?[0-9]{1,15}(?:\.[0-9]{1,15})?(?:[eE][+-]?[0-9]{1,2})?")


def moment_of(text: str, name: str, usual: float) -> float:
    """Return seconds since 1970, or `usual` if the text is empty. Raises `UsageError`."""
    if not text:
        return usual
    if _NUMBER.fullmatch(text):
        found = float(text)
    else:
        try:
            read = datetime.fromisoformat(text)
        except ValueError:
            raise UsageError(f"{name} is no time.", hint="RFC 3339, or seconds.") from None
        found = read.replace(tzinfo=read.tzinfo or UTC).timestamp()
    if not _EARLIEST <= found <= _LATEST:
        raise UsageError(f"{name} is no time at which anything was measured.")
    return found


def step_of(text: str) -> float:
    """Return the step in seconds. Raises `UsageError`."""
    if _NUMBER.fullmatch(text):
        found = float(text)
    elif _DURATION.fullmatch(text):
        found = math.fsum(int(size) * _SIZES_S[unit] for size, unit in _PIECE.findall(text))
    else:
        raise UsageError("step is no length of time.", hint="Seconds, or 30s, 1m, 1h30m.")
    if not 0.001 <= found <= _LONGEST_STEP_S:
        raise UsageError("step is too short or too long.")
    return found


WEIGHT = 5
"""This many queries count as one of the caller's metric queries."""
_WITHIN_S = 15.0
_USUAL_SPAN_S = 3600.0
_MOST_MATCHES = 20
_MOST_CALLERS = 50_000
_LABEL = re.compile(r"[a-zA-Z_][a-zA-Z0-9_]*")

Answer = dict[str, Any]


class PrometheusService:
    """Runs PromQL of one caller at a time against the metric store."""

    def __init__(
        self, store: MetricStore, clock: Clock, limits: CallerLimits | None = None
    ) -> None:
        self._store = store
        self._clock = clock
        self._limits = limits
        self._asked: OrderedDict[str, int] = OrderedDict()

    async def query(self, actor: Actor, question: PrometheusQuestion) -> Answer:
        """`/query`. Raises `UsageError`, `RateLimited` and `Unavailable`."""
        caller = await self._admitted(actor)
        at = moment_of(question.time, "time", self._clock.now().timestamp())
        with _understood():
            node = parse(question.query)
        kind = type_of(node)
        if isinstance(node, Text):
            return _data({"resultType": Type.STRING.value, "result": [at, node.value]})
        found = await self._from_store(self._store.query, _sent(node, caller, kind), at=at)
        if kind is Type.SCALAR:
            value = found[0].points[-1][1] if found and found[0].points else float("nan")
            return _data({"resultType": kind.value, "result": [at, _number(value)]})
        if kind is Type.MATRIX:
            return _matrix(found)
        return _data(
            {
                "resultType": Type.VECTOR.value,
                "result": [
                    {
                        "metric": dict(each.labels),
                        "value": [each.points[-1][0], _number(each.points[-1][1])],
                    }
                    for each in found
                    if each.points
                ],
            }
        )

    async def query_range(self, actor: Actor, question: PrometheusQuestion) -> Answer:
        """`/query_range`. Raises `UsageError`, `RateLimited` and `Unavailable`."""
        caller = await self._admitted(actor)
        if not (question.start and question.end and question.step):
            raise UsageError("start, end and step are needed.")
        start = moment_of(question.start, "start", 0.0)
        end = moment_of(question.end, "end", 0.0)
        step_s = step_of(question.step)
        if end < start:
            raise UsageError("end is before start.")
        if (end - start) / step_s > MOST_STEPS:
            raise UsageError(f"That is more than {MOST_STEPS} steps.", hint="Take a longer step.")
        with _understood():
            node = parse(question.query)
        kind = type_of(node)
        if kind not in {Type.SCALAR, Type.VECTOR}:
            raise UsageError("Over a range only a scalar or an instant vector can be asked for.")
        text = _sent(node, caller, kind)
        return _matrix(
            await self._from_store(
                self._store.query_range, text, start=start, end=end, step_s=step_s
            )
        )

    async def series(self, actor: Actor, question: PrometheusQuestion) -> Answer:
        """`/series`. Needs at least one `match[]`."""
        if not question.match:
            raise UsageError("match[] is needed.")
        return _data([dict(each) for each in await self._series(actor, question)])

    async def labels(self, actor: Actor, question: PrometheusQuestion) -> Answer:
        """`/labels`, of the last hour unless the request has a range."""
        found = await self._series(actor, question)
        return _data(sorted({name for each in found for name in each}))

    async def label_values(self, actor: Actor, question: PrometheusQuestion) -> Answer:
        """`/label/NAME/values`, of the last hour unless the request has a range."""
        if not _LABEL.fullmatch(question.name):
            raise UsageError("That is no name of a label.")
        found = await self._series(actor, question)
        return _data(sorted({each[question.name] for each in found if question.name in each}))

    async def _series(self, actor: Actor, question: PrometheusQuestion) -> list[Mapping[str, str]]:
        caller = await self._admitted(actor)
        now = self._clock.now().timestamp()
        end = moment_of(question.end, "end", now)
        start = moment_of(question.start, "start", end - _USUAL_SPAN_S)
        if end < start:
            raise UsageError("end is before start.")
        if len(question.match) > _MOST_MATCHES:
            raise UsageError(f"There are more than {_MOST_MATCHES} selectors.")
        with _understood("match[]"):
            selectors = [parse_selector(each) for each in question.match] or [Selector(())]
        found: dict[tuple[tuple[str, str], ...], Mapping[str, str]] = {}
        for each in selectors:
            with _understood():
                text = scoped(each, caller)
            for labels in await self._from_store(self._store.series, text, start=start, end=end):
                found[tuple(sorted(labels.items()))] = labels
        return list(found.values())

    async def _admitted(self, actor: Actor) -> CallerFilter:
        """Count the query and return the caller's filter.

        Raises `PermissionRefused` if the caller has no Unix user, and `RateLimited`.
        """
        if not actor.user:
            raise PermissionRefused(
                "You have no Unix user here, so no series are yours.",
                hint="`lattice whoami` says who the server takes you for.",
            )
        asked = self._asked.get(actor.sub, 0)
        if asked % WEIGHT == 0 and self._limits is not None:
            await self._limits.ask(actor.sub, Questions.QUERY_METRICS)
        self._asked[actor.sub] = asked + 1
        self._asked.move_to_end(actor.sub)
        if len(self._asked) > _MOST_CALLERS:
            self._asked.popitem(last=False)
        return CallerFilter(actor.user)

    async def _from_store(self, ask: Any, text: str, **times: float) -> Any:
        try:
            return await ask(text, within_s=_WITHIN_S, **times)
        except BadQuery as refusal:
            raise UsageError(f"The metric store says: {refusal}") from None
        except StoreSilent as silence:
            raise Unavailable(
                f"The metric store does not answer: {silence}.", hint="Try again in a minute."
            ) from None


@contextmanager
def _understood(what: str = "The query") -> Iterator[None]:
    """Raise `UsageError` for what the parser refuses."""
    try:
        yield
    except ValueError as problem:
        raise UsageError(f"{what} is not understood: {problem}.") from None


def _sent(node: Node, caller: CallerFilter, kind: Type) -> str:
    # Stores differ in how they return a scalar; all return a vector of one the same way.
    with _understood():
        text = scoped(node, caller)
    return f"vector({text})" if kind is Type.SCALAR else text


def _matrix(found: Iterable[SeriesPoints]) -> Answer:
    return _data(
        {
            "resultType": Type.MATRIX.value,
            "result": [
                {
                    "metric": dict(each.labels),
                    "values": [[time, _number(value)] for time, value in each.points],
                }
                for each in found
            ],
        }
    )


def _data(data: object) -> Answer:
    return {"status": "success", "data": data}


def _number(value: float) -> str:
    """Format a number as Go does."""
    if not math.isfinite(value):
        return "NaN" if math.isnan(value) else "+Inf" if value > 0 else "-Inf"
    return str(int(value)) if value == int(value) and abs(value) < 1e15 else repr(value)
