"""Parses PromQL by its grammar and refuses everything else. Pure.

The functions are those of Prometheus that only read what their arguments select. `info` is not
among them: it reads series that no selector names.
"""

from __future__ import annotations

import re

from lattice.features.prometheus.service.lexer import NotUnderstood, PromqlToken, TokenKind, tokens
from lattice.features.prometheus.service.tree import (
    Aggregation,
    Chain,
    FunctionCall,
    Group,
    Matcher,
    Moved,
    Node,
    Number,
    Range,
    Selector,
    Signed,
    Subquery,
    Text,
)


def _names(text: str) -> frozenset[str]:
    return frozenset(text.split())


MOST_SELECTORS = 100
_DEEPEST = 40
_LABEL = re.compile(r"[a-zA-Z_][a-zA-Z0-9_]*")
_COMPARES = frozenset({"==", "!=", ">", "<", ">=", "<="})
_SETS = frozenset({"and", "or", "unless"})
_OPERATORS = frozenset({"+", "-", "*", "/", "%", "^", "atan2"}) | _COMPARES | _SETS
_NUMBERS = frozenset({"inf", "nan"})
_MATCHERS = frozenset({"=", "!=", "=~", "!~"})
AGGREGATIONS = _names(
    "sum min max avg group stddev stdvar count count_values bottomk topk quantile limitk "
    "limit_ratio"
)
_WITH_PARAMETER = _names("count_values bottomk topk quantile limitk limit_ratio")
FUNCTIONS = _names(
    "abs absent absent_over_time acos acosh asin asinh atan atanh avg_over_time ceil changes "
    "clamp clamp_max clamp_min cos cosh count_over_time day_of_month day_of_week day_of_year "
    "days_in_month deg delta deriv double_exponential_smoothing exp floor histogram_avg "
    "histogram_count histogram_fraction histogram_quantile histogram_stddev histogram_stdvar "
    "histogram_sum holt_winters hour idelta increase irate label_join label_replace "
    "last_over_time ln log10 log2 mad_over_time max_over_time min_over_time minute month pi "
    "predict_linear present_over_time quantile_over_time rad rate resets round scalar sgn sin "
    "sinh sort sort_by_label sort_by_label_desc sort_desc sqrt stddev_over_time "
    "stdvar_over_time sum_over_time tan tanh time timestamp vector year"
)
_RESERVED = _SETS | {
    "atan2", "by", "without", "on", "ignoring", "group_left", "group_right", "bool", "offset",
}  # fmt: skip


def parse(text: str) -> Node:
    """Parse a whole query. Raises `NotUnderstood`."""
    reader = _Reader(tokens(text))
    found = reader.expression(0)
    reader.end()
    return found


def parse_selector(text: str) -> Selector:
    """Parse a selector and nothing else, as in `match[]`. Raises `NotUnderstood`."""
    found = parse(text)
    if not isinstance(found, Selector):
        raise NotUnderstood("it is no selector")
    return found


