"""`RowBlocks`: which rows of `squeue` are others than in the reading before.

Of 50 000 rows a few hundred change. So the output is kept in blocks of some rows each. A block that
comes again costs one comparison of bytes; only what lies between such blocks is parsed. If most
rows have moved, or the marks are new, all rows are parsed.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from lattice.adapters.slurm.commands import Printed
from lattice.adapters.slurm.schema.squeue import SqueueFormat

_BLOCK_BYTES = 8 * 1024
_MOVED_BYTES = 64 * 1024
"""How much new text may come before a block that comes again."""
_NEEDLE_BYTES = 128


@dataclass(frozen=True, slots=True)
class RowChanges:
    """The rows that one of two readings lacks, in the order of the readings."""

    gone: tuple[bytes, ...]
    new: tuple[bytes, ...]


@dataclass(frozen=True, slots=True)
class RowBlocks:
    """The rows of one reading; without arguments, of none."""

    _form: SqueueFormat | None = None
    _blocks: tuple[bytes, ...] = ()

    def next(self, form: SqueueFormat, output: Printed) -> tuple[RowBlocks, RowChanges]:
        """The rows of the next reading, and what changed. Raises `BadRows`."""
        if form == self._form:
            blocks, gone, new = self._compared(form, output)
        else:
            blocks, gone, new = list(_cut(form, output)), list(self._blocks), [bytes(output)]
        before = dict.fromkeys(_rows(self._form, gone))
        now = dict.fromkeys(_rows(form, new))
        changes = RowChanges(
            gone=tuple(row for row in before if row not in now),
            new=tuple(row for row in now if row not in before),
        )
        return RowBlocks(form, tuple(blocks)), changes

    def _compared(
        self, form: SqueueFormat, output: Printed
    ) -> tuple[list[bytes], list[bytes], list[bytes]]:
        """The blocks of the output, the earlier blocks that are not in it, and its other text."""
        blocks: list[bytes] = []
        gone: list[bytes] = []
        new: list[bytes] = []
        at = number = 0
        while number < len(self._blocks):
            block = self._blocks[number]
            if output.startswith(block, at):
                blocks.append(block)
                at += len(block)
                number += 1
                continue
            following, begin = self._found_again(form, output, at, number)
            gone += self._blocks[number:following]
            if begin > at:
                new.append(bytes(memoryview(output)[at:begin]))
                blocks += _cut(form, new[-1])
            at, number = begin, following
        if at < len(output):
            new.append(bytes(memoryview(output)[at:]))
            blocks += _cut(form, new[-1])
        return blocks, gone, new

    def _found_again(
        self, form: SqueueFormat, output: Printed, at: int, number: int
    ) -> tuple[int, int]:
        """A later block that comes again, and where; both ends if none was found.

        In steps that double: if many blocks changed, this costs less than to parse some more.
        """
        step, following, last = 1, number, at + _MOVED_BYTES
        while following < len(self._blocks):
            block = self._blocks[following]
            begin = output.find(block[:_NEEDLE_BYTES], at, last + _NEEDLE_BYTES)
            if (
                begin >= 0
                and output.startswith(block, begin)
                and (begin == at or output.endswith(form.row_end, at, begin))
            ):
                return following, begin
            last += sum(map(len, self._blocks[following : following + step]))
            following += step
            step *= 2
        return len(self._blocks), len(output)


def _rows(form: SqueueFormat | None, parts: Iterable[Printed]) -> Iterator[bytes]:
    if form is not None:
        for each in parts:
            yield from form.rows(each)


def _cut(form: SqueueFormat, text: Printed) -> Iterator[bytes]:
    view, begin = memoryview(text), 0
    while begin < len(text):
        stop = text.find(form.row_end, begin + _BLOCK_BYTES)
        stop = len(text) if stop < 0 else stop + len(form.row_end)
        yield bytes(view[begin:stop])
        begin = stop
