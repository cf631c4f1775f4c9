"""What people see of logs, line by line."""

from __future__ import annotations

import json
import time
from datetime import UTC, datetime
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lattice.base.fast_start.decode import decode
from lattice.base.style import Style
from lattice.features.logs.command.download import Rate, bar
from lattice.features.logs.command.views import json_lines
from lattice.features.logs.model import LogBlock, LogGap, LogNote
from lattice.features.logs.render.alike import Repeats
from lattice.features.logs.render.labels import Labels, colour_of
from lattice.features.logs.render.lines import CUT, Head, Highlight, LineText
from lattice.features.logs.render.marks import gap_mark, note_mark
from tests.fakes import logs

NOW = datetime(2026, 11, 15, 15, 0, tzinfo=UTC)
PIPE = Style(zone=UTC)
COLOURED = Style(width=80, colour=True, zone=UTC)


def block(text: str, seq: int = 0, **changes: Any) -> LogBlock:
    return decode(json.dumps(logs.block(text, seq, **changes)).encode(), LogBlock)


def shown(*blocks: LogBlock, style: Style = PIPE, prefix: str = "auto", **named: Any) -> str:
    lines = LineText(style, Labels(prefix, style, named.pop("known", ())), now=NOW, **named)
    return "".join(map(lines.text, blocks))


@pytest.mark.spec("LOG-7")
def test_one_writer_has_no_label() -> None:
    assert shown(block("a\nb\n"), block("c\n", 2)) == "a\nb\nc\n"
    assert shown(block("a\n"), block("b\n", stream="stderr")) == "a\nb\n"


@pytest.mark.spec("LOG-7")
def test_several_nodes_are_told_apart() -> None:
    known = [("n1", None), ("gpu12", None)]
    assert shown(block("a\nb\n"), block("c\n", node="gpu12"), known=known) == (
        "n1 │ a\nn1 │ b\ngpu12 │ c\n"
    )
    later = shown(block("a\n"), block("b\n", node="n2"), block("c\n", 1))
    assert later == "a\nn2 │ b\nn1 │ c\n", "labels begin with the second that shows up"


@pytest.mark.spec("LOG-7")
def test_ranks_are_told_where_they_are_known() -> None:
    blocks = [block("a\n", rank=0), block("b\n", rank=1), block("c\n", node="n2", rank=2)]
    assert shown(*blocks) == "a\nn1:1 │ b\nn2:2 │ c\n"
    assert shown(*blocks, prefix="node") == "n1 │ a\nn1 │ b\nn2 │ c\n"
    assert shown(*blocks, prefix="none") == "a\nb\nc\n"
    assert shown(block("a\n"), prefix="rank") == "n1 │ a\n"


def test_errors_have_another_bar() -> None:
    assert shown(block("a\n", stream="stderr"), prefix="node") == "n1 ┃ a\n"
    ascii_only = Style(glyphs=False)
    both = (block("a\n", stream="stderr"), block("b\n"))
    assert shown(*both, prefix="node", style=ascii_only) == "n1 ! a\nn1 | b\n"


@pytest.mark.spec("LOG-7")
def test_colours_stay_and_differ() -> None:
    text = shown(block("a\n"), prefix="node", style=COLOURED)
    assert text == f"\x1b[38;5;{colour_of('n1')}mn1 │ \x1b[0ma\n"
    assert colour_of("n1") == colour_of("n1")
    assert len({colour_of(f"n{n}") for n in range(64)}) > 8


@pytest.mark.spec("LOG-7")
def test_a_hostile_node_name_is_inert() -> None:
    """Attack 16."""
    assert shown(block("a\n", node="n\x1b[2J"), prefix="node") == "n␛[2J │ a\n"


@pytest.mark.spec("LOG-4")
def test_times() -> None:
    assert shown(block("a\n"), timestamps=True) == "2026-11-15T14:02:11.402Z a\n"
    on_screen = Style(width=80, zone=UTC)
    assert shown(block("a\nb\n"), timestamps=True, style=on_screen) == (
        "14:02:11.402  a\n14:02:11.402  b\n"
    )
    older = block("a\n", late=True, time="2026-11-14T10:00:00Z")
    assert shown(older, timestamps=True, style=on_screen) == "2026-11-14 10:00:00.000~ a\n"
    assert shown(older, timestamps=True) == "2026-11-14T10:00:00.000Z~ a\n"


