"""`lattice attach` on a real terminal, against a small real server: what is seen, what is left.

`Terminal.end` holds every one of them to the promise that modes, picture and cursor are as before.
"""

from __future__ import annotations

import os
import shlex
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from lattice.domain.terminal import (
    EndCause,
    Exit,
    Output,
    Resize,
    Signal,
    Stdin,
    TerminalMessage,
    TerminalSignal,
)
from tests.fakes.attach_server import AttachServer, FarEnd, attach_server
from tests.fakes.terminal import PROGRAM, Terminal

FULL_SCREEN = b"\x1b[?1049h\x1b[?25l\x1b[?2004h\x1b[?1000h\x1b[?1h\x1b=\x1b[2;1Hpicture\r"


def echo(far: FarEnd, message: TerminalMessage) -> None:
    """A shell of a kind: says what was typed, and ends by `exit N`."""
    if isinstance(message, Signal) and message.name is TerminalSignal.HUP:
        far.say(Exit(cause=EndCause.SIGNALLED, code=129), last=True)
    if not isinstance(message, Stdin):
        return
    if message.text.startswith(b"exit "):
        far.say(Exit(cause=EndCause.EXITED, code=int(message.text[5:])), last=True)
    else:
        far.say(
            Output(b"<" + message.text.replace(b"\r", b"\\r").replace(b"\x03", b"^C") + b">\r\n")
        )


@contextmanager
def attached(*words: str) -> Iterator[tuple[AttachServer, Terminal]]:
    with attach_server(echo) as server:
        environment = {
            **os.environ,
            "LATTICE_API_URL": server.url,
            "LATTICE_TOKEN": "secret",
            "TERM": "xterm-256color",
        }
        terminal = Terminal(environment, "42", *words, program=(*PROGRAM, "attach"))
        try:
            yield server, terminal
        finally:
            if terminal.process.poll() is None:
                terminal.process.kill()
                terminal.process.wait()


@contextmanager
def in_a_shell(server: AttachServer) -> Iterator[Terminal]:
    """A real one around it: whoever leads a session of its own can't be suspended."""
    environment = {
        **os.environ,
        "LATTICE_API_URL": server.url,
        "LATTICE_TOKEN": "x",
        "PS1": "local$ ",
        "TERM": "dumb",
    }
    shell = Terminal(environment, program=("bash", "--norc", "--noediting", "-i"))
    try:
        shell.until(shows("local$"))
        shell.type(f"{shlex.join(PROGRAM)} attach 42 -n n1\n".encode())
        shell.until(shows("helps"))
        yield shell
    finally:
        if shell.process.poll() is None:
            shell.process.kill()
            shell.process.wait()


def shows(text: str) -> object:
    return lambda rows: any(text in row for row in rows)


@pytest.mark.spec("ATTACH-1", "ATTACH-2")
def test_keys_go_out_and_output_comes_in() -> None:
    with attached("-n", "n7", "--", "top", "-b") as (server, terminal):
        rows = terminal.until(shows("~? helps"))
        assert rows == ["--- n1 · job 42 · ~? helps ---"]
        terminal.type(b"hello\r")
        terminal.until(shows("<hello\\r>"))
        terminal.type(b"\x03")
        terminal.until(shows("<^C>"))
        terminal.type(b"exit 7")
        terminal.end(7)
    (start,) = server.starts
    assert start["command"] == ["top", "-b"]
    assert start["node"] == "n7"
    assert start["terminal"] == "xterm-256color"
    assert (start["rows"], start["columns"]) == (24, 80)
    assert start["resume"] is False
    assert len(start["session"]) == 32
    assert server.headers[0]["authorization"] == "Bearer secret"
    assert "secret" not in server.headers[0]["request"]
    assert Stdin(b"\x03") in server.far_end.heard
    assert server.closed[-1][:2] == (1000).to_bytes(2, "big")


@pytest.mark.spec("ATTACH-2")
def test_a_new_size_is_passed_on() -> None:
    with attached("-n", "n1") as (server, terminal):
        terminal.until(shows("helps"))
        terminal.resize(50, 132)
        server.far_end.wait_for(lambda heard: Resize(50, 132) in heard)
        terminal.type(b"exit 0")
        terminal.end(0)


@pytest.mark.spec("ATTACH-3")
def test_tilde_dot_ends_it_and_hangs_up_the_shell() -> None:
    with attached("-n", "n1") as (server, terminal):
        terminal.until(shows("helps"))
        terminal.type(b"~?")
        terminal.until(shows("end this session"))
        terminal.type(b"\r~.")
        rows = terminal.end(129)
    assert "--- session ended by ~. ---" in rows
    assert Signal(TerminalSignal.HUP) in server.far_end.heard


@pytest.mark.spec("ATTACH-3")
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP, signal.SIGINT])
def test_a_signal_ends_it_and_puts_the_terminal_right(number: signal.Signals) -> None:
    with attached("-n", "n1") as (server, terminal):
        terminal.until(shows("helps"))
        server.far_end.say(Output(FULL_SCREEN))
        terminal.until(shows("picture"))
        terminal.process.send_signal(number)
        terminal.end(128 + number)


