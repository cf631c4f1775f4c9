"""PromQL over series in memory: as much of it as the composed queries use.

A rate is what was counted between the first and the last sample, with nothing guessed at the edges.
"""

from __future__ import annotations

import itertools
import math
import operator
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import cache
from typing import TypeAlias

from lattice.domain.metricstore import BadQuery, Point
from lattice.features.prometheus.service.lexer import NotUnderstood
from lattice.features.prometheus.service.parser import parse
from lattice.features.prometheus.service.tree import (
    Aggregation,
    Chain,
    FunctionCall,
    Group,
    Node,
    Number,
    Range,
    Selector,
    Subquery,
    Text,
)

LOOKBACK_S = 300.0

Labels: TypeAlias = tuple[tuple[str, str], ...]
Series: TypeAlias = Mapping[Labels, Mapping[float, float]]
Vector: TypeAlias = dict[Labels, float]

_NAME = "__name__"
_OVER: dict[str, Callable[[Sequence[Point]], float]] = {
    "last_over_time": lambda points: points[-1][1],
    "max_over_time": lambda points: max(value for _, value in points),
    "min_over_time": lambda points: min(value for _, value in points),
    "avg_over_time": lambda points: math.fsum(value for _, value in points) / len(points),
    "count_over_time": lambda points: float(len(points)),
    "resets": lambda points: float(sum(b < a for a, b in _pairs(points))),
}
_SIGNS = {"-": operator.sub, "/": operator.truediv}
_GATHER: dict[str, Callable[[Sequence[float]], float]] = {
    "sum": math.fsum,
    "max": max,
    "avg": lambda values: math.fsum(values) / len(values),
    "count": lambda values: float(len(values)),
}


class Evaluation:
    """One query over some series."""

    def __init__(self, promql: str, series: Series) -> None:
        """Raises `BadQuery`."""
        # In parts: the whole may be longer than what a caller may send.
        self._parts = [_parsed(each) for each in promql.split("\nor ")]
        self._series = series

    def at(self, time: float) -> Vector:
        """Raises `BadQuery` for what this fake does not know."""
        return self._chain(self._parts, ["or"] * (len(self._parts) - 1), time)

    def _vector(self, node: Node, time: float) -> Vector:
        match node:
            case Selector():
                return {labels: value for labels, (_, value) in self._newest(node, time).items()}
            case Group(what):
                return self._vector(what, time)
            case Chain(operands, operators):
                return self._chain(operands, operators, time)
            case Aggregation(name, grouping, (what,)):
                return _gathered(name, grouping, self._vector(what, time))
            case FunctionCall(name, arguments):
                return self._called(name, arguments, time)
        raise BadQuery(f"this fake does not know {node}")

    def _called(self, name: str, arguments: Sequence[Node], time: float) -> Vector:
        what = arguments[0]
        if name == "timestamp" and isinstance(what, Selector):
            return {_nameless(each): at for each, (at, _) in self._newest(what, time).items()}
        if name == "label_replace":
            label, value = (each.value for each in arguments[1:3] if isinstance(each, Text))
            return {
                tuple(sorted({**dict(each), label: value}.items())): number
                for each, number in self._vector(what, time).items()
            }
        if name == "histogram_quantile" and isinstance(what, Number):
            return _quantiles(float(what.text), self._vector(arguments[1], time))
        matrix = self._matrix(what, time)
        if name in {"rate", "increase"}:
            grown = _rate if name == "rate" else _grown
            return {_nameless(each): grown(some) for each, some in matrix.items() if len(some) > 1}
        if name not in _OVER:
            raise BadQuery(f"this fake does not know {name}")
        kept: Callable[[Labels], Labels] = _same if name == "last_over_time" else _nameless
        return {kept(labels): _OVER[name](points) for labels, points in matrix.items()}

    def _matrix(self, node: Node, time: float) -> dict[Labels, list[Point]]:
        found: dict[Labels, list[Point]] = {}
        match node:
            case Range(selector, seconds):
                begin = time - _seconds(seconds)
                for labels, points in self._matching(selector):
                    some = [(at, points[at]) for at in sorted(points) if begin < at <= time]
                    if some:
                        found[labels] = some
            case Subquery(what, seconds, step):
                step_s = _seconds(step)
                first = math.floor((time - _seconds(seconds)) / step_s) + 1
                for number in range(first, math.floor(time / step_s) + 1):
                    for labels, value in self._vector(what, number * step_s).items():
                        found.setdefault(labels, []).append((number * step_s, value))
            case _:
                raise BadQuery(f"{node} is no stretch of time")
        return found

    def _chain(self, operands: Sequence[Node], operators: Sequence[str], time: float) -> Vector:
        found = self._vector(operands[0], time)
        for sign, operand in zip(operators, operands[1:], strict=True):
            if sign == ">" and isinstance(operand, Number):
                least = float(operand.text)
                found = {labels: value for labels, value in found.items() if value > least}
                continue
            if sign == "*" and isinstance(operand, Number):
                factor = float(operand.text)
                found = {_nameless(labels): value * factor for labels, value in found.items()}
                continue
            other = self._vector(operand, time)
            there = {_nameless(each) for each in other}
            if sign == "or":
                mine = {_nameless(each) for each in found}
                found |= {each: new for each, new in other.items() if _nameless(each) not in mine}
            elif sign in {"and", "unless"}:
                wanted = sign == "and"
                found = {
                    each: n for each, n in found.items() if (_nameless(each) in there) == wanted
                }
            elif sign in _SIGNS:
                found = {
                    each: _SIGNS[sign](value, other[each])
                    for each, value in found.items()
                    if each in other
                }
            else:
                raise BadQuery(f"this fake does not know {sign}")
        return found

    def _newest(self, selector: Selector, time: float) -> dict[Labels, Point]:
        found = {}
        for labels, points in self._matching(selector):
            newest = max(
                (each for each in points if time - LOOKBACK_S < each <= time), default=None
            )
            if newest is not None:
                found[labels] = (newest, points[newest])
        return found

    def _matching(self, selector: Selector) -> Iterable[tuple[Labels, Mapping[float, float]]]:
        for labels, points in self._series.items():
            told = dict(labels)
            if all(_holds(told.get(m.name, ""), m.sign, m.value) for m in selector.matchers):
                yield labels, points