class _Reader:
    """A recursive-descent parser over the tokens."""

    def __init__(self, found: list[PromqlToken]) -> None:
        self._tokens = found
        self._at = 0
        self._selectors = 0

    @property
    def _next(self) -> PromqlToken:
        return self._tokens[self._at]

    def _take(self) -> PromqlToken:
        token = self._next
        self._at += 1
        return token

    def _is(self, *texts: str) -> bool:
        token = self._next
        return token.kind in {TokenKind.SIGN, TokenKind.WORD} and token.text in texts

    def _skip(self, text: str) -> bool:
        if self._is(text):
            self._at += 1
            return True
        return False

    def _expect(self, text: str) -> None:
        if not self._skip(text):
            raise self._odd(f"`{text}` should stand")

    def _odd(self, wanted: str) -> NotUnderstood:
        token = self._next
        there = f"{token.text!r}" if token.kind is not TokenKind.END else "the end"
        return NotUnderstood(f"at letter {token.at + 1}, where {there} is, {wanted}")

    def end(self) -> None:
        if self._next.kind is not TokenKind.END:
            raise self._odd("the query should end")

    def expression(self, depth: int) -> Node:
        if depth > _DEEPEST:
            raise NotUnderstood("it is nested too deeply")
        operands, operators = [self._operand(depth)], []
        while self._is(*_OPERATORS):
            operators.append(self._operator())
            operands.append(self._operand(depth))
        return Chain(tuple(operands), tuple(operators)) if operators else operands[0]

    def _operator(self) -> str:
        parts = [self._take().text]
        if parts[0] in _COMPARES and self._skip("bool"):
            parts.append("bool")
        if self._is("on", "ignoring"):
            parts += [self._take().text, self._labels()]
            if parts[0] not in _SETS and self._is("group_left", "group_right"):
                parts.append(self._take().text)
                if self._is("("):
                    parts.append(self._labels())
        return " ".join(parts)

    def _operand(self, depth: int) -> Node:
        if self._is("+", "-"):
            sign = self._take().text
            if depth > _DEEPEST:
                raise NotUnderstood("it is nested too deeply")
            return Signed(sign, self._operand(depth + 1))
        return self._followed(self._primary(depth))

    def _followed(self, what: Node) -> Node:
        """Parse the ranges, offsets and `@` that may follow an operand."""
        while True:
            if self._is("["):
                what = self._ranged(what)
            elif self._is("offset", "@"):
                if not isinstance(what, Selector | Range | Subquery | Moved):
                    raise self._odd("only a selector or a subquery can be moved")
                what = self._moved(what)
            else:
                return what

    def _ranged(self, what: Node) -> Node:
        self._expect("[")
        seconds = self._duration()
        if self._skip(":"):
            step = "" if self._is("]") else self._duration()
            self._expect("]")
            return Subquery(what, seconds, step)
        self._expect("]")
        if not isinstance(what, Selector):
            raise self._odd("only a selector has a range without a step")
        return Range(what, seconds)

    def _moved(self, what: Node) -> Moved:
        if self._skip("offset"):
            sign = "-" if self._skip("-") else ""
            modifier: tuple[str, ...] = ("offset", sign + self._duration())
        else:
            self._expect("@")
            modifier = ("@", self._moment())
        before = what.modifiers if isinstance(what, Moved) else ()
        if modifier[0] in before:
            raise self._odd("nothing is moved twice")
        return Moved(what.what if isinstance(what, Moved) else what, (*before, *modifier))

    def _moment(self) -> str:
        if self._is("start", "end"):
            word = self._take().text
            self._expect("(")
            self._expect(")")
            return f"{word}()"
        sign = "-" if self._skip("-") else ""
        if self._next.kind is not TokenKind.NUMBER:
            raise self._odd("a moment should stand")
        return sign + self._take().text

    def _duration(self) -> str:
        if self._next.kind is not TokenKind.DURATION:
            raise self._odd("a length of time should stand")
        return self._take().text

    def _primary(self, depth: int) -> Node:
        token = self._next
        if token.kind is TokenKind.NUMBER:
            return Number(self._take().text)
        if token.kind is TokenKind.STRING:
            return Text(self._take().text)
        if self._skip("("):
            inside = self.expression(depth + 1)
            self._expect(")")
            return Group(inside)
        if self._is("{"):
            return self._selector("")
        if token.kind is not TokenKind.WORD or token.text.lower() in _RESERVED:
            raise self._odd("a value should stand")
        return self._named(self._take().text, depth)

    def _named(self, name: str, depth: int) -> Node:
        if name.lower() in _NUMBERS:
            return Number(name)
        if name.lower() in AGGREGATIONS and self._is("(", "by", "without"):
            return self._aggregation(name.lower(), depth)
        if self._is("("):
            if name not in FUNCTIONS:
                raise NotUnderstood(f"{name!r} is no function that is known here")
            return FunctionCall(name, self._arguments(depth))
        return self._selector(name)

    def _aggregation(self, name: str, depth: int) -> Aggregation:
        grouping = self._grouping()
        arguments = self._arguments(depth)
        if not grouping:
            grouping = self._grouping()
        if len(arguments) != (2 if name in _WITH_PARAMETER else 1):
            raise NotUnderstood(f"{name} has not that many arguments")
        return Aggregation(name, grouping, arguments)

    def _grouping(self) -> str:
        if not self._is("by", "without"):
            return ""
        return f"{self._take().text} {self._labels()}"

    def _labels(self) -> str:
        self._expect("(")
        names = []
        while not self._is(")"):
            if self._next.text.lower() in _NUMBERS:
                raise self._odd("the name of a label should stand")
            names.append(self._label())
            if not self._skip(","):
                break
        self._expect(")")
        return f"({', '.join(names)})"

    def _label(self) -> str:
        token = self._next
        if token.kind is not TokenKind.WORD or not _LABEL.fullmatch(token.text):
            raise self._odd("the name of a label should stand")
        return self._take().text

    def _arguments(self, depth: int) -> tuple[Node, ...]:
        self._expect("(")
        found: list[Node] = []
        if not self._is(")"):
            found.append(self.expression(depth + 1))
            while self._skip(","):
                found.append(self.expression(depth + 1))
        self._expect(")")
        return tuple(found)

    def _selector(self, name: str) -> Selector:
        self._selectors += 1
        if self._selectors > MOST_SELECTORS:
            raise NotUnderstood(f"it has more than {MOST_SELECTORS} selectors")
        matchers = [Matcher("__name__", "=", name)] if name else []
        if self._skip("{"):
            while not self._is("}"):
                matchers.append(self._matcher(named=bool(name)))
                if not self._skip(","):
                    break
            self._expect("}")
        return Selector(tuple(matchers))

    def _matcher(self, *, named: bool) -> Matcher:
        # Some stores parse `or` between matchers as the start of another selector.
        if self._next.text.lower() == "or":
            raise self._odd("the name of a label should stand")
        label = self._label()
        if label == "__name__" and named:
            raise self._odd("the metric has its name already")
        if not self._is(*_MATCHERS):
            raise self._odd("one of = != =~ !~ should stand")
        sign = self._take().text
        if self._next.kind is not TokenKind.STRING:
            raise self._odd("a text in quotes should stand")
        return Matcher(label, sign, self._take().text)
