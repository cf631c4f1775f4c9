"""The program as people run it: its own process, real sockets, streams, files and exit codes."""

from __future__ import annotations

import json
import os
import pty
import signal
import socket
import ssl
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import trustme
import yaml

from lattice.base.errors import BY_CODE, STATUS
from tests.fakes import answers
from tests.fakes.web import Answer, Web, web

PROGRAM = [sys.executable, "-c", "from lattice.cli.main import main; main()"]
HOSTILE = "evil\x1b]0;owned\x07\x9b2J\u202egpj\r\n\u200b\U000e0041日本"


@pytest.fixture
def server() -> Iterator[Web]:
    authority = trustme.CA()
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    authority.issue_cert("127.0.0.1").configure_cert(context)
    routes: dict[str, Any] = {
        "/v1/allocations": answers.listing(answers.allocation(), answers.pending())
    }
    with authority.cert_pem.tempfile() as ca, web(routes, context=context) as running:
        running.ca = ca  # type: ignore[attr-defined]
        yield running


@pytest.fixture
def environment(tmp_path: Path, server: Web) -> dict[str, str]:
    return {
        "PATH": os.environ["PATH"],
        "HOME": str(tmp_path),
        "LANG": "C.UTF-8",
        "TERM": "xterm",
        "LATTICE_API_URL": server.url,
        "LATTICE_CA": server.ca,  # type: ignore[attr-defined]
        "LATTICE_TOKEN": "t0k3n",
    }


def run(
    environment: dict[str, str], *words: str, **changes: str
) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [*PROGRAM, *words],
        env={name: value for name, value in (environment | changes).items() if value},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )


def on_a_terminal(environment: dict[str, str], *words: str, columns: int = 80) -> str:
    """What the program writes to a real terminal."""
    import fcntl
    import struct
    import termios

    leader, follower = pty.openpty()
    fcntl.ioctl(follower, termios.TIOCSWINSZ, struct.pack("HHHH", 24, columns, 0, 0))
    process = subprocess.Popen(
        [*PROGRAM, *words], env=environment, stdin=follower, stdout=follower, stderr=follower
    )
    os.close(follower)
    said = b""
    while True:
        try:
            piece = os.read(leader, 65536)
        except OSError:
            break
        if not piece:
            break
        said += piece
    os.close(leader)
    process.wait(20)
    return said.decode().replace("\r\n", "\n")


def test_plain_in_a_pipe(environment: dict[str, str]) -> None:
    done = run(environment, "status")
    assert done.returncode == 0
    assert done.stderr == ""
    assert "\x1b" not in done.stdout
    assert [line.split()[0] for line in done.stdout.splitlines()] == ["ID", "12345", "12346"]


@pytest.mark.spec("CLI-1")
def test_common_options_may_stand_before_the_command(environment: dict[str, str]) -> None:
    url = environment["LATTICE_API_URL"]
    done = run(environment, "--api-url", url, "-q", "-o", "json", "status", LATTICE_API_URL="")
    after = run(environment, "status", "-q", "-o", "json")
    assert (done.returncode, done.stdout) == (after.returncode, after.stdout)
    assert run(environment, "--no-such", "status").returncode == 2


def test_an_authority_that_is_not_trusted_is_told_with_what_to_do(
    environment: dict[str, str],
) -> None:
    done = run(environment, "status", LATTICE_CA="")
    assert done.returncode == 75
    assert "its certificate is refused" in done.stderr
    assert "LATTICE_CA" in done.stderr


@pytest.mark.spec("CLI-1")
def test_colours_on_a_terminal_unless_unwanted(environment: dict[str, str]) -> None:
    assert "\x1b[32m● running\x1b[0m" in on_a_terminal(environment, "status")
    for words, changes in (
        (["--no-color"], {}),
        ([], {"NO_COLOR": "1"}),
        ([], {"TERM": "dumb"}),
    ):
        said = on_a_terminal(environment | changes, "status", *words)
        assert "● running" in said
        assert "\x1b" not in said


def test_80_columns(environment: dict[str, str], server: Web) -> None:
    server.routes["/v1/allocations"] = answers.listing(
        answers.allocation(name="x" * 200, nodes="gpu[001-100,200-300,400-500]", vcluster="a" * 40)
    )
    said = on_a_terminal(environment, "status", "--no-color")
    assert all(len(line) <= 80 for line in said.splitlines()), said


