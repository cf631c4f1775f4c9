"""A recorded terminal whose recording becomes impossible ends, and nothing was shown beyond it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from typing import Any

import pytest

from lab.laboratory import Lab
from lab.node import Node
from lab.sensitive import VCLUSTER
from lab.signed_image import signed_image
from lab.users import AGENT_USER
from lattice.domain.asciicast import CastKind, read_event
from tests.e2e.attached import Attached
from tests.e2e.people import Person
from tests.e2e.put_right import administrator, put_right
from tests.eventually import eventually

pytestmark = [pytest.mark.lab, pytest.mark.long, pytest.mark.timeout(400)]

_COUNTS = """
setsid nohup sleep 4321 >/dev/null 2>&1 &
n=0; while :; do n=$((n + 1)); echo "line $n of the terminal"; sleep 0.1; done
"""
"""It leaves a process behind that is not of the terminal any more."""
_ENDED_WITHIN_S = 150.0
_NODE_LOST = "connection to node lost — attach session ended"


@pytest.fixture(scope="module")
def alice(sensitive_lab: Lab) -> Person:
    return Person(sensitive_lab, "alice").logged_in("sensitive:claim")


@pytest.fixture(scope="module")
def job(sensitive_lab: Lab, alice: Person) -> Iterator[str]:
    lab = sensitive_lab
    lab.jobs.cancel_all()
    with signed_image(lab, "n1"):
        made = alice.tries("admin", "claim", "n1")
        assert made.code == 0, made.err
        made = alice.tries("submit", "--vcluster", VCLUSTER, "--sbatch=-c1", "--", "sleep", "3000")
        assert made.code == 0, made.err
        number = made.out.split()[-1]
        lab.wait_job_state(int(number), "RUNNING")
        yield number
        lab.jobs.cancel_all()
    eventually(lambda: alice.tries("admin", "release", "n1").code == 0)


@pytest.fixture
def terminal(sensitive_lab: Lab, alice: Person, job: str) -> Iterator[Attached]:
    """One that counts, and has shown some of it."""
    lab, node = sensitive_lab, sensitive_lab.node("n1")
    client = _opened(lab, alice, job)
    try:
        client.shows("line 5 of the terminal")
        assert _left(node)
        yield client
    finally:
        client.close()
        _put_right(lab)


def _opened(lab: Lab, alice: Person, job: str) -> Attached:
    """The first key makes the agent start itself anew; the one before may not be over yet."""
    opened: list[Attached] = []

    def is_open() -> bool:
        client = Attached(lab, alice, job, command=["bash", "-c", _COUNTS])
        with suppress(AssertionError):
            if client.word("opened", 20)["recorded"]:
                opened.append(client)
                return True
        client.close()
        return False

    eventually(is_open)
    return opened[0]


def _put_right(lab: Lab) -> None:
    lab.seaweedfs.process.up()
    put_right(lab, administrator(lab))


def _left(node: Node) -> bool:
    """Whether something that was started in the terminal runs."""
    return node.run(["pgrep", "-f", "sleep 4321|of the terminal"], check=False).returncode == 0


def _end(terminal: Attached) -> dict[str, Any]:
    """Why the session ended, as its person was told."""
    events = terminal.ended(_ENDED_WITHIN_S)
    words = [each["word"] for each in events if "word" in each]
    found: dict[str, Any] = words[-1]
    return found


def _check(lab: Lab, alice: Person, terminal: Attached) -> None:
    """The recording is whole, and begins with all that was shown. Nothing is left running."""
    session = terminal.session
    shown = b"".join(
        each["text"].encode("latin-1")
        for each in terminal.events
        if each.get("message") in {"Output", "Errors"}
    )
    assert b"line 5 of the terminal" in shown
    eventually(
        lambda: alice.tries("replay", session, "--search", "line 1 ").err,
        lambda text: "The recording is whole" in text,
    )
    file = lab.layout.home / "alice" / f"{session}.cast"
    saved = alice.tries("replay", session, "--save", f"/home/alice/{file.name}")
    assert saved.code == 0, saved
    events = [read_event(line, 0) for line in file.read_bytes().splitlines()[1:]]
    output = b"".join(each.data for each in events if each.kind is CastKind.OUTPUT)
    assert output.startswith(shown)
    eventually(lambda: not _left(lab.node("n1")))


@pytest.mark.spec("AUDIT-4")
@pytest.mark.threat(22, "recording-bypass")
def test_a_full_disk_on_the_node_ends_the_session(
    sensitive_lab: Lab, alice: Person, job: str, terminal: Attached
) -> None:
    """Another file system takes the place of the folder, so that the node's own stays as it is."""
    lab, node = sensitive_lab, sensitive_lab.node("n1")
    terminal.close()
    folder = node.agent.folder / "state" / "recordings"
    node.run(["mount", "-t", "tmpfs", "-o", "size=80m", "tmpfs", str(folder)])
    try:
        node.run(["chown", AGENT_USER, str(folder)])
        second = _opened(lab, alice, job)
        try:
            second.shows("line 5 of the terminal")
            node.run(["dd", "if=/dev/zero", f"of={folder}/full", "bs=1M"], check=False)
            end = _end(second)
            assert end["type"] == "ended"
            assert end["reason"] == "recording_impossible"
            assert end["words"] == "recording impossible: disk full on n1"
            refused = alice.tries("attach", job, "--", "true")
            assert refused.code != 0
            eventually(
                lambda: alice.tries("attach", job, "--", "true").err,
                lambda text: "recording impossible: the disk is full on n1" in text,
            )
            node.run(["rm", "-f", f"{folder}/full"])
            _check(lab, alice, second)
        finally:
            second.close()
    finally:
        node.run(["umount", "-l", str(folder)])