@cache
def _parsed(promql: str) -> Node:
    try:
        return parse(promql)
    except NotUnderstood as error:
        raise BadQuery(str(error)) from None


def _holds(value: str, sign: str, wanted: str) -> bool:
    if sign in {"=~", "!~"}:
        return (re.fullmatch(wanted, value) is not None) == (sign == "=~")
    return (value == wanted) == (sign == "=")


def _gathered(name: str, grouping: str, vector: Vector) -> Vector:
    if name not in _GATHER or grouping.startswith("without"):
        raise BadQuery(f"this fake does not know {name} {grouping}")
    kept = set(re.findall(r"\w+", grouping.partition("(")[2]))
    groups: dict[Labels, list[float]] = {}
    for labels, value in vector.items():
        key = tuple(pair for pair in labels if pair[0] in kept)
        groups.setdefault(key, []).append(value)
    return {labels: _GATHER[name](values) for labels, values in groups.items()}


def _quantiles(share: float, buckets: Vector) -> Vector:
    """By straight lines within a bucket, as Prometheus does it."""
    of: dict[Labels, list[tuple[float, float]]] = {}
    for labels, value in buckets.items():
        rest = tuple(pair for pair in labels if pair[0] not in {"le", _NAME})
        of.setdefault(rest, []).append((float(dict(labels)["le"]), value))
    return {labels: _quantile(share, sorted(each)) for labels, each in of.items()}


def _quantile(share: float, buckets: Sequence[tuple[float, float]]) -> float:
    if not buckets or buckets[-1][1] == 0:
        return math.nan
    wanted, lower, below = share * buckets[-1][1], 0.0, 0.0
    for edge, count in buckets:
        if count >= wanted:
            inside = (wanted - below) / (count - below)
            return lower if math.isinf(edge) else lower + (edge - lower) * inside
        lower, below = edge, count
    return lower


def _rate(points: Sequence[Point]) -> float:
    return _grown(points) / (points[-1][0] - points[0][0])


def _grown(points: Sequence[Point]) -> float:
    return sum(b - a if b >= a else b for a, b in _pairs(points))


def _pairs(points: Sequence[Point]) -> Iterable[tuple[float, float]]:
    return itertools.pairwise(value for _, value in points)


def _same(labels: Labels) -> Labels:
    return labels


def _nameless(labels: Labels) -> Labels:
    return tuple(pair for pair in labels if pair[0] != _NAME)


def _seconds(text: str) -> float:
    found = re.fullmatch(r"(\d+)s", text)
    if found is None:
        raise BadQuery(f"this fake knows whole seconds only, not {text}")
    return float(found[1])
