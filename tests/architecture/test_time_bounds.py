"""A test that holds the code to a time says so with the mark `timing`, and only such a test.

The finder reads the source. It looks for an `assert` that compares (`<`, `<=`, `>`, `>=`) what a
real clock of Python says, and for one that says "at most" of a duration: what a function of the
module measured, or what is called like one (`took_s`, `longest_pause_s`, `age_s`). "At least" of a
duration is allowed: a busy machine makes it longer. Clocks that a test moves by hand are no matter.
A measured time is not followed through objects or from module to module; its name carries it there.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import pytest

TESTS = Path(__file__).parents[1]
EVENTUALLY = TESTS / "eventually.py"
"""Its patience guards against hangs. It is the one such place, and two minutes long."""

_CLOCKS = {
    "time": {
        *("monotonic", "perf_counter", "process_time", "thread_time", "time"),
        *("monotonic_ns", "perf_counter_ns", "process_time_ns", "thread_time_ns", "time_ns"),
    },
    "datetime": {"now"},
}
_DURATION = re.compile(
    r"(\w+_)?(took|spent|waited|answered|elapsed|relinked|age|gap)(_s|_ms)?"
    r"|longest_\w+_s|round_trips?_ms"
)
_CALLS = "|".join(name for names in _CLOCKS.values() for name in names)
_SPEAKS_OF_TIME = re.compile(rf"\b({_CALLS})\(|\b({_DURATION.pattern})\b")
"""Where it is not found there is nothing to parse."""
_HOLDS_NO_TIME = {"len", "isinstance", "range", "str", "repr", "bool", "set"}
_PASSES_TIME_ON = {"total_seconds", "timestamp"}
_MARK = "pytest.mark.timing"

_FILLS = ast.Assign | ast.AnnAssign | ast.AugAssign | ast.NamedExpr | ast.Call


class Function:
    """What matters of one function; what stands in an inner function is that one's."""

    def __init__(self, node: ast.FunctionDef | ast.AsyncFunctionDef, is_marked: bool) -> None:
        self.name = node.name
        self.is_marked = is_marked
        own = list(_own_nodes(node))
        self.fills = [each for each in own if isinstance(each, _FILLS)]
        self.asserts = [each for each in own if isinstance(each, ast.Assert)]
        self.answers = [
            each.value
            for each in own
            if isinstance(each, ast.Return | ast.Yield) and each.value is not None
        ]


@dataclass(frozen=True)
class Bound:
    """An assertion on a measured time that no mark covers."""

    function: str
    line: int
    text: str


@dataclass
class Names:
    """What one function calls the time of a clock, and what it calls a duration."""

    measuring: set[str]
    """Functions of the module that return a measured time."""
    clocks: set[str] = field(default_factory=set)
    durations: set[str] = field(default_factory=set)

    @classmethod
    def of(cls, function: Function, measuring: set[str]) -> Names:
        names, before = cls(measuring), -1
        # A name may be filled from one that is filled further down, as in a loop.
        while before != (before := len(names.clocks) + len(names.durations)):
            for node in function.fills:
                names._learn(node)
        return names

    def _learn(self, node: ast.AST) -> None:
        match node:
            case ast.Assign(targets=targets, value=value):
                for target in targets:
                    self._assign(target, value)
            case (
                ast.AnnAssign(target=target, value=ast.expr() as value)
                | ast.AugAssign(target=target, value=value)
                | ast.NamedExpr(target=target, value=value)
                | ast.Call(func=ast.Attribute(value=target, attr="append"), args=[value])
            ):
                self._assign(target, value)

    def _assign(self, target: ast.expr, value: ast.expr) -> None:
        match target, value:
            case ast.Tuple(elts=targets), ast.Tuple(elts=values) if len(targets) == len(values):
                for each, its in zip(targets, values, strict=True):
                    self._assign(each, its)
            case ast.Tuple(elts=targets), _:
                for each in targets:
                    self._assign(each, value)
            case ast.Subscript(value=held), _:
                self._assign(held, value)
            case ((ast.Name() | ast.Attribute()), _):
                if self.is_clock(value):
                    self.clocks.add(ast.unparse(target))
                elif self.is_measured(value):
                    self.durations.add(ast.unparse(target))

    def is_clock(self, node: ast.expr) -> bool:
        """Whether it comes from a call of a clock in this function."""
        if isinstance(node, ast.Call) and _is_clock_call(node):
            return True
        if isinstance(node, ast.Name | ast.Attribute) and ast.unparse(node) in self.clocks:
            return True
        return any(map(self.is_clock, _parts(node)))

    def is_measured(self, node: ast.expr) -> bool:
        """Whether it comes from a function that measures."""
        match node:
            case ast.Call(func=ast.Name(id=name) | ast.Attribute(attr=name)):
                if name in self.measuring:
                    return True
            case ast.Name() | ast.Attribute():
                if ast.unparse(node) in self.durations:
                    return True
        return any(map(self.is_measured, _parts(node)))

    def is_duration(self, node: ast.expr) -> bool:
        """Whether it was measured, or is called so."""
        match node:
            case (
                ast.Name(id=name)
                | ast.Attribute(attr=name)
                | ast.Subscript(slice=ast.Constant(value=str(name)))
            ) if _DURATION.fullmatch(name):
                return True
        return self.is_measured(node) or any(map(self.is_duration, _parts(node)))

    def is_bound(self, small: ast.expr, large: ast.expr) -> bool:
        """Whether `small < large` says of a time that it is at most so long."""
        if self.is_clock(small) or self.is_clock(large) or self.is_duration(small):
            return True
        # So much a second at least.
        return (
            isinstance(large, ast.BinOp)
            and isinstance(large.op, ast.Div)
            and self.is_duration(large.right)
        )