@pytest.mark.spec("CLI-1")
@pytest.mark.parametrize("form", ["json", "yaml"])
def test_documents_hold_the_data_and_drive_no_terminal(
    environment: dict[str, str], server: Web, form: str
) -> None:
    """Attack 16."""
    server.routes["/v1/allocations"] = answers.listing(answers.allocation(name=HOSTILE))
    done = run(environment, "status", "-o", form)
    assert done.returncode == 0
    assert all(letter.isprintable() or letter == "\n" for letter in done.stdout)
    document = json.loads(done.stdout) if form == "json" else yaml.safe_load(done.stdout)
    assert document["allocations"][0]["name"] == HOSTILE
    assert document["allocations"][0]["elapsed_s"] == 1931


@pytest.mark.spec("CLI-2")
@pytest.mark.parametrize("code", sorted(BY_CODE))
def test_every_error_has_its_exit_code_and_two_lines(
    environment: dict[str, str], server: Web, code: str
) -> None:
    status = STATUS[BY_CODE[code]]
    server.routes["/v1/allocations"] = Answer(
        answers.refusal(code, "What\x1b[2J.", "Do."), status.http
    )
    done = run(environment, "status")
    assert done.returncode == status.exit
    assert done.stdout == ""
    assert done.stderr == "What␛[2J.\nHint: Do.\n"
    assert run(environment, "status", "-v").stderr.endswith("Hint: Do.\n  request r-1\n")


@pytest.mark.spec("CLI-2")
def test_usage_errors(environment: dict[str, str]) -> None:
    for words in (
        ["statsu"],
        ["status", "--nope"],
        ["status", "-o", "xml"],
        ["wait"],
        ["status", "a", "b"],
    ):
        done = run(environment, *words)
        assert done.returncode == 2, words
        what, hint = done.stderr.splitlines()
        assert what
        assert hint.startswith("Hint: ")
        assert "`lattice" in hint


@pytest.mark.spec("CLI-2")
def test_a_mistyped_command_is_recognised(environment: dict[str, str]) -> None:
    said = run(environment, "stauts").stderr
    assert said == "There is no command 'stauts'.\nHint: Did you mean `lattice status`?\n"


@pytest.mark.spec("AUTH-1", "CLI-2")
@pytest.mark.parametrize(
    "words", [["status"], ["history"], ["nodes"], ["whoami"], ["wait", "1"], ["login", "--status"]]
)
def test_without_a_token_every_command_says_so(
    environment: dict[str, str], words: list[str]
) -> None:
    done = run(environment, *words, LATTICE_TOKEN="", LATTICE_API_URL="https://lattice.invalid")
    assert (done.returncode, done.stdout) == (4, "")
    assert done.stderr == "Not logged in. Run `lattice login` first.\n"


@pytest.mark.spec("CLI-2")
def test_no_server_known(environment: dict[str, str], tmp_path: Path) -> None:
    done = run(environment, "status", LATTICE_API_URL="")
    assert done.returncode == 78
    assert done.stderr == (
        "No server is known.\nHint: Name it with --api-url, LATTICE_API_URL or `api_url:` in "
        f"{tmp_path}/.config/lattice/config.yaml. On a host of the cluster --local does without "
        "one.\n"
    )


@pytest.mark.spec("CLI-2")
def test_server_not_reachable(environment: dict[str, str]) -> None:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        url = f"https://127.0.0.1:{probe.getsockname()[1]}"
        done = run(environment, "status", LATTICE_API_URL=url)
    assert done.returncode == 75
    assert done.stderr.startswith(f"Can't reach {url}: Connection refused\nHint: ")


def test_defect_is_a_sentence_and_a_traceback_with_v(
    environment: dict[str, str], tmp_path: Path
) -> None:
    (tmp_path / "sitecustomize.py").write_text(
        "import lattice.features.allocations.command.status as s\n"
        "s.STATUS = s.STATUS._replace(run=lambda *a, **k: 1 / 0)\n"
    )
    path = os.pathsep.join([str(tmp_path), *sys.path])
    done = run(environment, "status", PYTHONPATH=path)
    assert done.returncode == 1
    assert done.stderr.startswith("lattice failed: ZeroDivisionError: division by zero\nHint: ")
    assert "Traceback" not in done.stderr
    assert "Traceback" in run(environment, "status", "-v", PYTHONPATH=path).stderr


