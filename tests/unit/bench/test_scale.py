"""What the benches of many nodes make of their rounds."""

from __future__ import annotations

import pytest

from bench import logs_many_nodes, scale_link
from bench.log_viewers import Viewer
from bench.simulated_logs import PUSH_BYTES, LogFile
from lattice.base.clock import SystemClock
from lattice.domain.logs import LogKind
from lattice.features.logs.model import LogBlock


def test_a_relink_has_a_figure_for_each_side() -> None:
    rounds = [
        scale_link.Round(
            links=2000, linked_s=10.0, memory_kib=200_000, idle_cores=0.2, lost=1000,
            held_s=held_s, published_s=held_s + 1, server_s=4.0, agents_s=5.0, full_kib=300 * 1024,
        )
        for held_s in (12.0, 4.0, 6.0)
    ]  # fmt: skip
    found = {each.name: each for each in scale_link.figures(rounds)}
    again = found["all linked again after a replica's death"]
    assert (again.value, again.ok) == (6.0, False)
    relink = "processor time of a relink after a replica's death"
    assert found[f"{relink}, the server a link"].value == pytest.approx(4.0)
    assert found[f"{relink}, the agents a link"].value == pytest.approx(5.0)
    assert found["replica memory a link"].value == 100.0
    assert found["replica processor a link, idle"].value == pytest.approx(100.0)
    assert found["extrapolated: 10000 linked again"].value == pytest.approx(60.0)


def test_what_the_server_does_anyway_is_no_cost_of_a_line() -> None:
    lines = logs_many_nodes.LINES
    used = {"server": 0.2 * 10 + lines * 20 * 0.25e-3, "agents": 1.0, "viewers": 1.0}
    one = logs_many_nodes.Round(
        first_s=3.0, last_s=4.0, opening={"server": 2.0, "agents": 1.0, "viewers": 0.5},
        quiet_cores={"server": 0.2, "agents": 0.1, "viewers": 0.1}, lines=used, lines_took_s=10.0,
    )  # fmt: skip
    found = {each.name: each for each in logs_many_nodes.figures([one] * 3, 1000, 20)}
    line = found["1000 nodes, 20 viewers: server processor a line and viewer"]
    assert line.value == pytest.approx(0.25)
    assert (line.goal, line.ok) == (0.3, True)
    whole = found["1000 nodes, 20 viewers: the same with what the server does anyway"]
    assert whole.value == pytest.approx(0.25 + 2000 / lines / 20)
    came = found["1000 nodes, 20 viewers: lines of all nodes came to all viewers after"]
    assert (came.value, came.ok) == (4.0, True)


def test_what_is_written_is_sent_in_pieces_at_their_offsets() -> None:
    file = LogFile("0.0")
    file.write(b"one\ntwo\n", 1)
    text = b"x" * (PUSH_BYTES - 1) + b"\nrest\n"
    first, second = (each.pieces[0] for each in file.write(text, 2))
    assert (first.offset, first.line, len(first.text)) == (8, 2, PUSH_BYTES)
    assert (second.offset, second.line, second.text) == (8 + PUSH_BYTES, 3, b"rest\n")
    again = file.piece(4)
    assert (again.line, again.time_ms, again.text[:4]) == (1, 1, b"two\n")


def block(node: str, count: int, *, unfinished: bool = False) -> LogBlock:
    return LogBlock(
        node=node, stream=LogKind.STDOUT, source="0.0", seq=0, count=count, offset=0,
        time=SystemClock().now(), text="x", unfinished=unfinished,
    )  # fmt: skip


def test_a_viewer_is_complete_with_a_whole_line_of_every_node() -> None:
    viewer = Viewer()
    viewer.take(block("n1", 2), 2)
    viewer.take(block("n2", 0, unfinished=True), 2)
    assert (viewer.lines, viewer.complete_at) == (2, 0.0)
    viewer.take(block("n2", 1), 2)
    assert viewer.lines == 3
    assert viewer.complete_at
