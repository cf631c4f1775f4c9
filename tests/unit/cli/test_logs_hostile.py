"""Attacks 15 and 16 through the whole program: what jobs write is shown, and never obeyed."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from lattice.domain.logs import LogKind, LogSource, Piece, Position, StreamName
from lattice.features.logs.lines import LineAssembler
from lattice.features.logs.service.records import block
from tests.examples import examples
from tests.fakes import answers, logs
from tests.fakes.hostile_text import ATTACKS
from tests.fakes.terminal import Terminal
from tests.fakes.web import Web, web

STREAM = "/v1/allocations/42/logs/stream"
STREAMS = "/v1/allocations/42/logs/streams"
END = logs.note("end", words="completed, exit 0", lines=0)
WAYS = [["-f"], ["--no-pager"], ["-t", "--prefix", "node"], ["-f", "-H", "[a-z]+"]]


@pytest.fixture(scope="module")
def server() -> Iterator[Web]:
    card = answers.card(answers.allocation(42))
    with web({STREAMS: logs.streams(), "/v1/allocations/42": card}) as running:
        yield running


@pytest.fixture
def environment(tmp_path: Path, server: Web) -> dict[str, str]:
    return {
        "PATH": os.environ["PATH"],
        "HOME": str(tmp_path),
        "LANG": "C.UTF-8",
        "TERM": "xterm-256color",
        "LATTICE_API_URL": server.url,
        "LATTICE_TOKEN": "t0k3n",
    }


def as_sent(text: bytes, node: str = "n1", **changes: Any) -> dict[str, Any]:
    """What a server makes of a job's bytes, by its own code."""
    lines = LineAssembler(Position()).take(Piece(Position(), 1_000, False, text))
    assert lines is not None
    made = block(StreamName(node, LogKind.STDOUT, LogSource("batch")), lines)
    return logs.block(made.text, count=made.count, cut=made.cut, node=node, **changes)


@pytest.mark.spec("LOG-7")
@pytest.mark.parametrize("words", WAYS, ids=" ".join)
def test_a_hostile_log_leaves_the_terminal_as_it_was(
    environment: dict[str, str], server: Web, words: list[str]
) -> None:
    hostile = b"".join(text + b"\n" for text, _ in ATTACKS.values())
    server.routes[STREAM] = logs.serving([as_sent(b"first\n" + hostile + b"last\n"), END])
    # At its end the terminal compares its own state with that of a fresh one.
    terminal = Terminal(environment, "42", *words, columns=160, lines=60)
    rows = terminal.end(0)
    assert [row for row in rows if row.endswith("first")]
    assert [row for row in rows if row.endswith("last")]
    for name, (_, shown) in ATTACKS.items():
        assert [row for row in rows if shown in row], (name, rows)
    assert not [row for row in rows if "rm -rf" in row]


@pytest.mark.spec("LOG-7")
def test_a_line_of_a_hundred_megabytes(environment: dict[str, str], server: Web) -> None:
    """It arrives cut, and says so; a server that does not cut it is not believed."""
    assembler, at = LineAssembler(Position()), Position()
    piece = b"x" * (1024 * 1024)
    for _ in range(100):
        assert assembler.take(Piece(at, 0, False, piece)) is None
        at = at.past(piece)
    lines = assembler.take(Piece(at, 0, False, b"\nnext\n"))
    assert lines is not None
    made = block(StreamName("n1", LogKind.STDOUT, LogSource("batch")), lines)
    assert len(made.text) < 70_000
    honest = logs.block(made.text, count=made.count, cut=made.cut)
    careless = logs.block("y" * 3_000_000 + "\nafter\n", 2, count=2)
    server.routes[STREAM] = logs.serving([honest, careless, END])
    terminal = Terminal(environment, "42", "-f", columns=160, lines=40)
    rows = terminal.end(0)
    text = "".join(rows)
    assert sum(row.count("y") for row in rows if set(row) == {"y"}) <= 65536
    assert sum(row.count("x") for row in rows if set(row) == {"x"}) <= 65536
    assert text.count("[cut: 64 KB of this line are shown") == 2
    assert {"next", "after"} <= set(rows)


@pytest.mark.spec("CLI-1", "LOG-7")
def test_names_of_nodes_jobs_and_errors(environment: dict[str, str], server: Web) -> None:
    """Attack 16: they come from outside too."""
    evil = "n\x1b]0;owned\x07<script>"
    server.routes[STREAM] = logs.serving(
        [
            as_sent(b"a\n"),
            as_sent(b"b\n", node=evil),
            logs.gap(node=evil),
            logs.note("disconnected", node=evil, words="no\x1b[2J\nway"),
            logs.note("end", words="failed\x1b[6n", lines=0),
        ]
    )
    terminal = Terminal(environment, "42", "-f", columns=120, lines=40)
    rows = terminal.end(0)
    shown = "n␛]0;owned␇<script>"
    assert f"{shown} │ b" in rows
    assert f"--- {shown}: 4.1 KB missing (file truncated) ---" in rows
    assert any("no␛[2J\\nway" in row for row in rows)
    assert any("failed␛[6n" in row for row in rows)


PIECES = st.sampled_from([text for text, _ in ATTACKS.values()]) | st.binary(max_size=6)


@pytest.mark.spec("LOG-7")
@settings(max_examples=examples(0.4), suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.lists(st.lists(PIECES, max_size=6).map(b"".join), min_size=1, max_size=30))
def test_any_mixture(environment: dict[str, str], server: Web, lines: list[bytes]) -> None:
    text = b"".join(line.replace(b"\n", b"") + b"\n" for line in lines)
    server.routes[STREAM] = logs.serving([as_sent(text), END])
    terminal = Terminal(environment, "42", "-f", columns=200, lines=60)
    terminal.end(0)
    unsafe = re.sub(rb"\x1b\[[\d;:]*[mK]|\r", b"", terminal.written).replace(b"\n", b"")
    assert not re.search(rb"[\x00-\x08\x0b-\x1f\x7f]", unsafe.replace(b"\t", b"")), unsafe
