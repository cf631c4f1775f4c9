"""Ten minutes of kills and cuts while people do sensitive work: what must hold holds afterwards.

just soak sensitive [SECONDS] [SEED]

Its own lab, with two servers. Three lanes of faults (`bench.soak.sensitive_chaos`) kill, stop and
cut off servers, members of etcd, the object store, the gate, agents and nodes, each every few
seconds. Meanwhile people claim and release nodes, run sensitive jobs, open recorded terminals on
two nodes of a job at the same time, replay recordings and read sealed output
(`bench.soak.sensitive_clients`). Afterwards all of it is put right, and what was seen is compared
with the audit log, the recordings and Slurm (`bench.soak.sensitive_history`). 60 seconds are enough
to try it. Needs root; it takes some minutes more than it is asked for.
"""

from __future__ import annotations

import asyncio
import json
import random
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import datetime
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory

from bench.figures import Figure, load
from bench.soak.sensitive_chaos import Chaos
from bench.soak.sensitive_clients import Site
from bench.soak.sensitive_history import CHECKS, History, SeenObject, SeenRecording
from lab.addresses import SEAWEED_S3_PORT
from lab.command import LabError
from lab.doorway import Doorway
from lab.laboratory import Lab
from lab.sensitive import serve_sensitive_work
from lab.signed_image import signed_image
from lattice.domain.asciicast import CastKind, read_event
from lattice.domain.audit import AuditAct, AuditEntry, decode
from tests.e2e.log_lines import numbers, script
from tests.e2e.people import Person, Said
from tests.e2e.put_right import administrator, put_right
from tests.e2e.sealed_bucket import sensitive_bucket
from tests.eventually import eventually

_NAME = "sensitive"
_PARTS = ("slurm", "oidc", "etcd", "seaweedfs", "server", "agents")
_TOKEN_S = 7200
_SECONDS = 600.0
_SETTLED_WITHIN_S = 300.0
_ABSENT = 76
_WAITS = "while ! [ -e ~/done-$SLURM_JOB_ID ]; do sleep 0.5; done"
_STORED_S = 1.0
"""The store tells times in whole seconds."""


def main(seconds: float, seed: int) -> int:
    lab = Lab(_NAME, parts=_PARTS, servers=2, access_token_ttl_s=_TOKEN_S)
    begun = time.monotonic()
    try:
        lab.up()
        serve_sensitive_work(lab)
        with signed_image(lab, "n1", "n2"):
            return _soak(lab, seconds, seed, begun)
    finally:
        lab.down(purge=True)


def _soak(lab: Lab, seconds: float, seed: int, begun: float) -> int:
    site, olga = Site(lab, seed), administrator(lab)
    alice = Person(lab, "alice").logged_in("sensitive:claim")
    chance = random.Random(seed)
    claim = eventually(lambda: site.claim(alice, chance, "n1", "n2"))
    # A terminal needs a process of the job on its node.
    writes = script("long", 10**6, pause_s=0.2)
    begins = f"srun -N2 -n2 sleep 100000 & step=$!; {writes} & writer=$!"
    wrap = f"{begins}; {_WAITS}; kill $writer $step; exit 0"
    site.look()
    for _ in range(2):
        job = site.submit(alice, claim, "-N2", "-wn[1-2]", "--mem=50", wrap=wrap)
        lab.wait_job_state(job, "RUNNING")
        site.long_jobs.append(job)
    chaos = Chaos(lab, seed)
    with site.people(), chaos.running():
        time.sleep(seconds)
    _say(f"chaos is over: {dict(chaos.done)}")
    put_right(lab, olga)
    _settle(site, alice, olga, claim)
    with TemporaryDirectory() as folder:
        _gather(site, olga, Path(folder))
    return _judge(site, chaos, olga, seconds, seed, begun)


# Afterwards


