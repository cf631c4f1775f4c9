"""`lattice attach` without a terminal: bytes in, bytes out, errors apart, the remote code."""

from __future__ import annotations

import os
import signal
import subprocess
import threading
from typing import Any

import pytest

from lattice.domain.terminal import (
    EndCause,
    Errors,
    Exit,
    Output,
    Signal,
    Stdin,
    StdinEnd,
    TerminalMessage,
    TerminalSignal,
)
from tests.fakes.attach_server import AttachServer, FarEnd, attach_server
from tests.fakes.terminal import PROGRAM


def started(server: AttachServer, *words: str, **options: Any) -> subprocess.Popen[bytes]:
    environment = {**os.environ, "LATTICE_API_URL": server.url, "LATTICE_TOKEN": "x"}
    streams = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    return subprocess.Popen(
        [*PROGRAM, "attach", "42", *words], env=environment, bufsize=0, **{**streams, **options}
    )


def cat(far: FarEnd, message: TerminalMessage) -> None:
    if isinstance(message, Stdin):
        far.say(Output(message.text))
    elif isinstance(message, StdinEnd):
        far.say(Errors(b"err\n"), Exit(cause=EndCause.EXITED, code=9), last=True)


@pytest.mark.spec("ATTACH-3")
def test_bytes_pass_as_they_are_and_errors_apart() -> None:
    sent = bytes(range(256)) * 4000 + b"\r~.\r"
    with attach_server(cat) as server:
        program = started(server, "--", "cat")
        out, errors = program.communicate(sent, timeout=60)
    assert out == sent
    assert errors == b"err\n"
    assert program.returncode == 9
    assert server.starts[0]["terminal"] == ""
    assert server.starts[0]["command"] == ["cat"]


@pytest.mark.spec("ATTACH-3")
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_a_signal_is_passed_on(number: signal.Signals) -> None:
    def die(far: FarEnd, message: TerminalMessage) -> None:
        if isinstance(message, Signal):
            far.say(Exit(cause=EndCause.SIGNALLED, code=128 + number), last=True)

    with attach_server(die) as server:
        program = started(server)
        server.far_end.say(Output(b"ready"))
        assert program.stdout is not None
        assert program.stdout.read(5) == b"ready"
        program.send_signal(number)
        _, errors = program.communicate(timeout=60)
    assert program.returncode == 128 + number
    assert errors == b""
    asked = TerminalSignal(number.name.removeprefix("SIG"))
    assert Signal(asked) in server.far_end.heard


@pytest.mark.spec("ATTACH-3")
def test_a_reader_that_leaves_ends_it() -> None:
    def go_on(far: FarEnd, message: TerminalMessage) -> None:
        if isinstance(message, Signal):
            far.say(Exit(cause=EndCause.SIGNALLED, code=129), last=True)

    with attach_server(go_on) as server:
        program = started(server)
        assert program.stdout is not None
        server.far_end.say(Output(b"x"))
        assert program.stdout.read(1) == b"x"
        program.stdout.close()
        server.far_end.say(Output(b"nobody reads this"))
        assert program.wait(30) == 141
        assert Signal(TerminalSignal.HUP) in server.far_end.heard
        for stream in (program.stdin, program.stderr):
            assert stream is not None
            stream.close()


@pytest.mark.spec("ATTACH-3")
def test_what_is_read_slowly_is_sent_slowly() -> None:
    block, blocks = bytes(32 * 1024), 300
    with attach_server() as server:
        program = started(server, stdin=subprocess.DEVNULL)
        said = threading.Event()

        def say() -> None:
            server.far_end.say(*(Output(block) for _ in range(blocks)))
            said.set()
            server.far_end.say(Exit(cause=EndCause.EXITED, code=0), last=True)

        thread = threading.Thread(target=say)
        thread.start()
        assert program.stdout is not None
        program.stdout.read(1)
        # 9 MB are to come, and nobody reads: what is under way is bounded by the pipe's window.
        assert not said.wait(0.5)
        rest = program.communicate(timeout=60)[0]
        thread.join()
    assert len(rest) == len(block) * blocks - 1
    assert program.returncode == 0


@pytest.mark.spec("CLI-2")
@pytest.mark.parametrize(
    ("word", "code", "said"),
    [
        (
            {"type": "ended", "reason": "job_ended", "words": "job 42 ended: TIMEOUT"},
            79,
            b"job 42 ended: TIMEOUT\n",
        ),
        ({"type": "ended", "reason": "token_expired", "words": "over"}, 77, b"over\n"),
        ({"type": "ended", "reason": "preempted", "words": "[lattice] p"}, 75, b"[lattice] p\n"),
        ({"type": "ended", "reason": "of tomorrow", "words": "new"}, 75, b"new\n"),
        ({"type": "error", "code": "login_required", "message": "m"}, 4, b"m\n"),
        (
            {"type": "error", "code": "unavailable", "message": "m", "hint": "h"},
            75,
            b"m\nHint: h\n",
        ),
    ],
)
def test_an_end_from_outside_has_its_code(word: dict[str, Any], code: int, said: bytes) -> None:
    with attach_server() as server:
        server.instead = word
        program = started(server, stdin=subprocess.DEVNULL)
        out, errors = program.communicate(timeout=60)
    assert (program.returncode, out) == (code, b"")
    assert errors.startswith(said)
