"""YAML text into a tree of nodes with their lines, within bounds. It gives no value a type.

It uses YAML's base loader, so every scalar stays the text that was written. The field decides its
type, not YAML's guesses: `no` is a word, and `1:30` is not a number of minutes. `blemishes` finds
what the composer accepts: repeated keys, tags, merge keys.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import cast

import yaml
from yaml.nodes import MappingNode, Node, ScalarNode, SequenceNode

_MOST_ALIASES = 64
_DEEPEST = 32
_NOTHING = frozenset({"", "~", "null", "Null", "NULL"})
_PLAIN_TAGS = frozenset(f"tag:yaml.org,2002:{kind}" for kind in ("str", "map", "seq"))


class NotATree(ValueError):
    """The text is not YAML, or exceeds a bound. `location` is `line:column` or empty."""

    def __init__(self, text: str, mark: yaml.Mark | None = None) -> None:
        super().__init__(text)
        self.location = f"{mark.line + 1}:{mark.column + 1}" if mark else ""


def compose(text: str) -> Node | None:
    """The root of the one document, or None for an empty one. Raises `NotATree`."""
    try:
        _measure(text)
        return cast("Node | None", yaml.compose(text, Loader=yaml.BaseLoader))
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        raise NotATree(error.problem or error.context or "is not YAML", mark) from None
    except yaml.YAMLError as error:
        raise NotATree(" ".join(str(error).split())) from None


def _measure(text: str) -> None:
    # Composing recurses, so the depth is checked before Python's stack is used.
    depth = aliases = 0
    for event in yaml.parse(text, Loader=yaml.BaseLoader):
        if isinstance(event, yaml.CollectionStartEvent):
            depth += 1
        elif isinstance(event, yaml.CollectionEndEvent):
            depth -= 1
        elif isinstance(event, yaml.AliasEvent):
            aliases += 1
        if depth > _DEEPEST:
            raise NotATree("is nested too deeply", event.start_mark)
        if aliases > _MOST_ALIASES:
            raise NotATree("holds too many aliases", event.start_mark)


def blemishes(root: Node) -> Iterator[tuple[str, int, str]]:
    """Path, line and text of each fault. An aliased node is checked once."""
    waiting: list[tuple[Node, str]] = [(root, "")]
    seen: set[int] = set()
    while waiting:
        node, path = waiting.pop()
        if id(node) in seen:
            continue
        seen.add(id(node))
        if node.tag not in _PLAIN_TAGS:
            yield path, line_of(node), f"the tag {short(node.tag)} has no meaning here"
        if isinstance(node, SequenceNode):
            waiting.extend((each, f"{path}[{index}]") for index, each in enumerate(node.value))
        elif isinstance(node, MappingNode):
            yield from _key_blemishes(node, path)
            waiting.extend((value, below(path, key)) for key, value in node.value)


def _key_blemishes(node: MappingNode, path: str) -> Iterator[tuple[str, int, str]]:
    first: dict[str, int] = {}
    for key, _ in node.value:
        line, column = line_of(key), key.start_mark.column + 1
        if not isinstance(key, ScalarNode):
            yield path, line, f"a key must be a word (column {column})"
        elif key.value == "<<" and key.style is None:
            yield path, line, f"merge keys are not read here (column {column})"
        elif key.value in first:
            text = f"stands twice, first in line {first[key.value]} (column {column})"
            yield below(path, key), line, text
        else:
            first[key.value] = line


def below(path: str, key: Node) -> str:
    """The path of the value of a key."""
    name = short(key.value) if isinstance(key, ScalarNode) else "?"
    return f"{path}.{name}" if path else name


def line_of(node: Node) -> int:
    """The line, counted from one as in editors."""
    return int(node.start_mark.line) + 1


def is_nothing(node: Node) -> bool:
    """True for a key without a value, `~` and `null`."""
    return isinstance(node, ScalarNode) and node.style is None and node.value in _NOTHING


def shape_of(node: Node) -> str:
    """A description of the node for a message."""
    if isinstance(node, MappingNode):
        return "keys and values"
    return "a list" if isinstance(node, SequenceNode) else f"{short(node.value)!r}"


def short(text: str) -> str:
    """Foreign text for a message: printable and at most 60 characters."""
    shown = text if text.isprintable() else ascii(text)[1:-1]
    return shown if len(shown) <= 60 else f"{shown[:59]}…"
