"""Narrows a query to one caller: every selector gets the user and our metric prefix. Pure."""

from __future__ import annotations

from dataclasses import dataclass, replace

from lattice.domain.metric import PREFIX
from lattice.features.prometheus.service.lexer import NotUnderstood
from lattice.features.prometheus.service.parser import parse
from lattice.features.prometheus.service.tree import (
    Aggregation,
    Chain,
    FunctionCall,
    Group,
    Matcher,
    Moved,
    Node,
    Range,
    Selector,
    Signed,
    Subquery,
    selectors,
)


@dataclass(frozen=True, slots=True)
class CallerFilter:
    """The matchers that every selector of one caller gets."""

    user: str

    def __post_init__(self) -> None:
        if not self.user:
            # An empty value would match every series without a user.
            raise ValueError("a filter that filters nothing")

    @property
    def matchers(self) -> tuple[Matcher, ...]:
        return (Matcher("__name__", "=~", f"{PREFIX}.+"), Matcher("user", "=", self.user))

    def narrowed(self, selector: Selector) -> Selector:
        return Selector((*selector.matchers, *self.matchers))

    def admits(self, selector: Selector) -> bool:
        """Return True if the selector can match only the caller's series."""
        return all(each in selector.matchers for each in self.matchers)


def scoped(node: Node, caller: CallerFilter) -> str:
    """Return the query to send. Raises `NotUnderstood` if it does not parse back equally."""
    text = str(narrowed(node, caller))
    # Parsing it again ensures that only what was understood is sent.
    again = parse(text)
    if str(again) != text or not all(map(caller.admits, selectors(again))):
        raise NotUnderstood("it can't be narrowed")
    return text


def narrowed(node: Node, caller: CallerFilter) -> Node:
    """Return the same tree with every selector narrowed."""

    def each(part: Node) -> Node:
        return narrowed(part, caller)

    match node:
        case Selector():
            return caller.narrowed(node)
        case Range():
            return replace(node, selector=caller.narrowed(node.selector))
        case Subquery() | Moved() | Group() | Signed():
            return replace(node, what=each(node.what))
        case FunctionCall() | Aggregation():
            return replace(node, arguments=tuple(map(each, node.arguments)))
        case Chain():
            return replace(node, operands=tuple(map(each, node.operands)))
        case _:
            return node
