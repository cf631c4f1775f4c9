"""Many writers that write the same take one line, and nobody's lines change their order."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lattice.base.style import Style
from lattice.domain.logs import LogKind
from lattice.features.logs.model import LogBlock, LogNote, NoteKind
from lattice.features.logs.render.alike import Alike, Repeats, shown
from lattice.features.logs.render.labels import Labels, LabelWriter, nodes_named
from lattice.features.logs.render.lines import Head, LineText
from lattice.features.logs.render.marks import NotesAlike, note_mark
from tests.fakes.shell import NOW

STYLE = Style(width=100)


def head(node: str, rank: int | None = None, kind: LogKind = LogKind.STDOUT) -> Head:
    return Head("", f"{node} ", LabelWriter(node, rank, kind))


def block(node: str, text: str, rank: int | None = None) -> LogBlock:
    return LogBlock(
        node=node, stream=LogKind.STDOUT, source="0", rank=rank, seq=0, count=text.count("\n"),
        offset=0, time=NOW, text=text,
    )  # fmt: skip


def together(*blocks: LogBlock, labels: Labels | None = None, style: Style = STYLE) -> list[str]:
    known = [(each.node, each.rank) for each in blocks]
    lines = LineText(style, labels or Labels("auto", style, known), now=NOW)
    alike = Alike()
    for each in blocks:
        alike.take(lines.head(each), lines.lines(each))
    return shown(alike.end(), lines, Repeats())


writing = st.lists(st.tuples(st.integers(0, 4), st.sampled_from("abc")), max_size=40)


@pytest.mark.spec("LOG-7")
@given(writing)
def test_every_writer_s_lines_are_all_there_in_their_order(told: list[tuple[int, str]]) -> None:
    alike = Alike()
    for writer, text in told:
        alike.take(head(f"n{writer}"), [text])
    assert alike.held == len(told)
    groups = alike.end()
    for writer in range(5):
        name = LabelWriter(f"n{writer}", None, LogKind.STDOUT)
        out = [each.text for each in groups for one in each.heads if one.writer == name]
        assert out == [text for who, text in told if who == writer]
    assert (alike.held, alike.end()) == (0, [])


@pytest.mark.spec("LOG-7")
@given(st.permutations([(node, text) for node in range(6) for text in "x"]))
def test_what_all_write_once_is_one_line(told: list[tuple[int, str]]) -> None:
    alike = Alike()
    for node, text in told:
        alike.take(head(f"n{node}"), [text])
    (group,) = alike.end()
    assert group.together
    assert len(group.heads) == 6


@pytest.mark.spec("LOG-7")
def test_a_crowd_that_starts_alike() -> None:
    start = "boot\nready\n"
    blocks = [block(f"n{number:02}", start) for number in range(1, 65)]
    blocks[6] = block("n07", "boot\nno disk\n")
    assert together(*blocks) == [
        "×64 │ boot  (all)",
        "×63 │ ready  (all but n07)",
        "n07 │ no disk",
    ]


@pytest.mark.spec("LOG-7")
def test_two_of_a_kind_are_shorter_as_they_are() -> None:
    assert together(block("n1", "a\n"), block("n2", "a\n")) == ["n1 │ a", "n2 │ a"]


@pytest.mark.spec("LOG-7")
def test_standard_error_is_not_put_with_output() -> None:
    alike = Alike()
    for node in ("n1", "n2", "n3"):
        alike.take(head(node), ["a"])
        alike.take(head(node, kind=LogKind.STDERR), ["a"])
    assert len(alike.end()) == 2


@pytest.mark.spec("LOG-7")
def test_whose_they_are_is_told_shortly() -> None:
    def named(*writers: tuple[str, int | None], labels: Labels) -> str:
        return labels.named(LabelWriter(*each, LogKind.STDOUT) for each in writers)

    nodes = [(f"n{number}", None) for number in range(1, 41)]
    labels = Labels("auto", STYLE, nodes)
    assert named(*nodes, labels=labels) == "all"
    assert named(*nodes[1:], labels=labels) == "all but n1"
    assert named(*nodes[:20], labels=labels) == "n[1-20]"
    assert named(*nodes[::2], labels=labels) == "20 of 40 nodes"
    more = Labels("auto", STYLE, nodes, node_count=1000)
    assert named(*nodes, labels=more) == "n[1-40]", "there are nodes that were not heard of yet"
    ranks = [("n1", rank) for rank in range(4)] + [("n2", rank) for rank in range(4, 8)]
    ranked = Labels("auto", STYLE, ranks)
    assert named(*ranks[:7], labels=ranked) == "all but n2:7"
    assert named(*ranks[:2], *ranks[4:6], labels=ranked) == "on all nodes"


def test_it_does_not_cost_a_second_row() -> None:
    blocks = [block(f"n{number}", "x" * 30 + "\n") for number in range(4)]
    (line,) = together(*blocks, style=Style(width=40))
    assert line == "×4 │ " + "x" * 30
    long = [block(f"n{number}", "x" * 90 + "\n") for number in range(4)]
    (line,) = together(*long, style=Style(width=40))
    assert line.endswith("x  (all)"), "it has several anyway"


@pytest.mark.spec("LOG-7")
def test_names_that_are_none() -> None:
    """Attack 16."""
    assert nodes_named(["n1", "n\x1b[2J", "a b"]) == "n1,n␛[2J,a b"
    hostile = [block(f"n{number}\x1b]0;x\x07", "a\n") for number in range(4)]
    assert all("\x1b" not in line for line in together(*hostile))


def test_room_is_left_for_those_that_come_later() -> None:
    labels = Labels("auto", STYLE, [("n1", 0), ("n2", 1)], [("n1", 0), ("n100", 799)])
    assert labels.before(block("n1", "", 0)) == "n1:0     │ "
    assert labels.before(block("n100", "", 799)) == "n100:799 │ "


@pytest.mark.spec("LOG-7")
def test_what_happens_to_hundreds_is_told_once() -> None:
    notes = NotesAlike()
    for number in range(1, 301):
        name = f"n{number:03}"
        words = f"The agent of node {name} did not answer within 5 s."
        note = LogNote(kind=NoteKind.DISCONNECTED, time=NOW, node=name, words=words)
        notes.take(note)
    notes.take(LogNote(kind=NoteKind.NODE_LOST, time=NOW, node="n999"))
    assert [note_mark(each, "42") for each in notes.end()] == [
        "--- n[001-300]: disconnected (The agent did not answer within 5 s); trying again ---",
        "--- n999: node lost ---",
    ]
    assert notes.end() == []
    assert not notes.nodes