@pytest.mark.spec("LOG-7")
def test_escapes_are_shown_and_colours_kept_on_a_terminal_only() -> None:
    hostile = block("ok\n\x1b[31mred\x1b]0;t\x07\n")
    assert shown(hostile, style=COLOURED) == "ok\n\x1b[31mred␛]0;t␇\x1b[0m\n"
    assert shown(hostile) == "ok\nred␛]0;t␇\n"
    assert shown(hostile, raw=True) == "ok\n\x1b[31mred\x1b]0;t\x07\n"


@pytest.mark.spec("LOG-7")
def test_progress_is_shown_in_its_last_state() -> None:
    assert shown(block(" 1%|\r50%|#\r99%|##\nnext\r\n")) == "99%|##\nnext\n"


@pytest.mark.spec("LOG-4")
def test_highlight_marks_what_matches_between_colours() -> None:
    pattern = Highlight.read(r"\d+")
    text = shown(block("\x1b[31mstep 12\x1b[0m\n"), style=COLOURED, highlight=pattern)
    assert text == "\x1b[31mstep \x1b[1;7m12\x1b[22;27m\x1b[0m\x1b[0m\n"
    assert shown(block("step 12\n"), highlight=pattern) == "step 12\n", "a pipe has no looks"
    assert shown(block("ab\n"), style=COLOURED, highlight=Highlight.read("x*")) == "ab\n"


@pytest.mark.spec("LOG-3")
def test_a_long_line_says_that_it_is_cut() -> None:
    """Attack 15: 100 MB without a line feed."""
    at_the_limit = "x" * 65536
    assert shown(block(at_the_limit + "\n")) == at_the_limit + "\n"
    cut = shown(block(at_the_limit + "\nshort\n", cut=1))
    assert cut == f"{at_the_limit}{CUT}\nshort\n"
    assert shown(block("y" * 200_000 + "\n")) == "y" * 65536 + CUT + "\n"


PLAIN = "2026-11-15 14:02:11 INFO step 1234 loss 0.1234 lr 1e-4 1234 tok/s\n" * 3000


def test_much_plain_text_passes_unchanged() -> None:
    lines = LineText(PIPE, Labels("node", PIPE), now=NOW)
    shown = lines.text(block(PLAIN)).splitlines(keepends=True)
    assert [each.removeprefix("n1 │ ") for each in shown] == PLAIN.splitlines(keepends=True)


@pytest.mark.timing
def test_plain_text_is_shown_at_50_mb_a_second() -> None:
    text = PLAIN
    lines = LineText(PIPE, Labels("node", PIPE), now=NOW)
    one = block(text)
    best = min(_timed(lambda: lines.text(one)) for _ in range(10))
    assert len(text) / best > 50e6


def _timed(do: Any) -> float:
    start = time.perf_counter()
    do()
    return time.perf_counter() - start


@pytest.mark.spec("LOG-4", "LOG-7")
def test_json_has_an_object_a_line_and_drives_no_terminal() -> None:
    text = json_lines(block('a "q"\nb\r\x1b[2J日\n日本\n', 7, rank=3, late=True))
    assert all(letter.isprintable() or letter == "\n" for letter in text)
    first, second, third = map(json.loads, text.splitlines())
    assert first == {
        "type": "line",
        "node": "n1",
        "stream": "stdout",
        "source": "batch",
        "rank": 3,
        "seq": 7,
        "time": "2026-11-15T14:02:11.402000Z",
        "late": True,
        "text": 'a "q"',
    }
    assert list(first) == [
        "type", "node", "stream", "source", "rank", "seq", "time", "late", "text",
    ]  # fmt: skip
    assert (second["seq"], second["text"]) == (8, "b\r\x1b[2J日")
    assert third["text"] == "日本"
    assert "日本" in text


