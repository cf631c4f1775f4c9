"""What a training reports to its node, and that nothing which goes wrong there reaches it."""

from __future__ import annotations

import json
import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from lattice_run.__main__ import main
from lattice_run.event import event

TAKEN = b'{"event": {"time": "2026-11-14T13:00:00+00:00"}}\n'


class Agent:
    """One answer for whoever connects."""

    def __init__(self, answer: bytes) -> None:
        self.answer = answer
        self.asked: list[object] = []

    def serve(self, listening: socket.socket) -> None:
        connection, _ = listening.accept()
        with connection:
            self.asked.append(json.loads(connection.makefile().readline()))
            connection.sendall(self.answer)


@contextmanager
def answering(
    folder: Path, monkeypatch: pytest.MonkeyPatch, answer: bytes = TAKEN
) -> Iterator[Agent]:
    agent, path = Agent(answer), folder / "job.sock"
    with socket.socket(socket.AF_UNIX) as listening:
        listening.bind(str(path))
        listening.listen()
        monkeypatch.setenv("LATTICE_JOB_SOCKET", str(path))
        serving = threading.Thread(target=agent.serve, args=(listening,))
        serving.start()
        yield agent
        serving.join(10)


def test_an_event_has_a_text_a_name_and_values(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with answering(tmp_path, monkeypatch) as agent:
        assert event("epoch done", "epoch", number=3, loss=0.25, text="x") == ""
    values = {"number": 3, "loss": 0.25, "text": "x"}
    asked = {"text": "epoch done", "name": "epoch", "attributes": values}
    assert agent.asked == [{"event": asked}]


def test_the_command_reports_for_scripts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with answering(tmp_path, monkeypatch) as agent:
        assert main(["event", "epoch done", "--name", "epoch", "loss=0.3", "name=x"]) == 0
    asked = {"text": "epoch done", "name": "epoch", "attributes": {"loss": "0.3", "name": "x"}}
    assert agent.asked == [{"event": asked}]


@pytest.mark.parametrize("argv", [[], ["event"], ["tell", "x"], ["event", "x", "loss"]])
def test_a_wrong_command_line_is_explained(
    argv: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(argv) == 2
    assert "usage: python -m lattice_run event TEXT" in capsys.readouterr().err


def test_without_an_agent_the_script_goes_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("LATTICE_JOB_SOCKET", str(tmp_path / "none.sock"))
    assert main(["event", "x"]) == 0
    assert "The agent of this node does not answer: No such file" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("answer", "reason"),
    [
        (b'{"error": {"code": "x", "message": "Locked."}}\n', "Locked."),
        (b"", "can't be read"),
        (b"[" * 100_000, "can't be read"),
        (b"[]\n", "can't be read"),
        (b'{"error": 7}\n', "can't be read"),
    ],
)
def test_an_answer_of_any_content_is_no_exception(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, answer: bytes, reason: str
) -> None:
    with answering(tmp_path, monkeypatch, answer):
        assert reason in event("x")


def test_what_can_not_be_written_is_no_exception() -> None:
    assert "can't be sent" in event("x", value=object())  # type: ignore[arg-type]
    assert event("x" * 10, path="\ud800") != ""
