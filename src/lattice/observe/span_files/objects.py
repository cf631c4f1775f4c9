"""Finds the JSON objects in lines: one object on a line, or one indented over many lines. Pure.

Exporters for the console write `{`, then indented lines, then `}` below the `{`. Other text may
stand between objects, and between the lines of one, as in the output of a job.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

MOST_OBJECT_BYTES = 16 * 2**20
"""A batch of a collector has some thousand spans on one line."""
_DEEPER = (b"  ", b"\t")
_ENDS = (b"}", b"},")
_LIST_SIGNS = (b"[", b"]", b",")


class ObjectSplitter:
    """Takes lines in their order and returns whole objects."""

    def __init__(self, most_bytes: int = MOST_OBJECT_BYTES) -> None:
        self.broken = 0
        """Objects without an end, or longer than allowed."""
        self.other = 0
        """Lines that are no part of an object."""
        self._most_bytes = most_bytes
        self._lines: list[bytes] = []
        self._bytes = 0
        self._indent = 0

    def objects(self, lines: Iterable[bytes]) -> Iterator[bytes]:
        """The objects that end in these lines, which have no line ends."""
        for line in lines:
            if self._lines and not self._indent and line.startswith(_DEEPER):
                # The usual line inside an object; a large file has millions of them.
                self._append(line)
                continue
            text = line.strip()
            indent = len(line) - len(line.lstrip())
            if self._lines and indent == self._indent and text in _ENDS:
                yield b"".join((*self._lines, b"}"))
                self._clear()
            elif self._lines and indent > self._indent:
                self._append(line)
            elif text.startswith(b"{"):
                self.end()
                yield from self._first(text, indent)
            elif text and (self._lines or text not in _LIST_SIGNS):
                # Something else wrote it, maybe between the lines of an object.
                self.other += 1

    def end(self) -> None:
        """Nothing of it follows: an object that has no end is broken."""
        if self._lines:
            self.broken += 1
            self._clear()

    def _first(self, text: bytes, indent: int) -> Iterator[bytes]:
        if text == b"{":
            self._indent = indent
            self._append(text)
        elif len(text) > self._most_bytes:
            self.broken += 1
        else:
            yield text.removesuffix(b",")

    def _append(self, line: bytes) -> None:
        self._lines.append(line)
        self._bytes += len(line)
        if self._bytes > self._most_bytes:
            self.end()

    def _clear(self) -> None:
        self._lines, self._bytes = [], 0
