"""What was typed and shown in a recorded terminal is nowhere once the terminal is over.

The same search finds an ordinary terminal in memory, and an ordinary job's output in files.
"""

from __future__ import annotations

import secrets

import pytest

from lab.laboratory import Lab
from lab.signed_image import signed_image
from lattice.foundation.data_keys import ENDED_MOST_S
from tests.e2e.attached import Attached, attached
from tests.e2e.marked import MarkedJob, files_with, memories_with
from tests.e2e.people import Person
from tests.e2e.sensitive_jobs import claimed, recorded_terminal, sensitive_job
from tests.eventually import eventually

pytestmark = [pytest.mark.lab, pytest.mark.long, pytest.mark.timeout(900)]

_NODES = ("n1", "n2", "n3")


class _Markers:
    """One that is typed, one that only the program shows, and one that is typed unseen."""

    def __init__(self) -> None:
        self.typed, self.hidden = secrets.token_hex(16), secrets.token_hex(16)
        self._halves = secrets.token_hex(8), secrets.token_hex(8)
        self.shown = "-".join(self._halves)

    def all(self) -> list[bytes]:
        return [each.encode() for each in (self.typed, self.hidden, self.shown)]

    def pass_through(self, terminal: Attached) -> None:
        one, two = self._halves
        terminal.type(f"echo {self.typed}; a={one}; b={two}; for i in 1 2 3; do echo $a-$b; done\n")
        terminal.shows(self.shown)
        terminal.type("stty -echo; echo quiet-$((40+2))\n")
        terminal.shows("quiet-42")
        terminal.type(f"read answer\n{self.hidden}\necho read-$((40+2))\n")
        terminal.shows("read-42")


def _found(lab: Lab, markers: _Markers, nodes: tuple[str, ...] = _NODES) -> list[str]:
    return [each for marker in markers.all() for each in memories_with(lab, marker, nodes)]


@pytest.mark.spec("AUDIT-4", "LOG-8")
@pytest.mark.threat("sensitive-memory", "recording-bypass")
def test_what_passed_through_a_recorded_terminal_is_nowhere_afterwards(sensitive_lab: Lab) -> None:
    lab = sensitive_lab
    ordinary, recorded = _Markers(), _Markers()
    with claimed(lab) as alice, signed_image(lab, "n1"):
        written = MarkedJob(lab, "--nodelist=n2")
        lab.wait_job_state(written.id, "RUNNING")
        with attached(lab, alice, written.id, command=["sh", "-i"]) as terminal:
            terminal.word("opened")
            ordinary.pass_through(terminal)
            assert _found(lab, ordinary, ("n2",)), "the control: it is found in memory"
        eventually(lambda: files_with(lab, [written.marker.encode()], except_for=[written.file]))

        job = sensitive_job(lab, alice, "sleep 600")
        with recorded_terminal(lab, alice, job) as terminal:
            recorded.pass_through(terminal)
            assert files_with(lab, recorded.all()) == [], "nor while it is open"
            terminal.type("exit\n")
            terminal.message("Exit")
        _is_replayed(alice, job, terminal.session, recorded)
        lab.jobs.cancel_all()
        lab.wait_job_state(job, "CANCELLED")
        eventually(lambda: _found(lab, recorded) == [], patience_s=ENDED_MOST_S + 60)
        assert files_with(lab, recorded.all()) == []


def _is_replayed(alice: Person, job: int, session: str, markers: _Markers) -> None:
    """Servers read it once more, whole."""
    eventually(
        lambda: alice.asks("audit", "query", "--allocation", str(job))["rows"],
        lambda rows: any(session in str(each) and "recording of" in str(each) for each in rows),
    )
    for server in alice.lab.servers:
        env = {**alice.bearer, "LATTICE_API_URL": server.url}
        shown = alice.lattice("replay", session, "--speed", "1000", env=env)
        assert shown.code == 0, shown
        assert shown.out.count(markers.shown) == 3
        assert markers.typed in shown.out
        found = alice.lattice("replay", session, "--search", markers.shown, env=env)
        assert found.out.count(markers.shown) >= 1