def test_reader_that_leaves_early(environment: dict[str, str], server: Web) -> None:
    server.routes["/v1/allocations"] = answers.listing(
        *(answers.allocation(n) for n in range(1, 3000))
    )
    process = subprocess.Popen(
        [*PROGRAM, "status"], env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE
    )
    assert process.stdout is not None
    assert process.stderr is not None
    process.stdout.read(10)
    process.stdout.close()
    assert process.wait(60) == 141
    assert process.stderr.read() == b""
    process.stderr.close()


def test_interrupt(environment: dict[str, str], server: Web) -> None:
    server.routes["/v1/allocations/1"] = answers.card(answers.allocation(1))
    process = subprocess.Popen(
        [*PROGRAM, "wait", "1"], env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE
    )
    assert process.stderr is not None
    assert b"running" in process.stderr.readline()
    time.sleep(0.2)
    process.send_signal(signal.SIGINT)
    out, err = process.communicate(timeout=60)
    assert (process.returncode, out, err) == (130, b"", b"")


def test_token_is_taken_from_no_option(environment: dict[str, str]) -> None:
    """Attack 26: an argument would stand in every `ps`."""
    assert run(environment, "status", "--token", "x").returncode == 2


def test_config_file_and_quiet(environment: dict[str, str], tmp_path: Path, server: Web) -> None:
    folder = tmp_path / ".config/lattice"
    folder.mkdir(parents=True)
    (folder / "config.yaml").write_text(f"api_url: {server.url}\noutput: json\n")
    done = run(environment, "status", LATTICE_API_URL="")
    assert json.loads(done.stdout)["allocations"][0]["id"] == "12345"
    server.routes["/v1/allocations"] = answers.listing()
    assert run(environment, "status").stderr != ""
    assert run(environment, "status", "-q").stderr == ""


def test_terminal_without_utf8(environment: dict[str, str]) -> None:
    done = run(environment, "status", PYTHONIOENCODING="latin-1", LANG="C")
    assert done.returncode == 0
    assert "* running" in done.stdout


@pytest.mark.spec("CLI-1")
def test_completion_of_live_ids_is_kept_for_a_moment(
    environment: dict[str, str], server: Web, tmp_path: Path
) -> None:
    server.routes["/v1/allocations"] = answers.listing(
        answers.allocation(12345, name="tr\x1bain"), answers.allocation(777, id="x;rm -rf ~")
    )
    server.routes["/v1/nodes"] = {"nodes": [answers.node("n1"), answers.node("n2")], "sources": []}
    asked = {
        "_LATTICE_COMPLETE": "zsh_complete",
        "COMP_WORDS": "lattice status 12",
        "COMP_CWORD": "2",
    }

    def completed(**words: str) -> str:
        # It says nothing rather than keep a shell waiting, as a machine that is very slow would.
        tries = (run(environment, **(asked | words)).stdout for _ in range(20))
        return next(said for said in tries if said.strip())

    said = completed()
    assert said.splitlines() == ["plain", "12345", "tr␛ain, running"]
    asked_for = len(server.requests)
    assert {completed() for _ in range(5)} == {said}
    assert len(server.requests) < asked_for + 5, "some of them came from the cache"
    assert "n1" in completed(COMP_WORDS="lattice nodes n")
    commands = asked | {"COMP_WORDS": "lattice st", "COMP_CWORD": "1"}
    assert "status" in run(environment, **commands).stdout


@pytest.mark.spec("CLI-1")
def test_completion_fails_in_silence(environment: dict[str, str]) -> None:
    asked = {
        "_LATTICE_COMPLETE": "bash_complete",
        "COMP_WORDS": "lattice status ",
        "COMP_CWORD": "2",
    }
    for changes in (
        {"LATTICE_API_URL": ""},
        {"LATTICE_API_URL": "https://127.0.0.1:9"},
        {"LATTICE_TOKEN": "", "LATTICE_API_URL": "https://lattice.invalid"},
    ):
        done = run(environment, **(asked | changes))
        assert (done.stdout.strip(), done.stderr) == ("", "")


@pytest.mark.spec("CLI-1")
@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_completion_script(environment: dict[str, str], shell: str) -> None:
    done = run(environment, "completion", shell, LATTICE_API_URL="")
    assert done.returncode == 0, done.stderr
    assert "_LATTICE_COMPLETE" in done.stdout
    if shell == "bash":
        subprocess.run(["bash", "-n"], input=done.stdout, text=True, check=True)
