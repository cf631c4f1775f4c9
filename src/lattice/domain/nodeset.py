"""Sets of nodes in Slurm's notation: `n[1-3,07-12],gpu-[a,b]x[0-1]`. Pure.

Text from outside is expanded only up to a bound: `n[0-9999999999]` is 15 characters.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from itertools import product

LIMIT = 100_000
"""More nodes than any cluster has, and few enough to hold."""

_TOO_MANY = "the node list names more nodes than allowed"
_TEXT_LIMIT = 4 * 1024 * 1024
_NAME_LIMIT = 255
_NAME = re.compile(r"[^\s,\[\]\x00-\x1f\x7f]+")
_GROUP = re.compile(r"\[([^\[\]]*)\]")
_RANGE = re.compile(r"([0-9]{1,18})-([0-9]{1,18})")
_LAST_NUMBER = re.compile(r"(.*?)([0-9]{1,18})([^0-9]*)", re.DOTALL)


class NodeSet:
    """An immutable set of node names that keeps their order."""

    __slots__ = ("_names",)

    def __init__(self, names: Iterable[str] = ()) -> None:
        self._names = dict.fromkeys(names)
        for name in self._names:
            if len(name) > _NAME_LIMIT or not _NAME.fullmatch(name):
                raise ValueError(f"{name[:80]!r} is not a node name")

    @classmethod
    def parse(cls, text: str, *, limit: int = LIMIT) -> NodeSet:
        """Expand Slurm's notation. Raises `ValueError` if it is malformed or beyond the limit."""
        if len(text) > _TEXT_LIMIT:
            raise ValueError("the node list is too long")
        names: dict[str, None] = {}
        for item in _items(text):
            names.update(dict.fromkeys(_expand(item, limit - len(names))))
        return cls(names)

    def fold(self) -> str:
        """The shortest usual form: `parse` of it gives an equal set."""
        groups: dict[tuple[str, str], list[str]] = {}
        plain: list[str] = []
        for name in self._names:
            match = _LAST_NUMBER.fullmatch(name)
            if match is None:
                plain.append(name)
            else:
                groups.setdefault((match[1], match[3]), []).append(match[2])
        folded = [_folded(*ends, numbers) for ends, numbers in groups.items()]
        return ",".join(sorted(plain + folded))

    def __iter__(self) -> Iterator[str]:
        return iter(self._names)

    def __len__(self) -> int:
        return len(self._names)

    def __contains__(self, name: object) -> bool:
        return name in self._names

    def __eq__(self, other: object) -> bool:
        return self._names.keys() == other._names.keys() if isinstance(other, NodeSet) else False

    def __hash__(self) -> int:
        return hash(frozenset(self._names))

    def __or__(self, other: NodeSet) -> NodeSet:
        return NodeSet([*self._names, *other._names])

    def __and__(self, other: NodeSet) -> NodeSet:
        return NodeSet(name for name in self._names if name in other._names)

    def __sub__(self, other: NodeSet) -> NodeSet:
        return NodeSet(name for name in self._names if name not in other._names)

    def __str__(self) -> str:
        return self.fold()

    def __repr__(self) -> str:
        return f"NodeSet({self.fold()!r})"


def _items(text: str) -> Iterator[str]:
    # Commas inside brackets do not separate items.
    if not text:
        return
    start, depth = 0, 0
    for at, character in enumerate(text):
        if character == "[":
            depth += 1
        elif character == "]":
            depth -= 1
        elif character == "," and depth == 0:
            yield text[start:at]
            start = at + 1
        if depth not in (0, 1):
            raise ValueError("the brackets of the node list do not match")
    if depth:
        raise ValueError("the brackets of the node list do not match")
    yield text[start:]


def _expand(item: str, room: int) -> Iterator[str]:
    pieces = _GROUP.split(item)  # literal, group, literal, group, …, literal
    groups: list[list[str]] = []
    total = 1
    for piece in pieces[1::2]:
        groups.append(_alternatives(piece, room // total))
        total *= len(groups[-1])
    if total > room:
        raise ValueError(_TOO_MANY)
    literals = pieces[::2]
    for choice in product(*groups):
        name = literals[0]
        for chosen, literal in zip(choice, literals[1:], strict=True):
            name += chosen + literal
        # Checked for each name, because each of many names may be as long as the text.
        if len(name) > _NAME_LIMIT:
            raise ValueError(f"{name[:80]!r} is not a node name")
        yield name


def _alternatives(group: str, room: int) -> list[str]:
    found: list[str] = []
    for part in group.split(","):
        match = _RANGE.fullmatch(part)
        if match is None:
            if not part or "-" in part:
                raise ValueError(f"[{group[:80]}] is not a range of nodes")
            if len(found) >= room:
                raise ValueError(_TOO_MANY)
            found.append(part)
            continue
        low, high = int(match[1]), int(match[2])
        if high < low:
            raise ValueError(f"[{group[:80]}] is not a range of nodes")
        if high - low >= room - len(found):
            raise ValueError(_TOO_MANY)
        found += [str(number).zfill(len(match[1])) for number in range(low, high + 1)]
    return found


def _folded(prefix: str, suffix: str, numbers: list[str]) -> str:
    # Sorted by length first: `08 09 10` and `8 9 10` are each one run and never mixed up.
    ordered = sorted(numbers, key=lambda digits: (len(digits), digits))
    if len(ordered) == 1:
        return f"{prefix}{ordered[0]}{suffix}"
    runs: list[list[str]] = []
    for digits in ordered:
        if runs:
            low, last = runs[-1][0], runs[-1][-1]
            if digits == str(int(last) + 1).zfill(len(low)):
                runs[-1].append(digits)
                continue
        runs.append([digits])
    ranges = (run[0] if len(run) == 1 else f"{run[0]}-{run[-1]}" for run in runs)
    return f"{prefix}[{','.join(ranges)}]{suffix}"
