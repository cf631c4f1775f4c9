"""Attacks 12, 15 and 16 by a real job: what it writes is kept to the byte, shown and not obeyed."""

from __future__ import annotations

import base64
import shlex
import time

import pyte
import pytest

from lab.laboratory import Lab
from tests.e2e.people import Person
from tests.eventually import eventually
from tests.fakes.hostile_text import ATTACKS
from tests.fakes.terminal import Witness

pytestmark = [pytest.mark.lab, pytest.mark.timeout(240)]

HOSTILE = b"first\n" + b"".join(text + b"\n" for text, _ in ATTACKS.values()) + b"last\n"
LONG_BYTES = 100 * 1024 * 1024


def on_a_terminal(person: Person, *words: str) -> Witness:
    """The program on a terminal of its own; what came out of it, on a screen."""
    command = f"stty cols 160 rows 60; lattice {shlex.join(words)}"
    env = {**person.bearer, "TERM": "xterm-256color", "LANG": "C.UTF-8"}
    kept = f"typescript-{time.monotonic_ns()}"
    script = ["script", "-qec", command, f"/home/{person.name}/{kept}"]
    done = person.lab.run_as(person.name, script, env=env, timeout_s=90)
    assert done.returncode == 0, done
    # To the byte: what is read as text loses its carriage returns.
    written = (person.lab.layout.home / person.name / kept).read_bytes()
    lines = written.splitlines(keepends=True)
    screen = Witness(160, 60, history=20_000)
    told = (each for each in lines if not each.startswith((b"Script started", b"Script done")))
    pyte.ByteStream(screen).feed(b"".join(told))
    return screen


def rows_of(screen: Witness) -> list[str]:
    above = ["".join(row[n].data for n in range(screen.columns)) for row in screen.history.top]
    return [row.rstrip() for row in (*above, *screen.display)]


@pytest.mark.story
@pytest.mark.spec("LOG-7", "LOG-9")
def test_a_job_that_writes_at_the_terminal_of_its_reader(quiet_lab: Lab, alice: Person) -> None:
    packed = base64.b64encode(HOSTILE).decode()
    job = quiet_lab.sbatch(
        "alice", "--job-name=\x1b]0;owned\x07<script>", wrap=f"echo {packed} | base64 -d"
    )
    quiet_lab.wait_job_state(job, "COMPLETED")
    eventually(lambda: alice.tries("logs", str(job)).out, lambda out: out.endswith("last\n"))
    for words in (("--no-pager",), ("-f",), ("-f", "-t", "--prefix", "node")):
        screen = on_a_terminal(alice, "logs", str(job), *words)
        assert screen.state() == Witness(160, 60).state(), words
        rows = rows_of(screen)
        assert any(row.endswith("first") for row in rows)
        assert any(row.endswith("last") for row in rows)
        for name, (_, shown) in ATTACKS.items():
            assert any(shown in row for row in rows), (words, name, rows)
    piped = alice.tries("logs", str(job)).out
    assert piped.replace("\n", "").replace("\t", "").isprintable(), "nor in a pipe"
    folder = f"/home/alice/hostile-{job}"
    said = alice.tries("logs", str(job), "--download", folder)
    assert said.code == 0, said
    kept = quiet_lab.layout.home / "alice" / f"hostile-{job}" / "n1.batch.stdout.log"
    found = kept if kept.exists() else next(kept.parent.glob("*.batch.stdout.log"))
    assert found.read_bytes() == HOSTILE, "what is stored is what was written"


@pytest.mark.spec("LOG-7")
def test_a_line_of_a_hundred_megabytes(quiet_lab: Lab, alice: Person) -> None:
    long = f"head -c {LONG_BYTES} /dev/zero | tr '\\0' x"
    job = quiet_lab.sbatch("alice", wrap=f"echo before; {long}; echo; echo after")
    quiet_lab.wait_job_state(job, "COMPLETED", timeout_s=90)
    out = eventually(
        lambda: alice.tries("logs", str(job)).out,
        lambda seen: seen.endswith("\nafter\n"),
    )
    before, cut, after = out.splitlines()
    assert (before, after) == ("before", "after")
    assert cut.startswith("x" * 65536 + " … [cut: 64 KB")
    assert len(cut) < 66_000


@pytest.mark.spec("LOG-4")
def test_a_pattern_that_would_take_for_ever(quiet_lab: Lab, alice: Person) -> None:
    """Attack 24."""
    job = quiet_lab.sbatch("alice", wrap="head -c 60000 /dev/zero | tr '\\0' a; echo '!'; echo aa")
    quiet_lab.wait_job_state(job, "COMPLETED")
    eventually(lambda: alice.tries("logs", str(job)).out, lambda out: out.endswith("\naa\n"))
    said = alice.tries("logs", str(job), "--grep", "(a+)+$", "--highlight", "(a+)+$")
    assert (said.code, said.out) == (0, "aa\n"), said.err


@pytest.mark.spec("LOG-1")
def test_a_name_of_a_job_shapes_no_key(quiet_lab: Lab, alice: Person) -> None:
    """Attack 12: names of jobs are in no key; the rest is escaped.

    Slurm itself refuses a name of 1,100 bytes.
    """
    names = ["../../etc", "%2e%2e%2f", "//", "two\nlines", "x" * 250, "\u0430lice.", "end."]
    jobs = [
        quiet_lab.sbatch("alice", f"--job-name={name}", wrap=f"echo mine {number}")
        for number, name in enumerate(names)
    ]
    for number, job in enumerate(jobs):
        quiet_lab.wait_job_state(job, "COMPLETED")
        eventually(
            lambda job=job: alice.tries("logs", str(job)).out,
            lambda out, number=number: out == f"mine {number}\n",
        )
