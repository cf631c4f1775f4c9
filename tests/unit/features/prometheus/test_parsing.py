"""PromQL read, narrowed and written anew: nothing passes that was not understood (attack 11)."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lattice.features.prometheus.service.lexer import NotUnderstood
from lattice.features.prometheus.service.parser import (
    AGGREGATIONS,
    FUNCTIONS,
    parse,
    parse_selector,
)
from lattice.features.prometheus.service.scope import CallerFilter, scoped
from lattice.features.prometheus.service.tree import Matcher, Type, selectors, type_of
from tests.examples import examples

ALICE = CallerFilter("alice")
SCOPE = '__name__=~"lattice_.+",user="alice"'


@pytest.mark.spec("TOP-6")
@pytest.mark.parametrize(
    ("asked", "sent"),
    [
        ("1+1", "1 + 1"),
        ("up", f'{{__name__="up",{SCOPE}}}'),
        ("{}", f"{{{SCOPE}}}"),
        ('{__name__="x"}', f'{{__name__="x",{SCOPE}}}'),
        ('x{user="bob"}', f'{{__name__="x",user="bob",{SCOPE}}}'),
        ("x{user!='alice',}", f'{{__name__="x",user!="alice",{SCOPE}}}'),
        ("x{a=~`b\\d`}", f'{{__name__="x",a=~"b\\\\d",{SCOPE}}}'),
        (r'x{a="\"} or up{b=\""}', rf'{{__name__="x",a="\"}} or up{{b=\"",{SCOPE}}}'),
        ("rate(x[5m])", f'rate({{__name__="x",{SCOPE}}}[5m])'),
        ("sum(x) by (node)", f'sum by (node) ({{__name__="x",{SCOPE}}})'),
        ("sum by (node) (x)", f'sum by (node) ({{__name__="x",{SCOPE}}})'),
        ("topk(3, x)", f'topk (3, {{__name__="x",{SCOPE}}})'),
        ("x offset -5m @ end()", f'{{__name__="x",{SCOPE}}} offset -5m @ end()'),
        ("x[1h30m:1m] @ 17.5", f'{{__name__="x",{SCOPE}}}[1h30m:1m] @ 17.5'),
        ("avg_over_time(x[1h:])", f'avg_over_time({{__name__="x",{SCOPE}}}[1h:])'),
        ("-x ^ 2 # squared\n", f'-{{__name__="x",{SCOPE}}} ^ 2'),
        ("1 # one\r+ 2", "1 + 2"),
        ("1 > bool 2", "1 > bool 2"),
        ("Inf", "Inf"),
        ("-.5e3", "-.5e3"),
        ("0x1F", "0x1F"),
        ("time() - pi()", "time() - pi()"),
        ("job:x:sum", f'{{__name__="job:x:sum",{SCOPE}}}'),
    ],
)
def test_every_selector_is_narrowed(asked: str, sent: str) -> None:
    assert scoped(parse(asked), ALICE) == sent


@pytest.mark.spec("TOP-6")
def test_both_sides_of_an_operator_are_narrowed() -> None:
    asked = "a * on (node, gpu_uuid) group_left (x) b or (c unless ignoring (y) d)"
    found = selectors(parse(scoped(parse(asked), ALICE)))
    assert len(found) == 4
    assert all(map(ALICE.admits, found))


@pytest.mark.spec("TOP-6")
@pytest.mark.parametrize(
    "asked",
    [
        "",
        "x}",
        "x[5m",
        "x[5]",
        "(x",
        "x y",
        "x{a}",
        "x{a=b}",
        'x{a="b" or c="d"}',
        'x{or="b"}',
        'x{a="b",OR="c"}',
        'NaN{a="b"}',
        "Inf(x)",
        "sum by (inf) (x)",
        "x + on (NaN) y",
        "abs(x,)",
        "x[5m1h]",
        "x[5m5m]",
        "x offset 1s1m",
        '{"x"}',
        'x{__name__="y"}',
        'x{"a"="b"}',
        "info(x)",
        "union(a, b)",
        "with (a = b) a",
        "x keep_metric_names",
        "x default 1",
        "x if y",
        "x offset 1m offset 2m",
        "(x) offset 1m",
        "sum(x)[5m]",
        "sum(x, y)",
        "topk(x)",
        '"a',
        "'a\n'",
        r'x{a="\q"}',
        r'x{a="\ud800"}',
        "5m",
        "x; drop",
        "x\x00",
        "x[5m]) or vector(1",
        "{a-b='c'}",
        "{a.b='c'}",
        "x{a='b'}{c='d'}",
        "by (x) y",
        "x @ y",
        "+",
        "1 2",
        "$x",
        "(" * 60 + "1" + ")" * 60,
        "-" * 100 + "1",
        "x" * 9000,
        "+".join(["x"] * 101),
    ],
)
def test_what_is_not_understood_is_refused(asked: str) -> None:
    with pytest.raises(NotUnderstood):
        scoped(parse(asked), ALICE)


@pytest.mark.spec("TOP-6")
def test_what_reads_series_that_nothing_names_is_no_function_here() -> None:
    assert "info" not in FUNCTIONS


@pytest.mark.spec("TOP-6")
def test_a_filter_without_a_user_cannot_be_made() -> None:
    with pytest.raises(ValueError, match="filters nothing"):
        CallerFilter("")


@pytest.mark.parametrize(
    ("asked", "kind"),
    [
        ("1", Type.SCALAR),
        ("-(1 + time())", Type.SCALAR),
        ("1 + x", Type.VECTOR),
        ("vector(1)", Type.VECTOR),
        ("scalar(x)", Type.SCALAR),
        ("x[5m]", Type.MATRIX),
        ("sum(x)[5m:]", Type.MATRIX),
        ("'x'", Type.STRING),
        ("sum(x)", Type.VECTOR),
    ],
)
def test_what_an_expression_is(asked: str, kind: Type) -> None:
    assert type_of(parse(asked)) is kind


def test_a_selector_alone() -> None:
    assert parse_selector('x{a="b"}').matchers == (
        Matcher("__name__", "=", "x"),
        Matcher("a", "=", "b"),
    )
    with pytest.raises(NotUnderstood):
        parse_selector("rate(x[5m])")
    with pytest.raises(NotUnderstood):
        parse_selector("x offset 5m")


# Queries made by the grammar, with names and texts that try to get out.
_names = st.from_regex(r"[a-zA-Z_][a-zA-Z0-9_]{0,8}", fullmatch=True).filter(
    lambda each: each.lower() not in {"inf", "nan", "start", "end"}
)
_metrics = _names.filter(
    lambda each: each.lower()
    not in {
        "and", "or", "unless", "atan2", "by", "without", "on", "ignoring", "group_left",
        "group_right", "bool", "offset",
    }
)  # fmt: skip
_texts = st.text(st.characters(exclude_categories=["Cs"]), max_size=12) | st.sampled_from(
    ['"} or up{a="', "\\", "`", "'", ".*", "alice|.*"]
)
_durations = st.sampled_from(["5m", "1h30m", "30s", "1ms", "2w"])


def _quote(text: str) -> str:
    return '"' + "".join(f"\\U{ord(each):08x}" for each in text) + '"'


_matchers = st.builds(
    lambda name, sign, text: f"{name}{sign}{_quote(text)}",
    _names | st.just("user"),
    st.sampled_from(["=", "!=", "=~", "!~"]),
    _texts,
)
_selectors = st.builds(
    lambda name, pairs: f"{name}{{{','.join(pairs)}}}", _metrics, st.lists(_matchers, max_size=3)
) | st.builds(lambda pairs: f"{{{','.join(pairs)}}}", st.lists(_matchers, max_size=3))
_moves = st.sampled_from(["", " offset 5m", " offset -1h", " @ 17", " @ end()", " offset 1s @ 3"])
_moved = st.builds(str.__add__, _selectors, _moves)
_ranges = st.builds(
    lambda each, long, move: f"{each}[{long}]{move}", _selectors, _durations, _moves
)


def _larger(inner: st.SearchStrategy[str]) -> st.SearchStrategy[str]:
    labels = st.lists(_names, max_size=2).map(", ".join)
    return st.one_of(
        inner.map(lambda each: f"({each})"),
        inner.map(lambda each: f"-{each}"),
        st.builds(lambda each: f"rate({each})", _ranges),
        st.builds(lambda each, long: f"({each})[{long}:]", inner, _durations),
        st.builds(lambda each: f"abs({each})", inner),
        st.builds(lambda each, by: f"sum by ({by}) ({each})", inner, labels),
        st.builds(lambda each, by: f"max({each}) without ({by})", inner, labels),
        st.builds(lambda each: f"topk(3, {each})", inner),
        st.builds(
            lambda a, sign, b: f"{a} {sign} {b}",
            inner,
            st.sampled_from(
                ["+", "-", "*", "/", "^", "and", "or", "unless", ">= bool", "== on (a)",
                 "* on (a) group_left (b)", "and ignoring (c)"]
            ),
            inner,
        ),
    )  # fmt: skip


QUERIES = st.recursive(_moved | st.sampled_from(["1", "time()", "NaN"]), _larger, max_leaves=8)


@pytest.mark.spec("TOP-6")
@given(QUERIES, st.text(st.characters(exclude_categories=["Cs"]), min_size=1, max_size=12))
@settings(max_examples=examples(10))
def test_whatever_is_asked_every_selector_asks_for_the_caller(asked: str, user: str) -> None:
    caller = CallerFilter(user)
    before = selectors(parse(asked))
    sent = scoped(parse(asked), caller)
    after = selectors(parse(sent))
    assert len(after) == len(before)
    for old, new in zip(before, after, strict=True):
        assert new.matchers == (*old.matchers, *caller.matchers)
        assert Matcher("user", "=", user) in new.matchers
    assert str(parse(sent)) == sent, "it reads as it was written"


_PIECES = [
    "x", "up", "{", "}", "(", ")", "[", "]", ",", ":", '"', "'", "`", "\\", "=", "=~", "!=", "or",
    "and", "5m", "1", "user", '"bob"', "offset", "@", "by", "sum", "rate", "#", "\n", "-", "+",
    " ", "info", "default", "bool", "on", "group_left", "WITH", "é", "\x00", "$", ";",
]  # fmt: skip


@pytest.mark.spec("TOP-6")
@given(st.lists(st.sampled_from(_PIECES), max_size=25).map("".join) | st.text(max_size=40))
@settings(max_examples=examples(25))
def test_garbage_is_refused_or_narrowed_and_never_passed_on(asked: str) -> None:
    try:
        sent = scoped(parse(asked), ALICE)
    except NotUnderstood:
        return
    assert all(map(ALICE.admits, selectors(parse(sent))))
    # Every brace outside a text is one of a selector's, and every selector has its filter.
    outside = _without_texts(sent)
    assert outside.count("{") == outside.count("}") == len(selectors(parse(sent)))
    assert sent.count('user="alice"') >= outside.count("{")


def _without_texts(text: str) -> str:
    left, inside, skip = [], False, False
    for letter in text:
        if skip:
            skip = False
        elif inside and letter == "\\":
            skip = True
        elif letter == '"':
            inside = not inside
        elif not inside:
            left.append(letter)
    return "".join(left)


def test_aggregations_and_functions_are_apart() -> None:
    assert not AGGREGATIONS & FUNCTIONS