def _is_clock_call(call: ast.Call) -> bool:
    match call.func:
        case ast.Attribute(value=ast.Name(id=module), attr=name) if module in _CLOCKS:
            return name in _CLOCKS[module]
        case ast.Attribute(value=owner, attr="time"):
            return "loop" in ast.unparse(owner)
    return False


def _parts(node: ast.expr) -> Sequence[ast.expr]:  # noqa: PLR0911 - one a kind of node
    """Of what a value is made, where a time stays a time."""
    match node:
        case ast.BinOp(left=left, right=right):
            return left, right
        case ast.Call(func=ast.Name(id=name), args=values) if name not in _HOLDS_NO_TIME:
            return values
        case ast.Call(func=ast.Attribute(attr="median" | "fmean"), args=values):
            return values
        case ast.Call(func=ast.Attribute(value=value, attr=name)) if name in _PASSES_TIME_ON:
            return (value,)
        case ast.List(elts=values) | ast.Tuple(elts=values) | ast.BoolOp(values=values):
            return values
        case ast.ListComp(elt=value) | ast.GeneratorExp(elt=value):
            return (value, *(each.iter for each in node.generators))
        case (
            ast.Subscript(value=value)
            | ast.Starred(value=value)
            | ast.Await(value=value)
            | ast.NamedExpr(value=value)
            | ast.UnaryOp(operand=value)
        ):
            return (value,)
    return ()


def time_bounds(source: str) -> list[Bound]:
    """The assertions on measured time in one module that no mark `timing` covers."""
    if not _SPEAKS_OF_TIME.search(source):
        return []
    module = ast.parse(source)
    if any(map(_sets_mark, module.body)):
        return []
    functions = list(_functions(module))
    measuring = _measuring(functions)
    return [
        Bound(function.name, node.lineno, ast.unparse(node))
        for function in functions
        if function.asserts and not function.is_marked
        for names in [Names.of(function, measuring)]
        for node in function.asserts
        if _bounds_a_time(node.test, names)
    ]


def _bounds_a_time(test: ast.expr, names: Names) -> bool:
    for node in ast.walk(test):
        if isinstance(node, ast.Compare):
            sides = [node.left, *node.comparators]
            for op, left, right in zip(node.ops, sides, sides[1:], strict=False):
                if isinstance(op, ast.Lt | ast.LtE) and names.is_bound(left, right):
                    return True
                if isinstance(op, ast.Gt | ast.GtE) and names.is_bound(right, left):
                    return True
    return False


def _measuring(functions: Sequence[Function]) -> set[str]:
    """The functions whose answer is a measured time, by name."""
    found: set[str] = set()
    before = -1
    while before != (before := len(found)):
        for function in functions:
            if function.answers and function.name not in found:
                names = Names.of(function, found)
                if any(
                    names.is_clock(each) or names.is_measured(each) for each in function.answers
                ):
                    found.add(function.name)
    return found


