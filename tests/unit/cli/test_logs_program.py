"""`lattice logs` as people run it: its own process, real sockets, a real terminal, a real pager."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import msgspec
import pyte
import pytest

from lattice.domain.logchunk import compress
from lattice.domain.logs import LogKind
from lattice.features.logs.blocks import MEDIA_TYPE, BlockWriter, LinesFrame, PackedLines
from lattice.features.logs.model import LogNote, NoteKind
from tests.fakes import answers, logs
from tests.fakes.terminal import PROGRAM, Terminal
from tests.fakes.web import Answer, Web, web

STREAM = "/v1/allocations/42/logs/stream"
STREAMS = "/v1/allocations/42/logs/streams"
END = logs.note("end", words="completed, exit 0", lines=0)


@pytest.fixture
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
        "TERM": "xterm",
        "LATTICE_API_URL": server.url,
        "LATTICE_TOKEN": "t0k3n",
    }


def run(environment: dict[str, str], *words: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [*PROGRAM, "logs", *words],
        env=environment,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )


def going_on(*pieces: bytes) -> Callable[[Any], Answer]:
    """A stream that begins so, and then only shows that it is alive."""
    stop = threading.Event()

    def body() -> Iterator[bytes]:
        yield from pieces
        while not stop.wait(0.1):
            yield logs.ALIVE

    return lambda _: logs.streamed(body())


@pytest.mark.spec("LOG-4")
def test_all_of_it_in_a_pipe(environment: dict[str, str], server: Web) -> None:
    hostile = "a\x1b]52;c;ZXZpbA==\x07\u202e\n"
    server.routes[STREAM] = logs.serving(
        [logs.block("one\n"), logs.block(hostile, 1), logs.gap(node="n1", seq=2), END], cuts=(1,)
    )
    done = run(environment, "42")
    assert done.returncode == 0
    assert done.stdout == "one\na␛]52;c;ZXZpbA==␇\\u202e\n"
    disconnected, *told = done.stderr.splitlines()
    assert disconnected.startswith("--- disconnected (")
    assert re.fullmatch(r"--- reconnected after \d+\.\d s, 0 lines missed ---", told[0])
    assert told[1:] == [
        "--- n1: 4.1 KB missing (file truncated) ---",
        "--- end of job 42 (completed, exit 0), 0 lines missed ---",
    ]
    quiet = run(environment, "42", "-q")
    assert quiet.stderr == "--- n1: 4.1 KB missing (file truncated) ---\n"


@pytest.mark.spec("LOG-4")
def test_json_lines(environment: dict[str, str], server: Web) -> None:
    server.routes[STREAM] = logs.serving([logs.block("one\ntwo\x1b[2J\n", 4, rank=1), END])
    for form in ("json", "ndjson"):
        done = run(environment, "42", "-o", form)
        found = [json.loads(line) for line in done.stdout.splitlines()]
        assert [each.get("seq") for each in found] == [4, 5, None]
        assert found[1]["text"] == "two\x1b[2J"
        assert "\x1b" not in done.stdout
        assert done.stderr == ""


def as_blocks(*frames: LinesFrame | PackedLines, last: LogNote) -> bytes:
    writer = BlockWriter(msgspec.json.encode)
    sent = [writer.record(each, f"c-{number}") for number, each in enumerate(frames)]
    return b"".join([writer.begin, *sent, writer.record(last, ""), writer.end])


@pytest.mark.spec("LOG-4", "LOG-6", "LOG-7")
def test_blocks_of_bytes_and_stored_frames(environment: dict[str, str], server: Web) -> None:
    name, time_ms = ("n1", LogKind.STDOUT, "batch", None), 1_763_215_331_402
    hostile = b"\x1b]0;x\x07\n"
    text = b"three\nfo"
    body = as_blocks(
        LinesFrame(*name, 0, 1, 0, time_ms, False, 0, False, b"one\n"),
        LinesFrame(*name, 1, 1, 4, time_ms, False, 0, False, hostile),
        PackedLines(*name, 2, 1, 40, False, ((8, time_ms),), b"", 8, compress(text)),
        PackedLines(*name, 3, 1, 48, False, ((3, time_ms),), None, 3, compress(b"ur\n")),
        last=LogNote(kind=NoteKind.END, time=datetime.now(UTC), words="completed", lines=0),
    )
    pieces = [body[at : at + 7] for at in range(0, len(body), 7)]
    server.routes[STREAM] = lambda _: Answer(pieces=pieces, headers={"Content-Type": MEDIA_TYPE})
    done = run(environment, "42")
    assert done.returncode == 0, done.stderr
    assert done.stdout == "one\n␛]0;x␇\nthree\nfour\n"
    assert server.requests[-1].headers["accept"] == f"{MEDIA_TYPE};zstd=1, text/event-stream"
    done = run(environment, "42", "-o", "json")
    found = [json.loads(line) for line in done.stdout.splitlines()]
    assert [each.get("seq") for each in found] == [0, 1, 2, 3, None]
    done = run(environment, "42", "-t", "--utc")
    assert done.stdout.splitlines()[-1] == "2025-11-15T14:02:11.402Z four"


@pytest.mark.spec("CLI-2")
def test_exit_codes(environment: dict[str, str], server: Web) -> None:
    server.routes[STREAM] = Answer(answers.refusal("not_found", "Not there."), 404)
    done = run(environment, "42")
    assert (done.returncode, done.stdout) == (102, "")
    assert done.stderr == "Not there.\nHint: Do something else.\n"
    assert run(environment).returncode == 2
    assert run(environment, "42", "--since", "never").returncode == 2
    server.routes[STREAM] = logs.serving([END])
    server.routes["/v1/allocations/42"] = answers.card(answers.allocation(42, state="failed"))
    assert run(environment, "42", "--exit-status").returncode == 100
    inside = environment | {"SLURM_JOB_ID": "42"}
    assert run(inside, "--exit-status").returncode == 100


def test_a_reader_that_leaves_early(environment: dict[str, str], server: Web) -> None:
    server.routes[STREAM] = lambda _: logs.streamed(
        logs.event(logs.block("line\n" * 1000, number * 1000)) for number in range(100_000)
    )
    process = subprocess.Popen(
        [*PROGRAM, "logs", "42"],
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )
    assert process.stdout is not None
    assert process.stderr is not None
    process.stdout.read(10)
    process.stdout.close()
    assert process.wait(30) == 141
    assert process.stderr.read() == b""
    process.stderr.close()


@pytest.mark.spec("LOG-4", "LOG-7")
def test_following_on_a_terminal(environment: dict[str, str], server: Web) -> None:
    begun = [logs.event(logs.block("start\n" + "same\n" * 5, 0), "1")]
    begun += [logs.event(logs.block("half a li", 6, count=0, unfinished=True), "2")]
    server.routes[STREAM] = going_on(*begun)
    terminal = Terminal(environment, "42", "-f")
    terminal.until(lambda rows: rows == ["start", "same", "half a li"])
    terminal.process.send_signal(signal.SIGINT)
    assert terminal.end(130) == ["start", "same", "  × 5", "half a li"]


@pytest.mark.spec("LOG-4", "LOG-7")
def test_a_job_that_ends_while_it_is_followed(environment: dict[str, str], server: Web) -> None:
    server.routes[STREAMS] = logs.streams(logs.stream(), logs.stream(node="n2"))
    server.routes[STREAM] = logs.serving(
        [logs.block("a\n"), logs.block("\x1b[31mb\n", node="n2"), END], cuts=(1,)
    )
    rows = Terminal(environment, "42", "-f").end(0)
    assert rows[0] == "n1 │ a"
    assert re.fullmatch(r"--- reconnected after \d+\.\d s, 0 lines missed ---", rows[1])
    assert rows[2:] == ["n2 │ b", "--- end of job 42 (completed, exit 0), 0 lines missed ---"]


@pytest.mark.spec("LOG-7")
@pytest.mark.parametrize("words", [["-f"], ["--no-pager"], ["--timestamps", "--prefix", "node"]])
def test_a_hostile_log_leaves_the_terminal_as_it_was(
    environment: dict[str, str], server: Web, words: list[str]
) -> None:
    """Attack 15, through the whole program."""
    hostile = (
        "\x1b[?1049h\x1b[?25l\x1b]0;owned\x07\x1b]52;c;ZXZpbA==\x07\x1b[6n\x1bP+q\x1b\\\x9b2J\n"
        "\x1b(0\x0e\x1b[31m never reset\n\x1b[3;5r\x1b[4h\x00\u202e\n"
        "good\revil\n"
    )
    server.routes[STREAM] = logs.serving([logs.block(hostile), END])
    terminal = Terminal(environment, "42", *words, columns=200)
    rows = terminal.end(0)
    screen = terminal.screen
    fresh = pyte.Screen(200, 24)
    assert (screen.mode, screen.margins, screen.title) == (fresh.mode, fresh.margins, "")
    assert (screen.charset, screen.g0_charset) == (fresh.charset, fresh.g0_charset)
    assert any("␛]52;c;ZXZpbA==␇" in row for row in rows)
    assert any("never reset" in row for row in rows)


def test_a_long_log_has_a_pager(environment: dict[str, str], server: Web, tmp_path: Path) -> None:
    pager = tmp_path / "pager"
    pager.write_text('#!/bin/sh\necho "paging with $LESS"\nexec cat\n')
    pager.chmod(0o755)
    server.routes[STREAM] = logs.serving([logs.block("".join(f"{n}\n" for n in range(100))), END])
    rows = Terminal(environment | {"PAGER": str(pager)}, "42").end(0)
    assert rows[0] == "paging with FRX"
    assert rows[1:101] == [str(n) for n in range(100)]
    plain = Terminal(environment | {"PAGER": str(pager)}, "42", "--no-pager").end(0)
    assert plain[:100] == [str(n) for n in range(100)]
    none = Terminal(environment | {"PAGER": "no-such-pager"}, "42").end(0)
    assert none[:100] == [str(n) for n in range(100)]
    server.routes[STREAM] = logs.serving([logs.block("short\n"), END])
    short = Terminal(environment | {"PAGER": str(pager)}, "42").end(0)
    assert short[0] == "short"


def test_a_pager_that_is_left_early(
    environment: dict[str, str], server: Web, tmp_path: Path
) -> None:
    pager = tmp_path / "pager"
    pager.write_text("#!/bin/sh\nhead -n 3\n")
    pager.chmod(0o755)
    server.routes[STREAM] = lambda _: logs.streamed(
        logs.event(logs.block("".join(f"{n}\n" for n in range(1000)), number * 1000))
        for number in range(10_000)
    )
    rows = Terminal(environment | {"PAGER": str(pager)}, "42").end(0)
    assert rows == ["0", "1", "2"]


@pytest.mark.spec("LOG-9")
def test_download(environment: dict[str, str], server: Web, tmp_path: Path) -> None:
    body = os.urandom(300_000)
    turns = [True, False]

    def raw(request: Any) -> Answer:
        offset = int(request.query["offset"][0])
        cut = turns.pop(0)
        end = offset + 100_000 if cut else len(body)
        head = {"Lattice-End-Offset": str(len(body))}
        return Answer(pieces=[body[offset:end]], cut=cut, headers=head)

    server.routes[STREAMS] = logs.streams(logs.stream(bytes=len(body)))
    server.routes["/v1/allocations/42/logs/raw"] = raw
    done = run(environment, "42", "--download", str(tmp_path / "logs"))
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "logs/n1.batch.stdout.log").read_bytes() == body
    assert [request.query["offset"] for request in server.requests[1:]] == [["0"], ["100000"]]
    assert done.stderr == f"1 file, 300.0 KB, in {tmp_path}/logs\n"
    turns[:] = [False]
    terminal = Terminal(environment, "42", "--download", str(tmp_path / "more"), columns=120)
    terminal.end(0)
    assert "░".encode() in terminal.written


@pytest.mark.spec("CLI-1")
def test_the_usual_command_starts_light() -> None:
    code = (
        "import sys; from lattice.cli.main import main; main(['logs', '42']);"
        "heavy = {'click', 'msgspec', 'yaml', 'httpx2', 'asyncio', 'http.client', 'subprocess',"
        " 'pathlib', 'shutil'};"
        "assert not heavy & set(sys.modules), heavy & set(sys.modules)"
    )
    environment = {"LATTICE_API_URL": "http://127.0.0.1:9", "LATTICE_TOKEN": "x"}
    subprocess.run(
        [sys.executable, "-c", code], check=True, env=environment, stderr=subprocess.DEVNULL
    )