def _settle(site: Site, alice: Person, olga: Person, claim: str) -> None:
    """What was left is finished by the servers themselves: only the work ends."""
    chance, lab, history = random.Random(0), site.lab, site.history
    for job in site.long_jobs:
        with _late(site, f"job {job} ends"):
            lab.run_as("alice", ["touch", f"done-{job}"])
            lab.wait_job_state(job, "COMPLETED", 120)
    with _late(site, "claims and reservations agree"):
        _until(lambda: _claims(olga) == site.reservations())
    site.look()
    history.claimed, history.reserved = _claims(olga), site.reservations()
    with _late(site, "recordings are closed"):
        _until(lambda: _closed(alice) >= {each.session for each in history.terminals}, pause_s=5)
    with _late(site, "ends of jobs are recorded"):
        _until(lambda: _ended_jobs(site) >= set(site.jobs), pause_s=5)
    people = {name: Person(lab, name).logged_in() for name in set(site.jobs.values())}
    for job, name in site.jobs.items():
        with _late(site, f"the output of {job} is there"):
            _until(partial(_is_shown, site, people[name], job), pause_s=3)
    site.release(alice, chance, claim)
    with _late(site, "nothing is claimed or reserved"):
        _until(lambda: not _claims(olga) and not site.reservations())
    site.look()


@contextmanager
def _late(site: Site, what: str) -> Iterator[None]:
    """A step that is not done in time is a fault, and the others are still judged."""
    begun = time.monotonic()
    try:
        yield
    except (AssertionError, LabError) as late:
        site.faults.append(f"not in time: {what}: {str(late)[:200]}")
    _say(f"{what}: {time.monotonic() - begun:.1f} s")


def _until(is_so: Callable[[], bool], pause_s: float = 1.0) -> None:
    eventually(is_so, patience_s=_SETTLED_WITHIN_S, pause_s=pause_s)


def _claims(olga: Person) -> dict[str, str]:
    """The same as the reservations, as the servers have it; one that is between two steps too."""
    said = olga.tries("admin", "claims", "-o", "json")
    claims = json.loads(said.out)["claims"] if said.code == 0 else [{"step": "unknown"}]
    if any(each["step"] != "claimed" for each in claims):
        return {"between": "two steps"}
    return {each["reservation"]: f"{each['user']} {each['nodes']}" for each in claims}


def _closed(alice: Person) -> set[str]:
    """Sessions whose recording the audit log names."""
    said = alice.tries("audit", "query", "--act", "attach-end", "--limit", "1000", "-o", "json")
    rows = json.loads(said.out)["rows"] if said.code == 0 else []
    return {each["event"].removeprefix("attach-end-")[:32] for each in rows}


def _ended_jobs(site: Site) -> set[str]:
    found = set()
    for name in sorted(set(site.jobs.values())):
        person = Person(site.lab, name).logged_in()
        words = ("audit", "query", "--act", "allocation-end", "--limit", "1000", "-o", "json")
        said = person.tries(*words)
        rows = json.loads(said.out)["rows"] if said.code == 0 else []
        found |= {each["allocation"].partition("@")[0] for each in rows}
    return found


def _is_shown(site: Site, person: Person, job: str) -> bool:
    """Note what is shown of its output; True if that is all, or says what is absent."""
    name = site.jobs[job]
    own = (site.lab.layout.home / name / f"slurm-{job}.out").read_text()
    writer = "long" if job in site.long_jobs else "short"
    written = len(numbers(own.splitlines(keepends=True), writer))
    said = site.read(person, random.Random(), AuditAct.LOG_READ, job, "logs", job, "-o", "json")
    records = [json.loads(line) for line in said.out.splitlines()]
    shown = numbers([each["text"] for each in records if each["type"] == "line"], writer)
    absent = any(each["type"] == "gap" for each in records) or said.code == _ABSENT
    site.history.outputs[job] = (written, shown, absent)
    return len(shown) >= written or absent


def _gather(site: Site, olga: Person, folder: Path) -> None:
    """The audit log, the recordings, the records of sessions and the bucket."""
    history, lab = site.history, site.lab
    history.jobs = set(site.jobs)
    alice = Person(lab, "alice").logged_in("sensitive:claim")
    for each in alice.asks("sessions", "--all")["sessions"]:
        ended = each["ended"]
        history.ended[each["id"]] = datetime.fromisoformat(ended).timestamp() if ended else None
    for session in [each.session for each in history.terminals]:
        history.recordings[session] = _recording(site, alice, session)
    history.objects = asyncio.run(_objects(lab, folder))
    # Last, so that it has the entries of these reads too.
    history.entries = _entries(lab, olga)