@pytest.mark.spec("ATTACH-3")
def test_though_it_is_killed_the_terminal_is_put_right() -> None:
    with attach_server(echo) as server, in_a_shell(server) as shell:
        server.far_end.say(Output(FULL_SCREEN))
        shell.until(shows("picture"))
        (child,) = (
            Path(f"/proc/{shell.process.pid}/task/{shell.process.pid}/children").read_text().split()
        )
        os.kill(int(child), signal.SIGKILL)
        shell.until(shows("Killed"))
        shell.until(lambda _: b"\x1b[?1049l" in shell.written)
        shell.type(b"exit $?\n")
        shell.end(137)


@pytest.mark.spec("ATTACH-3", "ATTACH-4")
def test_a_server_that_ends_it_inside_a_full_screen_program_leaves_no_trace_of_that() -> None:
    with attached("-n", "n1") as (server, terminal):
        terminal.until(shows("helps"))
        server.far_end.say(Output(FULL_SCREEN))
        terminal.until(shows("picture"))
        words = "connection to node lost — attach session ended"
        assert server.connection is not None
        server.connection.say({"type": "ended", "reason": "node_unreachable", "words": words})
        rows = terminal.end(75)
    assert words in rows


@pytest.mark.spec("ATTACH-4")
@pytest.mark.parametrize("moment", ["idle", "typing", "output"])
def test_a_connection_that_breaks_is_made_anew_and_nothing_is_lost(moment: str) -> None:
    with attached("-n", "n1") as (server, terminal):
        terminal.until(shows("helps"))
        terminal.type(b"before\r")
        terminal.until(shows("<before\\r>"))
        assert server.connection is not None
        if moment == "output":
            server.far_end.say(*(Output(b"line %d\r\n" % number) for number in range(500)))
        server.connection.cut()
        if moment == "typing":
            terminal.type(b"x")
        terminal.type(b"after\r")
        rows = terminal.until(shows("after\\r>"))
        terminal.type(b"exit 0")
        terminal.end(0)
    assert [start["resume"] for start in server.starts] == [False, True]
    assert server.starts[0]["session"] == server.starts[1]["session"]
    assert server.starts[1]["node"] == "n1"
    typed = b"".join(each.text for each in server.far_end.heard if isinstance(each, Stdin))
    assert typed == b"before\r" + (b"x" if moment == "typing" else b"") + b"after\rexit 0"
    if moment == "output":
        lines = [row for row in rows if row.startswith("line")]
        assert lines == [f"line {number}" for number in range(500)]
    assert not any("reconnected" in row for row in rows)


@pytest.mark.spec("ATTACH-3")
def test_a_pasted_megabyte_arrives_whole() -> None:
    heard = bytearray()

    def count(far: FarEnd, message: TerminalMessage) -> None:
        if isinstance(message, Stdin):
            heard.extend(message.text)
            if len(heard) >= len(pasted):
                far.say(Exit(cause=EndCause.EXITED, code=0), last=True)

    pasted = b"".join(b"~. line %d of what was pasted\r" % number for number in range(33_000))
    assert len(pasted) > 1_000_000
    with attached("-n", "n1") as (server, terminal):
        server.far_end._answer = count
        terminal.until(shows("helps"))
        terminal.type_all(pasted)
        terminal.end(0)
    assert bytes(heard) == pasted


@pytest.mark.spec("ATTACH-3")
def test_suspended_the_terminal_is_the_shells_and_afterwards_raw_again() -> None:
    with attach_server(echo) as server, in_a_shell(server) as shell:
        shell.type(b"~\x1a")
        shell.until(shows("Stopped"))
        shell.until(lambda rows: rows[-1] == "local$")
        shell.type(b"stty -a | grep -ow -e '-*icanon' -e '-*echo'\n")
        rows = shell.until(lambda rows: "icanon" in rows and "echo" in rows)
        assert "-icanon" not in rows
        shell.type(b"fg\n")
        shell.until_raw()
        shell.type(b"again\r")
        shell.until(shows("<again\\r>"))
        shell.type(b"exit 5")
        shell.until(lambda rows: rows[-1] == "local$")
        shell.type(b"exit $?\n")
        shell.end(5)


@pytest.mark.spec("ATTACH-6", "CLI-2")
@pytest.mark.parametrize(
    ("code", "exit_code"),
    [("not_found", 102), ("job_ended", 79), ("permission_refused", 77), ("rate_limited", 80)],
)
def test_a_refusal_is_said_and_the_terminal_as_before(code: str, exit_code: int) -> None:
    message = "cannot attach to allocation in state 'pending'; must be 'running'"
    with attach_server() as server:
        server.instead = {"type": "error", "code": code, "message": message, "hint": "Wait."}
        environment = {**os.environ, "LATTICE_API_URL": server.url, "LATTICE_TOKEN": "x"}
        terminal = Terminal(environment, "42", "-n", "n1", program=(*PROGRAM, "attach"))
        assert terminal.end(exit_code) == [message, "Hint: Wait."]


@pytest.mark.spec("ATTACH-6")
def test_the_jobs_end_is_told_and_the_shells_code_passed_on() -> None:
    with attached("-n", "n1") as (server, terminal):
        terminal.until(shows("helps"))
        words = "job 42 ended: COMPLETED 0:0 at 12:05:09"
        assert server.connection is not None
        server.connection.say({"type": "notice", "kind": "job_ended", "words": words})
        server.far_end.say(Exit(cause=EndCause.JOB_ENDED, code=137), last=True)
        assert words in terminal.end(137)
