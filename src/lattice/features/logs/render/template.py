"""`--template`: a line in the user's format. Pure.

Only names in braces: Python's format strings could access any attribute.
"""

from __future__ import annotations

import re

from lattice.base.errors import UsageError
from lattice.base.text import inert
from lattice.features.logs.model import LogBlock

FIELDS = ("time", "node", "rank", "stream", "source", "seq", "text")
_PARTS = re.compile(r"\{\{|\}\}|\{([^{}]*)\}|[{}]|[^{}]+")
_LONGEST = 500
_WRITTEN = {"\\t": "\t", "\\n": "\n", "\\\\": "\\"}
_ESCAPE = re.compile(r"\\[tn\\]")


class Template:
    """Parsed once, filled in for each line."""

    def __init__(self, parts: list[tuple[str, bool]]) -> None:
        self._parts = tuple(parts)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Template) and self._parts == other._parts

    def __hash__(self) -> int:
        return hash(self._parts)

    @classmethod
    def read(cls, text: str) -> Template:
        """Parse `{time} {node}:{rank} {text}`. Raises `UsageError`."""
        if not text or len(text) > _LONGEST:
            raise UsageError("A template has 1 to 500 characters.", hint=_HINT)
        parts: list[tuple[str, bool]] = []
        for found in _PARTS.finditer(text):
            whole, name = found.group(), found.group(1)
            if name is not None:
                if name not in FIELDS:
                    raise UsageError(f"{name!r} is no field of a line.", hint=_HINT)
                parts.append((name, True))
            elif whole in {"{", "}"}:
                raise UsageError("A brace of the template stands alone.", hint=_HINT)
            elif whole in {"{{", "}}"}:
                parts.append((whole[0], False))
            else:
                parts.append((_ESCAPE.sub(lambda each: _WRITTEN[each.group()], whole), False))
        return cls(parts)

    def line(self, block: LogBlock, time: str, number: int, text: str) -> str:
        """Format the line with that number in the block; `text` must be safe already."""
        told = {
            "time": time.rstrip(),
            "node": inert(block.node),
            "rank": "" if block.rank is None else str(block.rank),
            "stream": block.stream.value,
            "source": inert(block.source),
            "seq": str(block.seq + number),
            "text": text,
        }
        return "".join(told[part] if field else part for part, field in self._parts)


_HINT = "Fields: " + ", ".join(f"{{{each}}}" for each in FIELDS) + "; \\t, \\n, and {{ for a brace."
