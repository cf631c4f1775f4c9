"""The people of `bench.soak.sensitive`: they claim, release, attach, read, and note what they saw.

Each is a thread. What goes wrong for them is tried again, as people do; what they noted is judged
afterwards by `bench.soak.sensitive_history`.
"""

from __future__ import annotations

import json
import random
import re
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from typing import Any

from bench.soak.sensitive_history import (
    History,
    SeenClaim,
    SeenRead,
    SeenReservation,
    SeenTerminal,
)
from lab.command import LabError
from lab.laboratory import Lab
from lab.sensitive import VCLUSTER
from lattice.domain.audit import AuditAct
from tests.e2e.attached import Attached
from tests.e2e.log_lines import script
from tests.e2e.people import Person, Said

_PROGRAM = """
stty -echo; n=0
while :; do
  n=$((n + 1)); printf '%s %d %s %s\\n' "$0" $n $EPOCHREALTIME numbered-output-of-a-terminal
  read -r -t 0.1 word || continue
  printf 'typed %s\\n' "$word"; [ "$word" = end ] && exit 0
done
"""
"""Its first argument is the session. Nothing else writes, so each line is whole."""
_TYPED = re.compile(rb"^typed (\S+)\r$", re.MULTILINE)
_OPENS_WITHIN_S = 30.0
_LASTS_S = (2.0, 20.0)
_DRAINED_WITHIN_S = 12.0
_TYPED_EVERY_S = 0.7
_CLAIM = "lattice-claim-"
_LOOK_EVERY_S = 0.3
_ENDS = ("leave", "type end", "type end", "cut", "leave", "leave", "type end", "kill")
"""A client that was killed is waited for, for a minute, so that is rare."""
_RELEASE_TRIES = 60


