"""The plain text of a sensitive job's output is nowhere but in the job's own output file.

The same search finds an ordinary job's output in the spool, in the store, and in the memory of its
agent while it runs.
"""

from __future__ import annotations

import secrets
from collections.abc import Iterator
from pathlib import Path

import pytest

from lab.identity import children
from lab.laboratory import Lab
from lab.memory import places_of
from lattice.base.zstd import zstd
from lattice.foundation.data_keys import ENDED_S
from tests.e2e.people import Person
from tests.eventually import eventually

pytestmark = [pytest.mark.lab, pytest.mark.long, pytest.mark.timeout(600)]

_ZSTD = b"\x28\xb5\x2f\xfd"
_MOST_UNPACKED = 4 * 1024 * 1024
_WAITS = "while ! [ -e ~/go-on-$SLURM_JOB_ID ]; do sleep 0.2; done"


class Marked:
    """A job that writes its marker 400 times. The script has only halves of it."""

    def __init__(self, lab: Lab, *options: str) -> None:
        one, two = secrets.token_hex(8), secrets.token_hex(8)
        self.marker = f"{one}-{two}"
        lines = f"a={one}; b={two}; for i in $(seq 200); do echo line $i of $a-$b; done"
        self.id = lab.sbatch("alice", *options, wrap=f"{lines}; {_WAITS}; {lines}")
        self.file = f"slurm-{self.id}.out"


@pytest.fixture
def alice(sensitive_lab: Lab) -> Iterator[Person]:
    person = Person(sensitive_lab, "alice").logged_in("sensitive:claim")
    sensitive_lab.jobs.cancel_all()
    made = person.tries("admin", "claim", "n1")
    assert made.code == 0, made.err
    yield person
    sensitive_lab.jobs.cancel_all()
    eventually(lambda: person.tries("admin", "release", "n1").code == 0)


def _unpacked(content: bytes) -> bytes:
    """Every zstd frame in it, as far as it can be unpacked."""
    found, at = [], content.find(_ZSTD)
    while at >= 0:
        try:
            unpacking = zstd.ZstdDecompressor()
            found.append(unpacking.decompress(content[at : at + _MOST_UNPACKED], _MOST_UNPACKED))
        except zstd.ZstdError:
            pass
        at = content.find(_ZSTD, at + 1)
    return b"".join(found)


def _files_with(lab: Lab, job: Marked) -> list[str]:
    """The files of the lab, and those in /tmp, that have the marker, packed or not."""
    marker, found = job.marker.encode(), []
    for folder in (lab.layout.state, Path("/tmp"), Path("/var/tmp")):
        for file in sorted(folder.rglob("*")):
            try:
                if file.is_symlink() or not file.is_file() or file.name == job.file:
                    continue
                content = file.read_bytes()
            except OSError:
                continue
            if marker in content or marker in _unpacked(content):
                found.append(str(file.relative_to(folder)))
    return found


def _descendants(pid: int) -> Iterator[int]:
    yield pid
    for child in children(pid):
        yield from _descendants(child)


def _memories_with(lab: Lab, job: Marked, nodes: tuple[str, ...]) -> list[str]:
    """The processes of servers, agents and helpers that have the marker in their memory."""
    processes = [(each.name, each.process.pid) for each in lab.servers]
    for name in nodes:
        agent = lab.node(name).agent
        processes += [(agent.name, agent.process.pid)]
        processes += [(agent.helper.name, agent.helper.process.pid)]
    found = []
    for name, first in processes:
        for pid in _descendants(first):
            places = places_of(pid, job.marker.encode())
            found += [f"{name} {pid} {each.mapping} {each.around!r}" for each in places]
    return found


@pytest.mark.spec("LOG-8", "AUTH-7")
@pytest.mark.threat("sensitive", "sensitive-memory")
def test_the_plain_text_of_a_sensitive_job_is_in_its_own_file_alone(
    sensitive_lab: Lab, alice: Person
) -> None:
    lab = sensitive_lab
    (claim,) = alice.asks("admin", "claims")["claims"]
    first = lab.node("n1").agent.process.pid
    job = Marked(lab, f"--reservation={claim['reservation']}", "--partition=sensitive")
    ordinary = Marked(lab, "--nodelist=n2")
    for each in (job, ordinary):
        lab.wait_job_state(each.id, "RUNNING")
        eventually(
            lambda each=each: alice.tries("logs", str(each.id)).out.count(each.marker) == 200
        )
    agent = lab.node("n1").agent.process.pid
    assert agent == first, "it executed itself again, as the same process"
    environment = Path(f"/proc/{agent}/environ").read_bytes()
    assert b"PYTHONMALLOC=malloc" in environment
    usual = Path(f"/proc/{lab.node('n2').agent.process.pid}/environ").read_bytes()
    assert b"PYTHONMALLOC" not in usual
    assert _files_with(lab, ordinary), "the control: it is found on the node"
    assert _memories_with(lab, ordinary, ("n2",)), "the control: and in memory"
    assert _files_with(lab, job) == []

    # It is read in each way: live, searched, and from the store.
    follower = lab.popen_as("alice", ["lattice", "logs", "-f", str(job.id)], env=alice.bearer)
    searched = alice.tries("logs", str(job.id), "--grep", "line 7 of")
    assert searched.out.count(job.marker) == 1
    for each in (job, ordinary):
        lab.run_as("alice", ["touch", f"go-on-{each.id}"])
        lab.wait_job_state(each.id, "COMPLETED")
    assert follower.communicate(timeout=60)[0].count(job.marker) == 400
    eventually(lambda: alice.tries("logs", str(job.id)).out.count(job.marker) == 400)
    waiting = lab.node("n1").agent.folder / "state" / "logs"
    eventually(
        lambda: not [each for each in waiting.iterdir() if each.name.startswith(f"{job.id}-")]
    )
    eventually(lambda: _files_with(lab, ordinary), patience_s=60)

    own = lab.run_as("alice", ["cat", job.file])
    assert own.stdout.count(job.marker) == 400
    assert _files_with(lab, job) == []
    # Servers forget the key, and what referred to itself is collected.
    eventually(lambda: _memories_with(lab, job, ("n1", "n2", "n3")) == [], patience_s=ENDED_S + 60)