@pytest.mark.spec("LOG-4")
@given(st.text(st.sampled_from('ab\\n"\t\n日\x1b\r\u2028'), min_size=1))
def test_json_says_what_was_written(text: str) -> None:
    text += "\n"
    said = [json.loads(line) for line in json_lines(block(text, 3)).split("\n")[:-1]]
    assert "".join(each["text"] + "\n" for each in said) == text
    assert [each["seq"] for each in said] == list(range(3, 3 + text.count("\n")))


def gap(**changes: Any) -> str:
    return gap_mark(decode(json.dumps(logs.gap(**changes)).encode(), LogGap))


def note(kind: str, **changes: Any) -> str:
    return note_mark(decode(json.dumps(logs.note(kind, **changes)).encode(), LogNote), "42")


@pytest.mark.spec("LOG-3")
def test_gaps() -> None:
    assert gap() == "--- n2: 4.1 KB missing (file truncated) ---"
    assert gap(lost_bytes=None, cause="power_cut", stream="stderr") == (
        "--- n2 stderr: an unknown amount missing (power cut) ---"
    )
    assert gap(lost_bytes=12, cause="quota", offset=1 << 20) == (
        "--- n2: truncated by quota at 1 MiB, 12 B missing ---"
    )
    assert "␛" in gap(node="n\x1b2")


@pytest.mark.spec("LOG-7")
def test_notes() -> None:
    assert note("end", words="completed, exit 0", lines=0) == (
        "--- end of job 42 (completed, exit 0), 0 lines missed ---"
    )
    assert note("end") == "--- end of job 42 ---"
    assert note("disconnected", words="Connection reset by peer") == (
        "--- disconnected (Connection reset by peer); trying again ---"
    )
    assert note("reconnected", seconds=3.21, lines=0) == (
        "--- reconnected after 3.2 s, 0 lines missed ---"
    )
    assert note("reconnected", node="n2", seconds=125, lines=1) == (
        "--- n2: reconnected after 2 m 5 s, 1 line missed ---"
    )
    assert note("stalled", node="n2", seconds=15) == (
        "--- n2: not answering for 15 s; what it writes comes later ---"
    )
    assert note("node_lost", node="n2") == "--- n2: node lost ---"
    told = "n2: node lost; last line 12:03:11.402"
    assert note("node_lost", node="n2", words=told) == f"--- {told} ---"
    assert note("alive") == ""
    for kind in ("archive_away", "not_archiving", "clock_corrected", "attempt_ended"):
        assert note(kind).startswith("--- ")


def test_equal_lines_are_counted() -> None:
    repeats, nobody = Repeats(), Head("", "")
    out = [line for text in "abbcccc" for line in repeats.take(nobody, text)]
    assert out == ["a", "b", "b", "c"]
    assert repeats.waiting == "  × 4"
    assert [*repeats.end(), *repeats.take(nobody, "c")] == ["  × 4", "c"]


def test_the_same_of_another_is_another_line() -> None:
    repeats = Repeats()
    heads = [Head("1 ", "n1 "), Head("2 ", "n1 "), Head("3 ", "n1 "), Head("4 ", "n2 ")]
    assert [line for head in heads for line in repeats.take(head, "x")] == [
        "1 n1 x",
        "  × 3",
        "4 n2 x",
    ]


@pytest.mark.spec("LOG-9")
def test_bar() -> None:
    rate = Rate(0.0, 0)
    rate.at(1.0, 1_000_000)
    speed = rate.at(2.0, 2_000_000)
    assert speed == 1_000_000
    text = bar("n1.batch.stdout.log", 2_000_000, 10_000_000, speed, Style(width=100))
    assert text == (
        "n1.batch.stdout.log  ████░░░░░░░░░░░░░░░░░░░░   20 %  "
        "2.0 MB of 10.0 MB  1.0 MB/s  9 s left"
    )
    assert len(bar("n" * 99, 5, 10, 0.0, Style(width=60))) <= 59
    assert "100 %" in bar("n", 0, 0, 0.0, Style(width=100))


def test_a_pattern_is_what_it_was_written_as() -> None:
    assert Highlight.read("loss=nan") == Highlight.read("loss=nan")
    assert Highlight.read("loss=nan") != Highlight.read("loss=inf")
