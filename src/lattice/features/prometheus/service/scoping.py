"""A query narrowed to one caller: every selector asks for her user, and for our metrics. Pure."""

from __future__ import annotations

from dataclasses import dataclass, replace

from lattice.domain.metric import PREFIX
from lattice.features.prometheus.service.lexing import NotUnderstood
from lattice.features.prometheus.service.parsing import parse
from lattice.features.prometheus.service.tree import (
    Aggregation,
    Call,
    Chain,
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
    """What every selector of one caller asks for."""

    user: str

    def __post_init__(self) -> None:
        if not self.user:
            # It would match every series that has no user.
            raise ValueError("a filter that filters nothing")

    @property
    def matchers(self) -> tuple[Matcher, ...]:
        return (
            Matcher("__name__", "=~", f"{PREFIX}.+"),
            Matcher("user", "=", self.user),
        )

    def narrowed(self, selector: Selector) -> Selector:
        return Selector((*selector.matchers, *self.matchers))

    def admits(self, selector: Selector) -> bool:
        """True if it can find nothing but the caller's."""
        return all(each in selector.matchers for each in self.matchers)


def scoped(node: Node, caller: CallerFilter) -> str:
    """The query as it is sent. Raises `NotUnderstood` for what does not read as it was written."""
    text = str(narrowed(node, caller))
    # It is read once more: what is sent is what was understood, or nothing.
    again = parse(text)
    if str(again) != text or not all(map(caller.admits, selectors(again))):
        raise NotUnderstood("it can't be narrowed")
    return text


def narrowed(node: Node, caller: CallerFilter) -> Node:
    """The same tree with every selector narrowed."""

    def each(part: Node) -> Node:
        return narrowed(part, caller)

    match node:
        case Selector():
            return caller.narrowed(node)
        case Range():
            return replace(node, selector=caller.narrowed(node.selector))
        case Subquery() | Moved() | Group() | Signed():
            return replace(node, what=each(node.what))
        case Call() | Aggregation():
            return replace(node, arguments=tuple(map(each, node.arguments)))
        case Chain():
            return replace(node, operands=tuple(map(each, node.operands)))
        case _:
            return node
