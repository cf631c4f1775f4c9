"""Queries of a hostile person: read, narrowed to her and written anew, against `promql-parser`.

Held of every query that is accepted: each selector in what is sent carries her matchers. That is
checked twice: by the peer's tree of the sent text, and by a scan that knows no grammar. Where the
peer accepts the query too, it reads the same tree from what came and from what is sent, but for
those matchers. A query that is refused raises `NotUnderstood` and nothing else.

Where the verdicts differ on purpose, a rule below is named for it.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

import promql_parser as peer

from lattice.domain.metric import PREFIX
from lattice.features.prometheus.service.lexer import NotUnderstood
from lattice.features.prometheus.service.parser import (
    AGGREGATIONS,
    FUNCTIONS,
    parse,
    parse_selector,
)
from lattice.features.prometheus.service.scope import CallerFilter, scoped
from lattice.features.prometheus.service.tree import selectors, type_of

_CALLER = CallerFilter("alice")
_SCOPE = [("__name__", "=~", f"{PREFIX}.+"), ("user", "=", "alice")]
_SCOPE_TEXT = f'__name__=~"{PREFIX}.+",user="alice"}}'
_SIGNS = {
    "MatchOp.Equal": "=",
    "MatchOp.NotEqual": "!=",
    "MatchOp.Re": "=~",
    "MatchOp.NotRe": "!~",
}
TOKENS = tuple(
    each.encode()
    for each in (
        *("sum", "topk", "count_values", "quantile", "rate(", "label_replace(", "time()", "info("),
        *(" by (", " without (", " on (", " ignoring (", " group_left (", " bool ", " offset "),
        *(" and ", " or ", " unless ", " atan2 ", "==", "!=", "=~", "!~", ">=", "^", "@ end()"),
        *("[5m]", "[1h:5m]", "[5m:]", '{a="b"}', '{__name__="x"}', "user", "lattice_x", "alice"),
        *("0x1F", "1e3", "Inf", "NaN", "1h30m", "'", "`", '"', "\\", "\\u0041", "\\x41", "#", "\n"),
        *("__name__", "start()", "end()", "é", "\u2028", "\x00", '"} or x{a="'),
    )
)


def try_one(data: bytes) -> None:
    """The bytes are the query."""
    asked = data.decode(errors="replace")
    try:
        node = parse(asked)
        sent = scoped(node, _CALLER)
        type_of(node)
        refusal = ""
    except NotUnderstood as problem:
        refusal = str(problem)
    _try_match(asked)
    if refusal:
        _check_refusal(asked, refusal)
        return
    _scan(sent)
    there, problem_there = _peer(sent)
    assert there is not None or _named(_LAXER, problem_there), problem_there
    if there is not None:
        found = _peer_selectors(there)
        assert len(found) == len(selectors(node))
        for each in found:
            assert _matchers(each)[-2:] == _SCOPE
    if _raw_escape(asked, refusal):
        return
    here, problem_here = _peer(asked)
    assert here is not None or _named(_LAXER_BEFORE, problem_here), problem_here
    if there is not None and here is not None:
        assert _shape(there, narrowed=True) == _shape(here, narrowed=False)


def _try_match(asked: str) -> None:
    """As a `match[]`."""
    try:
        sent = scoped(parse_selector(asked), _CALLER)
    except NotUnderstood:
        return
    assert sent.startswith("{")
    _scan(sent)


_STRING = r'"(?:[^"\\\n]|\\.)*"'
_MATCHER = r"[a-zA-Z_][a-zA-Z0-9_]*(?:=~|!~|!=|=)" + _STRING
_SELECTOR_OR_STRING = re.compile(r"\{(?:" + _MATCHER + r",?)*\}|" + _STRING)
_GROUPING = re.compile(r"\b(?:by|without|on|ignoring|group_left|group_right) \([a-zA-Z0-9_, ]*\)")
_WORD = re.compile(r"(?<![\w.])[a-zA-Z_:][\w:]*")
_KEYWORDS = frozenset({
    "bool", "offset", "and", "or", "unless", "atan2", "group_left", "group_right", "inf", "nan",
})  # fmt: skip
_CALLED = FUNCTIONS | AGGREGATIONS | {"start", "end"}


def _scan(sent: str) -> None:
    """Every brace ends in the scope, and no other word could select anything."""

    def take(found: re.Match[str]) -> str:
        assert found[0].startswith('"') or found[0].endswith(_SCOPE_TEXT), found[0]
        return " "

    rest = _GROUPING.sub(" ", _SELECTOR_OR_STRING.sub(take, sent))
    assert not set(rest) & set("{}\"'`#"), rest
    for found in _WORD.finditer(rest):
        called = rest[found.end() :].lstrip().startswith("(") and found[0] in _CALLED
        assert called or found[0].lower() in _KEYWORDS, (found[0], sent)


def _peer(text: str) -> tuple[Any, str]:
    try:
        return peer.parse(text), ""
    except ValueError as problem:
        return None, str(problem)
    except BaseException as panic:
        # Some numbers that we refuse make the peer panic. It is a kind of refusal.
        if type(panic).__name__ != "PanicException":
            raise
        return None, f"panic: {panic}"


def _matchers(selector: Any) -> list[tuple[str, str, str]]:
    assert not selector.matchers.or_matchers
    named = [("__name__", "=", selector.name)] if selector.name else []
    return named + [
        (each.name, _SIGNS[str(each.op)], each.value) for each in selector.matchers.matchers
    ]


def _peer_selectors(expression: Any) -> list[Any]:
    match type(expression).__name__:
        case "VectorSelector":
            return [expression]
        case "MatrixSelector":
            return [expression.vector_selector]
        case "NumberLiteral" | "StringLiteral":
            return []
        case "BinaryExpr":
            parts = [expression.lhs, expression.rhs]
        case "Call":
            parts = expression.args
        case "AggregateExpr":
            parts = [*([expression.param] if expression.param is not None else []), expression.expr]
        case _:
            parts = [expression.expr]
    return [found for each in parts for found in _peer_selectors(each)]


def _shape(node: Any, *, narrowed: bool) -> object:  # noqa: PLR0911 - one for each kind of node
    """The tree as plain values; of a narrowed one without the scope."""

    def inner(each: Any) -> object:
        return _shape(each, narrowed=narrowed)

    kind = type(node).__name__
    match kind:
        case "NumberLiteral":
            return kind, repr(node.val)
        case "StringLiteral":
            return kind, node.val
        case "VectorSelector":
            found = _matchers(node)
            return kind, found[:-2] if narrowed else found, node.offset, str(node.at)
        case "MatrixSelector":
            return kind, inner(node.vector_selector), node.range
        case "BinaryExpr":
            return kind, str(node.op), str(node.modifier), inner(node.lhs), inner(node.rhs)
        case "Call":
            return kind, node.func.name, [inner(each) for each in node.args]
        case "AggregateExpr":
            parameter = None if node.param is None else inner(node.param)
            return kind, str(node.op), str(node.modifier), parameter, inner(node.expr)
        case "SubqueryExpr":
            return kind, inner(node.expr), node.offset, str(node.at), node.range, node.step
        case _:
            return kind, inner(node.expr)


# We accept and the peer refuses, by what it says.
_LAXER = {
    # Types and arguments are judged by the store. They decide nothing about selectors.
    "UNTYPED": re.compile(
        r"^expected (?:type|\d+ arg|at least|at most)|only scalar and instant vector types"
        r"|matching only allowed between vectors|unary expression only allowed"
        r"|^set operator .* not allowed|^subquery is only allowed|must use BOOL"
    ),
    # The peer knows Prometheus 2.45 and what came since; stores also know older names.
    "OTHER_FUNCTIONS": re.compile(r"^unknown function with name"),
    # How long a time may be is judged by the store.
    "DURATION_VALUES": re.compile(r"^duration must be greater than 0|^duration out of range"),
    # What begins with 0 and is no octal or hexadecimal number is a float; the peer gives up.
    "LEADING_ZERO": re.compile(r"^ParseFloatError\. 0"),
    # Expressions are judged by the store, which has a dialect of its own.
    "UNREAD_EXPRESSIONS": re.compile(r"^illegal regex"),
}
# Only of what came: a selector that selects everything is narrowed, and so is never sent.
_LAXER_BEFORE = {
    **_LAXER,
    "EMPTY_SELECTOR": re.compile(r"must contain at least one non-empty matcher"),
}


def _raw_escape(asked: str, refusal: str) -> bool:
    """Rule RAW_TEXT: nothing is an escape between backquotes.

    The peer reads one there, so it may find the end of the text elsewhere. What is sent has no
    backquotes, and is held against the peer all the same.
    """
    return re.search(r"`[^`]*\\", asked) is not None


def _named(rules: dict[str, re.Pattern[str]], problem: str) -> bool:
    return any(pattern.search(problem) for pattern in rules.values())


# We refuse and the peer accepts, by what we say. What is refused can't select anything.
_STRICTER = {
    # Bounds of the work that a query makes; the peer has none.
    "BOUNDS": re.compile(r"nested too deeply|more than \d+|it is too long"),
    # `x[300]` and `5m + 1`, newer than the oldest store we ask.
    "NUMBERS_AND_DURATIONS_APART": re.compile(
        r"a length of time should stand$"
        r"|where '(?:\d+[a-z]+)+' is, a (?:value|moment) should stand$"
    ),
    # `@ +3`, which nobody writes.
    "NO_PLUS": re.compile(r"where '\+' is, a moment should stand$"),
    # The grammar of Prometheus takes its keywords as names of metrics too; ours never.
    "KEYWORDS_RESERVED": re.compile(
        r"where '(?:and|or|unless|atan2|by|without|on|ignoring|group_left|group_right|bool|offset)'"
        r" is, a value should stand$"
    ),
    # An `or` between matchers, which is no part of PromQL, would need the scope on both sides.
    "NO_ALTERNATIVES": re.compile(r"where 'or' is, `}` should stand$"),
    # `info` reads series that no selector names; others are newer than this list.
    "FUNCTIONS_LISTED": re.compile(r"is no function that is known here$"),
    # `{"x"}`, `{"a"="b"}` and `by ("a")`, names beyond the classic ones; and `{or="b"}`, which
    # stores with alternatives between matchers could read another way.
    "CLASSIC_NAMES": re.compile(r"the name of a label should stand"),
}


def _check_refusal(asked: str, refusal: str) -> None:
    rules = (_upper_case, _colon_first, _other_space, _other_escape, _raw_escape)
    if not _named(_STRICTER, refusal) and not any(rule(asked, refusal) for rule in rules):
        assert _peer(asked)[0] is None, refusal


_ANY_CASE = re.compile(
    r"(?i)\b(?:by|without|on|ignoring|group_left|group_right|bool|offset|and|or|unless|atan2|start"
    r"|end)\b"
)


def _upper_case(asked: str, refusal: str) -> bool:
    """Rule LOWER_CASE: keywords are written small. Nobody writes `BY`, and stores differ."""
    return any(not found[0].islower() for found in _ANY_CASE.finditer(asked))


def _colon_first(asked: str, refusal: str) -> bool:
    """Rule COLON_FIRST: no name begins with a colon, which parts a range from its step."""
    return re.search(r"(?<![a-zA-Z0-9_:]):", asked) is not None


def _other_space(asked: str, refusal: str) -> bool:
    """Rule FOUR_SPACES: Prometheus knows four kinds of space; the peer takes those of Unicode."""
    found = re.match(r"letter (\d+), .* begins nothing that is known$", refusal)
    return found is not None and asked[int(found[1]) - 1].isspace()


def _other_escape(asked: str, refusal: str) -> bool:
    """Rule LETTERS_ONLY: an escape stands for a letter, not for a byte (octal, or above 127)."""
    found = re.match(r"the escape at letter (\d+) is not known$", refusal)
    return found is not None and bool(
        re.match(r"\\(?:[0-7]{3}|x[89a-fA-F])", asked[int(found[1]) - 1 :])
    )


def seeds() -> Iterator[bytes]:
    """Each part of the grammar, and each way out of a selector that was thought of."""
    queries = (
        *(
            "1+1",
            "up",
            "{}",
            '{__name__="x"}',
            'x{user="bob"}',
            "x{user!='alice',}",
            "x{a=~`b\\d`}",
        ),
        *(r'x{a="\"} or up{b=\""}', "rate(x[5m])", "sum(x) by (node)", "sum by (node) (x)"),
        *("topk(3, x)", "x offset -5m @ end()", "x[1h30m:1m] @ 17.5", "avg_over_time(x[1h:])"),
        *("-x ^ 2 # squared\n", "1 > bool 2", "Inf", "-.5e3", "0x1F", "time() - pi()", "a:b:sum"),
        *("a * on (node) group_left (x) b or (c unless ignoring (y) d)", '{"x"}', "info(x)"),
        *('x{a="b" or c="d"}', "x[300]", "sum BY (a) (x)", "x @ start() offset 1w", "-1 ^ -x"),
        *('label_replace(x, "a", "$1", "b", "(.*)")', 'count_values("a", x)', "((x))", "nan"),
    )
    for each in queries:
        yield each.encode()