@pytest.mark.spec("AUDIT-4")
@pytest.mark.threat(22, "recording-bypass")
def test_an_object_store_that_is_off_ends_the_session(
    sensitive_lab: Lab, alice: Person, terminal: Attached
) -> None:
    sensitive_lab.seaweedfs.process.kill()
    end = _end(terminal)
    assert (end["type"], end["reason"]) == ("ended", "recording_impossible")
    assert end["words"] == "recording impossible: the object store has not answered for 30 s"
    eventually(lambda: not _left(sensitive_lab.node("n1")))
    sensitive_lab.seaweedfs.process.up()
    _check(sensitive_lab, alice, terminal)


@pytest.mark.spec("AUDIT-4")
@pytest.mark.threat(22, "recording-bypass")
def test_a_recorder_that_is_stopped_ends_the_program_and_the_session(
    sensitive_lab: Lab, alice: Person, terminal: Attached
) -> None:
    lab, agent = sensitive_lab, sensitive_lab.node("n1").agent
    agent.freeze()
    # Whoever stops the recorder gains nothing: what runs in the terminal ends, unseen.
    eventually(lambda: not _left(lab.node("n1")))
    assert agent.process.condition == "frozen"
    agent.thaw()
    stood_still = "recording impossible: the recorder on n1 stood still"
    assert _words(_end(terminal)) in {stood_still, _NODE_LOST}
    _check(lab, alice, terminal)


@pytest.mark.spec("AUDIT-4")
@pytest.mark.threat(22, "recording-bypass")
def test_a_recorder_that_stays_stopped_ends_the_session(
    sensitive_lab: Lab, alice: Person, terminal: Attached
) -> None:
    lab, agent = sensitive_lab, sensitive_lab.node("n1").agent
    agent.freeze()
    end = _end(terminal)
    assert end["words"] == _NODE_LOST
    assert not _left(lab.node("n1"))
    agent.thaw()
    _check(lab, alice, terminal)


@pytest.mark.spec("AUDIT-4")
@pytest.mark.threat(22, "recording-bypass")
def test_a_recorder_that_is_killed_ends_the_session(
    sensitive_lab: Lab, alice: Person, terminal: Attached
) -> None:
    lab, agent = sensitive_lab, sensitive_lab.node("n1").agent
    agent.kill()
    eventually(lambda: not _left(lab.node("n1")))
    agent.start()
    end = _end(terminal)
    assert _words(end).endswith("The recording of this session has ended, and the session with it.")
    _check(lab, alice, terminal)


def _words(end: dict[str, Any]) -> str:
    return str(end.get("words") or end.get("message"))
