"""Which rows changed between two readings: the same as by comparing all of them."""

from __future__ import annotations

from dataclasses import replace
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lattice.adapters.slurm.row_blocks import RowBlocks
from lattice.adapters.slurm.schema.squeue import BadRows, SqueueFormat

FORM = SqueueFormat.new(with_sluid=True)


def row(number: int, text: str = "") -> bytes:
    """A row as `RowBlocks` returns it, of a job with this id."""
    return b"%d|x|%s\0train\0" % (number, text.encode())


def printed(rows: list[bytes], form: SqueueFormat = FORM) -> bytes:
    marked = (each.replace(b"\0", form.field_mark.encode()) + form.row_end for each in rows)
    return b"".join(marked)


def compared(before: list[bytes], now: list[bytes]) -> None:
    """The changes are those of the two lists, whatever the blocks are."""
    blocks, first = RowBlocks().next(FORM, printed(before))
    assert (first.gone, first.new) == ((), tuple(dict.fromkeys(before)))
    blocks, changes = blocks.next(FORM, bytearray(printed(now)))
    assert set(changes.gone) == set(before) - set(now)
    assert set(changes.new) == set(now) - set(before)
    _, nothing = blocks.next(FORM, printed(now))
    assert (nothing.gone, nothing.new) == ((), ())


def rows(count: int) -> list[bytes]:
    return [row(number, "a" * (number % 97)) for number in range(1, count + 1)]


@given(st.integers(0, 2**32), st.integers(0, 1500), st.integers(0, 40), st.integers(0, 1500))
def test_rows_that_change_come_go_and_move_are_found(
    seed: int, count: int, changes: int, moved: int
) -> None:
    dice = Random(seed)
    before = rows(count)
    now = list(before)
    for each in range(changes):
        place = dice.randrange(len(now) + 1)
        match dice.randrange(4):
            case 0:
                now.insert(place, row(10_000 + each, "b" * dice.randrange(400)))
            case 1 if now:
                del now[place : place + dice.randrange(1, 100)]
            case 2 if place < len(now):
                now[place] = row(int(now[place].split(b"|")[0]), "changed")
            case 3 if now:
                moving = now[place : place + moved]
                del now[place : place + moved]
                at = dice.randrange(len(now) + 1)
                now[at:at] = moving
    compared(before, now)


def test_of_a_long_list_only_what_changed_is_parsed(monkeypatch: pytest.MonkeyPatch) -> None:
    before = rows(20_000)
    now = list(before)
    for number in range(0, 20_000, 2_000):
        now[number] = row(number + 1, "changed")
    del now[5_000:5_400]
    now[9_000:9_000] = [row(number) for number in range(30_000, 30_400)]
    blocks, _ = RowBlocks().next(FORM, printed(before))
    parsed = 0
    parse = SqueueFormat.rows

    def counted(self: SqueueFormat, output: bytes) -> list[bytes]:
        nonlocal parsed
        found = list(parse(self, output))
        parsed += len(found)
        return found

    monkeypatch.setattr(SqueueFormat, "rows", counted)
    _, changes = blocks.next(FORM, printed(now))
    assert (len(changes.gone), len(changes.new)) == (410, 410)
    assert parsed < 20_000


def test_a_block_that_begins_within_a_row_is_not_the_same() -> None:
    same = [row(number, "z" * 50) for number in range(100, 400)]
    before = [row(12, "a"), *same]
    now = [b"5" + before[0], *same]
    compared([row(7), *before], [row(7, "changed"), *now])


def test_other_marks_change_no_row() -> None:
    blocks, _ = RowBlocks().next(FORM, printed(rows(500)))
    other = SqueueFormat.new(with_sluid=True)
    now = [*rows(500)[1:], row(501)]
    blocks, changes = blocks.next(other, printed(now, other))
    assert (changes.gone, changes.new) == ((row(1, "a"),), (row(501),))
    _, nothing = blocks.next(replace(other), printed(now, other))
    assert (nothing.gone, nothing.new) == ((), ())


@pytest.mark.parametrize("cut", [1, 5, 2_000])
def test_output_that_ends_early_is_refused(cut: int) -> None:
    blocks, _ = RowBlocks().next(FORM, printed(rows(300)))
    with pytest.raises(BadRows):
        blocks.next(FORM, printed(rows(300))[:-cut])