@dataclass(slots=True)
class Site:
    """The lab, and what is noted of it."""

    lab: Lab
    seed: int
    history: History = field(default_factory=History)
    long_jobs: list[str] = field(default_factory=list)
    """Those that terminals are opened in, each on two nodes."""
    jobs: dict[str, str] = field(default_factory=dict)
    """All sensitive jobs, and whose they are."""
    counts: Counter[str] = field(default_factory=Counter)
    refusals: Counter[str] = field(default_factory=Counter)
    faults: list[str] = field(default_factory=list)
    """What a client of this soak did not expect of the lab."""
    done: threading.Event = field(default_factory=threading.Event)

    @contextmanager
    def people(self) -> Iterator[None]:
        """Everybody at work, until the block ends."""
        steps: list[tuple[str, Callable[[random.Random], None]]] = [
            ("reservations", self._watch_reservations),
            ("claims of dave", self._claiming("dave")),
            ("claims of erin", self._claiming("erin")),
            ("reader", self._reading()),
        ]
        steps += [
            (f"terminal in {job} on {node}", self._attaching(job, node))
            for job in self.long_jobs
            for node in ("n1", "n2")
        ]
        threads = [
            threading.Thread(
                target=self._run, args=(step, random.Random(f"{self.seed} {name}")), name=name
            )
            for name, step in steps
        ]
        for each in threads:
            each.start()
        try:
            yield
        finally:
            self.done.set()
            for each in threads:
                each.join()

    def _run(self, step: Callable[[random.Random], None], chance: random.Random) -> None:
        while not self.done.is_set():
            try:
                step(chance)
            except Exception as problem:  # noqa: BLE001 - it is judged with the rest
                self.faults.append(f"{threading.current_thread().name}: {problem!r}"[:300])
                self.done.wait(1.0)

    def ask(self, person: Person, chance: random.Random, *words: str) -> Said:
        """Of one server first, the other second."""
        urls = [each.url for each in self.lab.servers]
        chance.shuffle(urls)
        env = {**person.bearer, "LATTICE_API_URL": ",".join(urls)}
        said = person.lattice(*words, env=env, timeout_s=120)
        what = " ".join(words[:2]) if words[0] == "admin" else words[0]
        self.counts[f"{what}: {said.code}"] += 1
        return said

    # Reservations, as Slurm has them

    def reservations(self) -> dict[str, str]:
        """User and nodes of each reservation of a claim, by its name."""
        text = self.lab.ctl(["scontrol", "-o", "show", "reservation"]).stdout
        found = {}
        for line in text.splitlines():
            fields = dict(each.split("=", 1) for each in line.split() if "=" in each)
            if fields.get("ReservationName", "").startswith(_CLAIM):
                found[fields["ReservationName"]] = f"{fields['Users']} {fields['Nodes']}"
        return found

    def _watch_reservations(self, _: random.Random) -> None:
        self.look()
        self.done.wait(_LOOK_EVERY_S)

    def look(self) -> None:
        """Note which reservations have come and gone since the last look."""
        there = {each.removeprefix(_CLAIM) for each in self.reservations()}
        now = time.time()
        seen = self.history.reservations
        for place, each in enumerate(seen):
            if each.gone is None and each.claim not in there:
                seen[place] = SeenReservation(claim=each.claim, first=each.first, gone=now)
        known = {each.claim for each in seen if each.gone is None}
        seen += [SeenReservation(claim=each, first=now) for each in sorted(there - known)]

    # Claims

    def claim(self, person: Person, chance: random.Random, *nodes: str) -> str:
        """The id of a claim that this person has now; empty if it was refused."""
        said = self.ask(person, chance, "admin", "claim", *nodes, "-o", "json")
        answered = time.time()
        if said.code != 0:
            self._refused("claim", said)
            return ""
        answer = json.loads(said.out)
        claim = str(answer["claim"]["id"])
        if answer["changed"]:
            made = SeenClaim(claim=claim, user=person.name, answered=answered)
            self.history.claims.append(made)
        return claim

    def release(self, person: Person, chance: random.Random, claim: str) -> None:
        """Try until it is gone."""
        for _ in range(_RELEASE_TRIES):
            said = self.ask(person, chance, "admin", "release", claim, "-o", "json")
            answered = time.time()
            if said.code == 0:
                gone = SeenClaim(claim=claim, user=person.name, answered=answered)
                self.history.releases.append(gone)
                return
            self._refused("release", said)
            if "No claim" in said.err:
                return
            time.sleep(chance.uniform(0.5, 3.0))
        self.faults.append(f"claim {claim} of {person.name} can't be released: {said.err[-200:]}")

    def _claiming(self, name: str) -> Callable[[random.Random], None]:
        person = Person(self.lab, name).logged_in("sensitive:claim")

        def step(chance: random.Random) -> None:
            nodes = chance.choice((("n3",), ("n3",), ("n3",), ("n2", "n3"), ("n1",)))
            claim = self.claim(person, chance, *nodes)
            if claim:
                if chance.random() < 0.4:
                    self._short_job(person, claim, chance)
                else:
                    self.done.wait(chance.uniform(0.0, 3.0))
                self.release(person, chance, claim)
            self.done.wait(chance.uniform(0.5, 4.0))

        return step

    def submit(self, person: Person, claim: str, *options: str, wrap: str) -> str:
        words = (f"--reservation={_CLAIM}{claim}", f"--partition={VCLUSTER}", *options)
        job = str(self.lab.sbatch(person.name, *words, wrap=wrap))
        self.jobs[job] = person.name
        return job

    def _short_job(self, person: Person, claim: str, chance: random.Random) -> None:
        count = chance.randint(5, 60)
        wrap = script("short", count, pause_s=0.1)
        try:
            job = self.submit(person, claim, "-wn3", "-c1", "--mem=20", wrap=wrap)
        except LabError as problem:
            # The claim may be one that another try of the same person is about to end.
            self.refusals[f"sbatch: {str(problem)[-80:]}"] += 1
            return
        self.lab.wait_job_state(job, "COMPLETED", 180)
        self.counts["jobs"] += 1

    # Terminals

    def _attaching(self, job: str, node: str) -> Callable[[random.Random], None]:
        person = Person(self.lab, "alice").logged_in("sensitive:claim")

        def step(chance: random.Random) -> None:
            _Terminal(self, person, job, node, chance).run()
            self.done.wait(chance.uniform(0.5, 3.0))

        return step

    # Reads

    def _reading(self) -> Callable[[random.Random], None]:
        alice = Person(self.lab, "alice").logged_in("sensitive:claim")
        others = {name: Person(self.lab, name).logged_in() for name in ("dave", "erin")}

        def step(chance: random.Random) -> None:
            sessions = [each.session for each in self.history.terminals]
            if sessions and chance.random() < 0.4:
                session = chance.choice(sessions[-5:])
                words = ("replay", session, "--search", "numbered-output")
                self.read(alice, chance, AuditAct.RECORDING_READ, session, *words)
            else:
                job = chance.choice([*self.long_jobs, *list(self.jobs)[-4:]])
                reader = {"alice": alice, **others}[self.jobs[job]]
                self.read(reader, chance, AuditAct.LOG_READ, job, "logs", job, "--tail", "200")
            self.done.wait(chance.uniform(0.3, 2.0))

        return step

    def read(
        self, person: Person, chance: random.Random, act: AuditAct, target: str, *words: str
    ) -> Said:
        """A read, which is noted if it showed something."""
        asked = time.time()
        said = self.ask(person, chance, *words)
        if said.out:
            read = SeenRead(
                act=act, user=person.name, target=target, asked=asked, answered=time.time()
            )
            self.history.reads.append(read)
        elif said.code != 0:
            self._refused(words[0], said)
        return said

    def _refused(self, what: str, said: Said) -> None:
        first = said.err.strip().splitlines()[0] if said.err.strip() else ""
        plain = re.sub(r"[0-9a-f]{8,}|\d+", "#", first)[:110]
        self.refusals[f"{what} {said.code}: {plain}"] += 1


