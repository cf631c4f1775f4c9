"""A query as a tree, which `str` converts back to text. Pure.

Operands keep their order and their parentheses, so the meaning does not depend on precedence. Names
and strings are written in one canonical form.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import TypeAlias

from lattice.domain.promql import quoted


class Type(StrEnum):
    """The type of an expression's value."""

    SCALAR = "scalar"
    VECTOR = "vector"
    MATRIX = "matrix"
    STRING = "string"


@dataclass(frozen=True, slots=True)
class Matcher:
    """One label matcher of a selector."""

    name: str
    sign: str
    value: str

    def __str__(self) -> str:
        return f"{self.name}{self.sign}{quoted(self.value)}"


@dataclass(frozen=True, slots=True)
class Selector:
    """A selector; a name before the braces becomes a matcher of `__name__`."""

    matchers: tuple[Matcher, ...]

    def __str__(self) -> str:
        return f"{{{','.join(map(str, self.matchers))}}}"


@dataclass(frozen=True, slots=True)
class Range:
    """A selector with a time range."""

    selector: Selector
    seconds: str

    def __str__(self) -> str:
        return f"{self.selector}[{self.seconds}]"


@dataclass(frozen=True, slots=True)
class Subquery:
    """A subquery: an expression evaluated at every step of a range."""

    what: Node
    seconds: str
    step: str

    def __str__(self) -> str:
        return f"{self.what}[{self.seconds}:{self.step}]"


@dataclass(frozen=True, slots=True)
class Moved:
    """An expression at another time: `offset 5m`, `@ 1234`, `@ end()`."""

    what: Node
    modifiers: tuple[str, ...]

    def __str__(self) -> str:
        return f"{self.what} {' '.join(self.modifiers)}"


@dataclass(frozen=True, slots=True)
class Number:
    text: str

    def __str__(self) -> str:
        return self.text


@dataclass(frozen=True, slots=True)
class Text:
    value: str

    def __str__(self) -> str:
        return quoted(self.value)


@dataclass(frozen=True, slots=True)
class Group:
    """An expression in parentheses."""

    what: Node

    def __str__(self) -> str:
        return f"({self.what})"


@dataclass(frozen=True, slots=True)
class FunctionCall:
    """A function with its arguments."""

    name: str
    arguments: tuple[Node, ...]

    def __str__(self) -> str:
        return f"{self.name}({', '.join(map(str, self.arguments))})"


@dataclass(frozen=True, slots=True)
class Aggregation:
    """`sum by (node) (…)`; `grouping` is the keyword with its labels, or empty."""

    name: str
    grouping: str
    arguments: tuple[Node, ...]

    def __str__(self) -> str:
        grouping = f" {self.grouping}" if self.grouping else ""
        return f"{self.name}{grouping} ({', '.join(map(str, self.arguments))})"


@dataclass(frozen=True, slots=True)
class Signed:
    """`-x` or `+x`."""

    sign: str
    what: Node

    def __str__(self) -> str:
        return f"{self.sign}{self.what}"


@dataclass(frozen=True, slots=True)
class Chain:
    """Operands with the operators between them; each operator has its modifiers."""

    operands: tuple[Node, ...]
    operators: tuple[str, ...]

    def __str__(self) -> str:
        parts = [str(self.operands[0])]
        for operator, operand in zip(self.operators, self.operands[1:], strict=True):
            parts += [operator, str(operand)]
        return " ".join(parts)


Node: TypeAlias = (
    Selector
    | Range
    | Subquery
    | Moved
    | Number
    | Text
    | Group
    | FunctionCall
    | Aggregation
    | Signed
    | Chain
)

_SCALARS = frozenset({"scalar", "time", "pi"})


def type_of(node: Node) -> Type:  # noqa: PLR0911 - one for each kind of node
    """Return the type of the whole expression."""
    match node:
        case Number():
            return Type.SCALAR
        case Text():
            return Type.STRING
        case Range() | Subquery():
            return Type.MATRIX
        case Group(what) | Signed(_, what) | Moved(what, _):
            return type_of(what)
        case FunctionCall(name, _):
            return Type.SCALAR if name in _SCALARS else Type.VECTOR
        case Chain(operands, _):
            scalar = all(type_of(each) is Type.SCALAR for each in operands)
            return Type.SCALAR if scalar else Type.VECTOR
        case _:
            return Type.VECTOR


def selectors(node: Node) -> list[Selector]:
    """Return every selector in the tree."""
    match node:
        case Selector():
            return [node]
        case Range(selector, _):
            return [selector]
        case Subquery(what, _, _) | Moved(what, _) | Group(what) | Signed(_, what):
            return selectors(what)
        case FunctionCall(_, parts) | Aggregation(_, _, parts) | Chain(parts, _):
            return [found for each in parts for found in selectors(each)]
        case _:
            return []
