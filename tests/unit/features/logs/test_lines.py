"""Lines put together from pieces, however they were cut."""

from __future__ import annotations

from dataclasses import dataclass, field

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lattice.base.escapes import folded
from lattice.domain.logs import LONGEST_LINE_BYTES, Piece, Position
from lattice.features.logs.lines import LineAssembler, Lines, last_state
from lattice.features.logs.model import has_longer

TEXT = st.binary(max_size=400).map(lambda raw: raw.replace(b"\0", b"\n"))


def assembled(pieces: list[bytes]) -> tuple[list[Lines], LineAssembler]:
    lines = LineAssembler(Position())
    found, at = [], Position()
    for number, text in enumerate(pieces):
        found += [each for each in [lines.take(Piece(at, number, False, text))] if each]
        at = at.past(text)
    return found, lines


@pytest.mark.spec("LOG-4")
@given(st.lists(TEXT, max_size=12))
def test_however_it_is_cut_the_lines_are_the_same(pieces: list[bytes]) -> None:
    whole = b"".join(pieces)
    found, lines = assembled(pieces)
    rest = lines.unfinished(0)
    assert b"".join(each.text for each in found) + (rest.text if rest else b"") == whole
    at = Position()
    for each in found:
        assert each.at == at
        assert each.count == each.text.count(b"\n") == each.end.line - each.at.line
        at = each.end
    assert lines.expected == len(whole)


@given(st.lists(TEXT, min_size=1, max_size=8), st.data())
def test_what_comes_twice_counts_once(pieces: list[bytes], data: st.DataObject) -> None:
    """A server that reconnects may be given a part again."""
    lines = LineAssembler(Position())
    whole = b"".join(pieces)
    found: list[Lines] = []
    at = 0
    while at < len(whole):
        begin = data.draw(st.integers(0, at))
        size = data.draw(st.integers(at - begin + 1, len(whole) - begin))
        text = whole[begin : begin + size]
        place = Position(begin, whole.count(b"\n", 0, begin))
        found += [each for each in [lines.take(Piece(place, 0, False, text))] if each]
        at = begin + size
    rest = lines.unfinished(0)
    assert b"".join(each.text for each in found) + (rest.text if rest else b"") == whole


def test_a_hole_between_pieces_is_not_papered_over() -> None:
    lines = LineAssembler(Position())
    assert lines.take(Piece(Position(5, 0), 0, False, b"later\n")) is None
    assert lines.expected == 0


@pytest.mark.spec("LOG-7")
@pytest.mark.parametrize("cut_at", [1, 1000, LONGEST_LINE_BYTES, LONGEST_LINE_BYTES * 3])
def test_a_very_long_line_is_shown_in_part_and_costs_little(cut_at: int) -> None:
    """Attack 15: a hundred megabytes without a line feed."""
    text = b"x" * (LONGEST_LINE_BYTES * 4) + b"\nnext\n"
    found, _ = assembled(
        [text[begin : begin + cut_at] for begin in range(0, len(text), cut_at)]
        if cut_at > 1
        else [text]
    )
    shown = b"".join(each.text for each in found)
    assert shown == b"x" * LONGEST_LINE_BYTES + b"\nnext\n"
    assert sum(each.cut for each in found) == 1
    assert found[-1].end == Position(len(text), 2)


@pytest.mark.spec("LOG-7")
def test_a_bar_that_is_redrawn_for_hours_shows_its_last_state() -> None:
    bars = [f"\r{number:6} of 100000|####".encode() for number in range(20_000)]
    found, lines = assembled(bars)
    begun = lines.unfinished(0)
    assert not found
    assert begun is not None
    assert last_state(begun.text).endswith(b" 19999 of 100000|####")
    assert len(last_state(begun.text)) < 100
    assert lines.expected == sum(map(len, bars))
    found, lines = assembled([*bars, b"\rdone\n"])
    assert found[0].text.endswith(b"\rdone\n")
    assert found[0].count == 1
    found, lines = assembled([b"".join(bars) + b"\rdone\n"])
    assert found[0].text.endswith(b"\rdone\n")


@given(st.lists(st.sampled_from([b"ab", b"\r", b"x" * 9]), max_size=12).map(b"".join))
def test_the_last_state_is_what_a_terminal_shows(begun: bytes) -> None:
    shown = folded(last_state(begun).decode())
    assert folded(begun.decode()).startswith(shown)


@given(st.text("ab\n", max_size=60), st.integers(1, 8))
def test_a_line_that_is_too_long_is_found_without_going_through_all(text: str, most: int) -> None:
    whole = text.encode() + b"\n"
    assert has_longer(whole, b"\n", most) == any(len(line) > most for line in whole.split(b"\n"))


@dataclass(frozen=True)
class Frame:
    """Stored text that counts how often it is expanded."""

    at: Position
    content: bytes
    expanded: list[int] = field(default_factory=list)
    time_ms: int = 5

    @property
    def end(self) -> Position:
        return self.at.past(self.content)

    def text(self) -> bytes:
        self.expanded.append(1)
        return self.content


@pytest.mark.spec("LOG-3")
@given(st.binary(max_size=20), st.lists(TEXT.map(lambda text: text + b"\n?"), min_size=1))
def test_frames_that_are_passed_leave_the_same_line_begun(first: bytes, texts: list[bytes]) -> None:
    read, passed = LineAssembler(Position()), LineAssembler(Position())
    for each in (read, passed):
        list(each.all_lines(Piece(Position(), 1, False, first)))
    before = passed.unfinished(0)
    frames, at = [], Position().past(first)
    for number, text in enumerate(texts):
        frames.append(Frame(at, text))
        list(read.all_lines(Piece(at, 5, False, text)))
        assert passed.can_pass
        begun = passed.pass_frame(frames[-1])
        assert begun == (None if number else before.text if before else b"")
        at = frames[-1].end
        assert passed.expected == at.offset
    assert not any(each.expanded for each in frames)
    assert (passed.at, passed.unfinished(7)) == (read.at, read.unfinished(7))
    assert sum(len(each.expanded) for each in frames) == 1, "only the last one was needed"


@given(st.lists(TEXT, min_size=2, max_size=6), st.data())
def test_text_of_several_times_is_split_as_it_was_read(
    texts: list[bytes], data: st.DataObject
) -> None:
    """Trimmed at both ends, as at the ends of a range."""
    texts = [each or b"-" for each in texts]
    whole, marks = b"", []
    for number, text in enumerate(texts):
        whole += text
        marks.append((len(whole), number))
    piece = Piece(Position(), len(texts) - 1, False, whole, whole.count(b"\n"), tuple(marks))
    times = {offset: part.time_ms for part in piece.by_time()
             for offset in range(part.at.offset, part.end_offset)}  # fmt: skip
    assert b"".join(each.text for each in piece.by_time()) == whole
    begin = data.draw(st.integers(0, len(whole) - 1))
    end = data.draw(st.integers(begin + 1, len(whole)))
    part = piece.starting_at(begin).up_to(end)
    assert part.text == whole[begin:end]
    found = [each for each in part.by_time() if each.text]
    assert b"".join(each.text for each in found) == part.text
    assert [each.at for each in found] == [Position().past(whole[: e.at.offset]) for e in found]
    assert all(times[each.at.offset] == each.time_ms for each in found)
    assert part.time_ms == times[end - 1]