def _functions(node: ast.AST, is_marked: bool = False) -> Iterator[Function]:
    """All of them, the inner ones too; the mark may stand at what holds them."""
    for each in ast.iter_child_nodes(node):
        if isinstance(each, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            marks = map(ast.unparse, each.decorator_list)
            now = is_marked or _MARK in marks or any(map(_sets_mark, each.body))
            if not isinstance(each, ast.ClassDef):
                yield Function(each, now)
            yield from _functions(each, now)
        elif not isinstance(each, ast.expr):
            yield from _functions(each, is_marked)


def _own_nodes(function: ast.AST) -> Iterator[ast.AST]:
    for each in ast.iter_child_nodes(function):
        yield each
        if not isinstance(each, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            yield from _own_nodes(each)


def _sets_mark(node: ast.stmt) -> bool:
    match node:
        case ast.Assign(targets=[ast.Name(id="pytestmark")], value=value):
            marks = value.elts if isinstance(value, ast.List | ast.Tuple) else [value]
            return _MARK in map(ast.unparse, marks)
    return False


def test_only_tests_with_the_mark_hold_the_code_to_a_time() -> None:
    found = [
        f"{file.relative_to(TESTS.parent)}:{each.line} {each.function}: {each.text}"
        for file in sorted(TESTS.rglob("*.py"))
        if file != EVENTUALLY
        for each in time_bounds(file.read_text())
    ]
    assert not found, (
        "these hold the code to a time: move the bound to a test with @pytest.mark.timing, and"
        " leave the story without it; to wait for something use tests/eventually.py\n"
        + "\n".join(found)
    )


def in_test(body: str, before: str = "", marks: str = "") -> str:
    lines = "".join(f"    {line}\n" for line in body.splitlines())
    return f"{before}\n{marks}\nasync def test_it():\n{lines}"


FOUND = {
    "a clock": "began = time.monotonic()\nact()\nassert time.monotonic() - began < 5",
    "both ways": "began = time.monotonic()\nassert 0.2 < time.monotonic() - began < 1.9",
    "processor time": "assert time.process_time() <= 0.4",
    "the loop's": "begun = asyncio.get_running_loop().time()\n"
    "assert asyncio.get_running_loop().time() - begun < 2",
    "moments": "begun = datetime.now(UTC)\nassert (datetime.now(UTC) - begun).total_seconds() < 2",
    "a name": "begun = time.time()\nspent = time.time() - begun\nassert spent < 2",
    "a list": "times = []\nfor _ in range(3):\n    begun = time.perf_counter()\n"
    "    times.append(time.perf_counter() - begun)\nassert sorted(times)[-2] < 1",
    "what another function makes of it": "begun = time.time()\nloud = [time.time() - begun]\n"
    "assert _p99(loud) < 0.2",
    "a deadline": "deadline = time.monotonic() + 5\nwhile not so():\n"
    "    assert time.monotonic() < deadline",
    "what is left of it": "deadline = time.monotonic() + 5\nleft = deadline - time.monotonic()\n"
    "assert left > 0",
    "a name that says so": "assert took_s < 8, took_s",
    "an attribute that says so": "assert writer.longest_gap_s <= 3.0",
    "a key that says so": "assert result['longest_pause_s'] <= LIMIT_S, result",
    "an age": "assert 0 <= row(answer, 'n1')['age_s'] < 10",
    "all of them": "assert all(0.0 <= (each.age_s or -1.0) < 30.0 for each in looks)",
    "the longest of them": "assert max(spent_s) <= 3.0",
    "one of two": "assert quick and took_s < 3",
}

NOT_FOUND = {
    "a clock that is moved by hand": "begun = clock.monotonic()\nclock.advance(3)\n"
    "assert clock.monotonic() - begun < 5",
    "its own name for a simulated time": "assert at_s < length_s",
    "a moment that is handed on": "request = bench.request(started=time.time() + 600)\n"
    "assert request.size < 5",
    "order": "assert sorted([before, now]) == [before, now]",
    "at least": "assert told.waited_s >= 6.0",
    "that it is there": "assert 0 <= answer['age_s']",
    "how many were measured": "times = [time.time()]\nassert len(times) < 5",
    "a wait without an assertion": "until = time.monotonic() + 3\n"
    "while time.monotonic() < until:\n    act()",
}

STORY = "async def story():\n    begun = time.monotonic()\n    return time.monotonic() - begun\n"


@pytest.mark.parametrize("body", FOUND.values(), ids=FOUND)
def test_the_finder_sees(body: str) -> None:
    assert len(time_bounds(in_test(body))) == 1
    assert time_bounds(in_test(body, marks="@pytest.mark.timing\n@pytest.mark.slow")) == []


@pytest.mark.parametrize("body", NOT_FOUND.values(), ids=NOT_FOUND)
def test_the_finder_lets_pass(body: str) -> None:
    assert time_bounds(in_test(body)) == []


@pytest.mark.parametrize(
    "body",
    [
        "assert await story() < 5",
        "seconds = await story()\nassert seconds < 5",
        "assert size / min(story(), story()) > 50e6",
    ],
)
def test_the_finder_knows_what_functions_of_the_module_measure(body: str) -> None:
    assert [each.function for each in time_bounds(in_test(body, STORY))] == ["test_it"]
    assert time_bounds(in_test("assert await story() >= 0", STORY)) == []


def test_a_helper_with_a_bound_is_found_as_well() -> None:
    helper = "class Site:\n    def wait(self):\n        assert time.monotonic() < self.end\n"
    assert [each.function for each in time_bounds(helper)] == ["wait"]


@pytest.mark.parametrize(
    "covered",
    [
        "pytestmark = pytest.mark.timing\ndef test_it():\n    assert took_s < 1",
        "pytestmark = [pytest.mark.lab, pytest.mark.timing]\ndef test_it():\n    assert took_s < 1",
        "@pytest.mark.timing\nclass TestIt:\n    def test_it(self):\n        assert took_s < 1",
        "@pytest.mark.timing\ndef test_it():\n    def act():\n        assert took_s < 1\n    act()",
    ],
)
def test_the_mark_covers_what_it_stands_at(covered: str) -> None:
    assert time_bounds(covered) == []
    assert len(time_bounds(covered.replace("timing", "slow"))) == 1