def _recording(site: Site, alice: Person, session: str) -> SeenRecording:
    file = site.lab.layout.home / "alice" / f"{session}.cast"
    said = site.read(
        alice, random.Random(), AuditAct.RECORDING_READ, session,
        "replay", session, "--save", f"/home/alice/{file.name}",
    )  # fmt: skip
    problem = "" if said.code == 0 and "is whole" in said.err else said.err.strip()[-300:]
    if not file.exists():
        return SeenRecording(output=b"", typed=b"", problem=problem or "it is empty")
    events = [read_event(line, 0) for line in file.read_bytes().splitlines()[1:]]
    file.unlink()
    return SeenRecording(
        output=b"".join(each.data for each in events if each.kind is CastKind.OUTPUT),
        typed=b"".join(each.data for each in events if each.kind is CastKind.INPUT),
        problem=problem,
    )


async def _objects(lab: Lab, folder: Path) -> list[SeenObject]:
    """The first object of each session and of each job's logs."""
    first: dict[tuple[str, str], float] = {}
    with Doorway(lab.network, (SEAWEED_S3_PORT,)) as doorway:
        store = sensitive_bucket(doorway, folder)
        async for each in store.listing(""):
            _, _, job, kind, *rest = each.key.split("/")
            found = job, rest[1] if kind == "recordings" else ""
            at = each.modified.timestamp() + _STORED_S
            first[found] = min(at, first.get(found, at))
    return [SeenObject(job=job, session=rest, stored=at) for (job, rest), at in first.items()]


def _entries(lab: Lab, olga: Person) -> tuple[AuditEntry, ...]:
    bundle = lab.layout.home / "alice" / "audit.bundle"
    said = olga.lattice("audit", "export", f"/home/alice/{bundle.name}", env=olga.bearer)
    assert said.code == 0, said
    found = []
    for line in bundle.read_bytes().splitlines():
        _, _, entry = line.partition(b" ")
        if line[:1] not in (b"#", b"=", b"!"):
            found.append(decode(entry))
    return tuple(found)


# The verdict


def _judge(site: Site, chaos: Chaos, olga: Person, seconds: float, seed: int, begun: float) -> int:
    history = site.history
    faults = sum(chaos.done.values())
    values = _values(history)
    ok = []
    for name, check in CHECKS.items():
        violations = check(history)
        ok.append(_print(name, values[name], violations))
    verdicts = [
        olga.lattice(*words, env=olga.bearer, timeout_s=300)
        for words in (("audit", "verify"), ("audit", "verify", "/home/alice/audit.bundle"))
    ]
    bad = [_text(each) for each in verdicts if each.code != 0]
    ok.append(_print("entries that lattice audit verify finds whole", len(history.entries), bad))
    problems = [*chaos.problems, *site.faults]
    Figure(
        name="kills, stops and cuts during sensitive work",
        value=faults,
        unit="faults",
        ok=not problems and faults > 0,
    ).print(
        chaos_s=seconds,
        seed=seed,
        every_s=round(seconds / max(faults, 1), 1),
        faults=dict(sorted(chaos.done.items())),
        clients=dict(sorted(site.counts.items())),
        refusals=dict(Counter(site.refusals).most_common(25)),
        problems=problems[:20],
        seconds=round(time.monotonic() - begun, 1),
        load=load(),
    )
    return 0 if all(ok) and not problems else 1


def _values(history: History) -> dict[str, int]:
    seen = sum(len(each.shown) for each in history.terminals)
    lines = sum(len(shown) for _, shown, _ in history.outputs.values())
    counts = (
        history.acts, len(history.entries), len(history.terminals), seen,
        len({each.claim for each in history.reservations}), lines,
    )  # fmt: skip
    return dict(zip(CHECKS, counts, strict=True))


def _print(name: str, value: int, violations: list[str]) -> bool:
    unit = name.partition(" ")[0].rstrip(",")
    ok = not violations and value > 0
    Figure(name=name, value=value, unit=unit, ok=ok).print(
        violations=len(violations), first_violations=violations[:20]
    )
    return ok


def _text(said: Said) -> str:
    return f"{said.code}: {said.out}{said.err}"[-500:]


def _say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


if __name__ == "__main__":
    words = sys.argv[1:]
    sys.exit(main(float(words[0]) if words else _SECONDS, int(words[1]) if words[1:] else 1))
