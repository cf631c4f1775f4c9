"""An agent stopped again and again across short jobs: every line is stored in the end.

just soak gaps [JOBS] [SEED]

Its own lab. Jobs of 1 to 8 s run on one node, whose agent is stopped for 10 to 120 s at random.
Meanwhile the logs of jobs that are over are read: no answer may be empty and end with 0. At the
end each job's lines are all there, once and in order, or what is absent is shown with its size.
With 20 jobs it takes some minutes.
"""

from __future__ import annotations

import json
import random
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

from lab.agent import Agent
from lab.laboratory import Lab
from tests.e2e.log_lines import numbers, script
from tests.e2e.people import Person
from tests.eventually import eventually

_NAME = "soak"
_PARTS = ("slurm", "oidc", "etcd", "seaweedfs", "server", "agents")
_NODE = "n1"
_LINES_A_SECOND = 10
_STOPPED_S = (10.0, 120.0)
_RUNNING_S = (2.0, 20.0)
_AT_ONCE = 3
_KNOWN_AFTER_S = 15.0
"""A server knows within this time that a job is over."""
_PATIENCE_S = 600.0
_SIGN_IN_S = 120.0
_ABSENT = 76


@dataclass
class Job:
    """One short job, and what it writes."""

    id: int
    writer: str
    lines: int
    ended_at: float | None = None


@dataclass
class Tally:
    """What was seen."""

    asked: int = 0
    empty: list[int] = field(default_factory=list)
    """Jobs of which an answer was empty and ended with 0."""
    refused: int = 0
    """Answers that said why there is nothing."""
    stops: list[float] = field(default_factory=list)


def main(count: int, seed: int) -> int:
    lab = Lab(_NAME, parts=_PARTS)
    try:
        lab.up()
        return _soak(lab, Person(lab, "alice").logged_in(), count, random.Random(seed))
    finally:
        lab.down(purge=True)


def _soak(lab: Lab, alice: Person, count: int, chance: random.Random) -> int:
    began = time.monotonic()
    tally = Tally()
    with _stopped_at_random(lab.node(_NODE).agent, random.Random(chance.random()), tally):
        jobs = _run(lab, alice, count, chance, tally)
    missing, lost_bytes = 0, 0
    alice.logged_in()
    for job in jobs:
        lines, lost = _in_the_end(alice, job, tally)
        missing += job.lines - lines if not lost else 0
        lost_bytes += lost
    total = sum(job.lines for job in jobs)
    ok = not missing and not tally.empty
    figure = {
        "name": "lines of short jobs there, or shown to be absent, after the agent was stopped",
        "value": total - missing,
        "unit": "lines",
        "bare": None,
        "ratio": None,
        "goal": total,
        "ok": ok,
        "jobs": count,
        "stops": len(tally.stops),
        "stopped_s": round(sum(tally.stops), 1),
        "absent_bytes": lost_bytes,
        "answers": tally.asked,
        "answers_with_a_reason": tally.refused,
        "empty_answers": len(tally.empty),
        "seconds": round(time.monotonic() - began, 1),
    }
    print(json.dumps(figure))
    return 0 if ok else 1


@contextmanager
def _stopped_at_random(agent: Agent, chance: random.Random, tally: Tally) -> Iterator[None]:
    done = threading.Event()

    def stop_and_go() -> None:
        while not done.wait(chance.uniform(*_RUNNING_S)):
            began = time.monotonic()
            agent.freeze()
            try:
                done.wait(chance.uniform(*_STOPPED_S))
            finally:
                agent.thaw()
            tally.stops.append(time.monotonic() - began)

    thread = threading.Thread(target=stop_and_go, name="stops")
    thread.start()
    try:
        yield
    finally:
        done.set()
        thread.join()


def _run(lab: Lab, alice: Person, count: int, chance: random.Random, tally: Tally) -> list[Job]:
    """Submit them, a few at once, and read the logs of those that are over."""
    jobs: list[Job] = []
    signed_in_at = time.monotonic()
    while len(jobs) < count or any(each.ended_at is None for each in jobs):
        for each in jobs:
            if each.ended_at is None and lab.jobs.states(each.id) == ["COMPLETED"]:
                each.ended_at = time.monotonic()
        if len(jobs) < count and sum(each.ended_at is None for each in jobs) < _AT_ONCE:
            lines = chance.randint(1, 8) * _LINES_A_SECOND
            writer = f"g{len(jobs)}"
            wrap = script(writer, lines, pause_s=1 / _LINES_A_SECOND)
            id_ = lab.sbatch("alice", f"--nodelist={_NODE}", "--mem=20", wrap=wrap)
            jobs.append(Job(id_, writer, lines))
        if time.monotonic() - signed_in_at > _SIGN_IN_S:
            alice.logged_in()
            signed_in_at = time.monotonic()
        _ask_one(alice, jobs, chance, tally)
        time.sleep(chance.uniform(0.2, 1.0))
    return jobs


def _ask_one(alice: Person, jobs: list[Job], chance: random.Random, tally: Tally) -> None:
    known = time.monotonic() - _KNOWN_AFTER_S
    over = [each for each in jobs[-20:] if each.ended_at is not None and each.ended_at < known]
    if over:
        _read(alice, chance.choice(over), tally)


def _read(alice: Person, job: Job, tally: Tally) -> tuple[list[int], int]:
    """The numbers of its lines, and how many bytes are shown to be absent."""
    said = alice.tries("logs", str(job.id), "-o", "json")
    records = [json.loads(line) for line in said.out.splitlines()]
    texts = [each["text"] for each in records if each["type"] == "line"]
    gaps = [each for each in records if each["type"] == "gap"]
    tally.asked += 1
    if said.code == _ABSENT:
        tally.refused += 1
    elif said.code == 0 and not texts and not gaps:
        tally.empty.append(job.id)
    return numbers(texts, job.writer), sum(each["lost_bytes"] or 0 for each in gaps)


def _in_the_end(alice: Person, job: Job, tally: Tally) -> tuple[int, int]:
    """How many of its lines are there, once and in order, and the bytes shown to be absent."""
    try:
        seen, lost = eventually(
            lambda: _read(alice, job, tally),
            lambda found: len(found[0]) >= job.lines or found[1] > 0,
            patience_s=_PATIENCE_S,
            pause_s=1.0,
        )
    except AssertionError as late:
        print(f"job {job.id}: {late}", file=sys.stderr)
        return 0, 0
    assert seen == sorted(set(seen)), f"job {job.id}: lines twice or out of order"
    return len(seen), lost


if __name__ == "__main__":
    words = [int(each) for each in sys.argv[1:]]
    sys.exit(main(*(words + [200, 1][len(words) :])))