class _Terminal:
    """One try to have a terminal."""

    def __init__(
        self, site: Site, person: Person, job: str, node: str, chance: random.Random
    ) -> None:
        self._site = site
        self._person = person
        self._job = job
        self._node = node
        self._chance = chance
        self._opened: tuple[float, bool] | None = None
        self._typed = b""

    def run(self) -> None:
        session = f"{self._chance.getrandbits(128):032x}"
        client = Attached(
            self._site.lab,
            self._person,
            self._job,
            first=self._chance.randrange(2),
            session=session,
            node=self._node,
            command=["bash", "-c", _PROGRAM, session],
        )
        try:
            self._use(client)
            self._note(client, session)
        finally:
            client.close()

    def _use(self, client: Attached) -> None:
        with suppress(AssertionError):
            client.until(self._is_open, _OPENS_WITHIN_S)
        if self._opened is None:
            return
        until_s = time.monotonic() + self._chance.uniform(*_LASTS_S)
        ended = False
        while not ended and time.monotonic() < until_s and not self._site.done.is_set():
            if self._chance.random() < 0.05:
                self._order(client.cut)
            self._type(client)
            ended = self._take(client, _TYPED_EVERY_S)
        if not ended:
            self._end(client)

    def _is_open(self, event: dict[str, Any]) -> bool:
        word = event.get("word", {})
        if word.get("type") == "opened" and self._opened is None:
            self._opened = (time.time(), bool(word.get("recorded")))
        return self._opened is not None

    def _take(self, client: Attached, seconds: float) -> bool:
        """Note what comes for so long; True if the client has ended."""
        try:
            client.until(lambda _: False, seconds)
        except AssertionError as over:
            return bool(over.args[0][0] == "it ended")
        return False

    def _type(self, client: Attached) -> None:
        mark = f"mark-{self._chance.randrange(10**6)}\n"
        if self._order(lambda: client.type(mark)):
            self._typed += mark.encode()

    @staticmethod
    def _order(order: Callable[[], None]) -> bool:
        """False if the client is gone already."""
        try:
            order()
        except (OSError, ValueError):
            return False
        return True

    def _end(self, client: Attached) -> None:
        how = self._chance.choice(_ENDS)
        if how == "leave":
            self._order(client.leave)
        elif how == "type end":
            if self._order(lambda: client.type("end\n")):
                self._typed += b"end\n"
        elif how == "cut":
            self._order(client.cut)
        else:
            client.process.kill()
        self._take(client, _DRAINED_WITHIN_S)

    def _note(self, client: Attached, session: str) -> None:
        words = [each["word"] for each in client.events if "word" in each]
        last: dict[str, Any] = next(
            (each for each in reversed(words) if each["type"] in {"ended", "error"}), {}
        )
        reason = str(last.get("reason") or last.get("code") or "")
        if self._opened is None:
            self._site.refusals[f"attach: {reason} {str(last.get('message', ''))[:60]}"] += 1
            return
        self._site.counts[f"terminal ended: {reason or 'by its client'}"] += 1
        opened, recorded = self._opened
        shown = b"".join(
            each["text"].encode("latin-1")
            for each in client.events
            if each.get("message") in {"Output", "Errors"}
        )
        self._site.history.terminals.append(
            SeenTerminal(
                session=session,
                job=self._job,
                node=self._node,
                opened=opened,
                recorded=recorded,
                shown=shown,
                typed=_reached(shown, self._typed),
            )
        )


def _reached(shown: bytes, typed: bytes) -> bytes:
    """What was typed up to the last line that the program answered."""
    answers = _TYPED.findall(shown)
    if not answers:
        return b""
    end = typed.rfind(answers[-1] + b"\n")
    return typed[: end + len(answers[-1]) + 1]
