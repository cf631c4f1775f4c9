"""What must hold of sensitive work after a soak, and what each part of the site saw of it. Pure.

Each check returns a sentence for each violation. Nothing in it is believed of Lattice alone: acts
are those that clients, the bucket and Slurm saw, and only their entries are from the audit log.
All times are seconds of the one clock that the machines of a lab share.
"""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field

from lattice.domain.audit import AuditAct, AuditEntry, AuditOutcome

_LINE = re.compile(rb"^([0-9a-f]{32}) (\d+) (\d+\.\d+) \S+\r$", re.MULTILINE)
_SESSION = re.compile(r"session ([0-9a-f]{32})\b")
_END = len("attach-end-") + 32


@dataclass(frozen=True, slots=True, kw_only=True)
class SeenClaim:
    """A claim or a release of which a client was told that it was made."""

    claim: str
    user: str
    answered: float


@dataclass(frozen=True, slots=True, kw_only=True)
class SeenReservation:
    """A reservation in Slurm, of the claim with this id."""

    claim: str
    first: float
    """The end of the look that showed it first."""
    gone: float | None = None
    """The end of the look that no longer showed it; None: it is still there."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SeenRead:
    """A read that showed something: the output of a job, or the recording of a session."""

    act: AuditAct
    user: str
    target: str
    """The job, or the session."""
    asked: float
    answered: float


@dataclass(frozen=True, slots=True, kw_only=True)
class SeenTerminal:
    """A terminal that opened, as its client saw it."""

    session: str
    job: str
    node: str
    opened: float
    recorded: bool
    shown: bytes
    typed: bytes = b""
    """What was typed and certainly reached the program: its echo is among what was shown."""

    @property
    def span(self) -> tuple[float, float] | None:
        """When the program wrote the first and the last line that was shown, by its own stamps."""
        stamps = [float(each[3]) for each in _LINE.finditer(self.shown)]
        return (min(stamps), max(stamps)) if stamps else None


@dataclass(frozen=True, slots=True, kw_only=True)
class SeenRecording:
    """What a replay of a session gave."""

    output: bytes
    typed: bytes
    problem: str = ""
    """Why it is not whole, or not closed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SeenObject:
    """The first object of a session, or of the logs of a job, in the bucket."""

    job: str
    session: str
    """Empty: it is of the logs."""
    stored: float


@dataclass(slots=True, kw_only=True)
class History:
    """Everything that was seen."""

    entries: tuple[AuditEntry, ...] = ()
    """The whole audit log, in its order."""
    claims: list[SeenClaim] = field(default_factory=list)
    releases: list[SeenClaim] = field(default_factory=list)
    reservations: list[SeenReservation] = field(default_factory=list)
    reads: list[SeenRead] = field(default_factory=list)
    terminals: list[SeenTerminal] = field(default_factory=list)
    objects: list[SeenObject] = field(default_factory=list)
    ended: dict[str, float | None] = field(default_factory=dict)
    """When each session ended, as `lattice sessions` has it."""
    recordings: dict[str, SeenRecording] = field(default_factory=dict)
    jobs: set[str] = field(default_factory=set)
    """Sensitive jobs that ran and have ended."""
    claimed: dict[str, str] = field(default_factory=dict)
    """User and nodes of each claim in the end, by its reservation."""
    reserved: dict[str, str] = field(default_factory=dict)
    """The same of Slurm's reservations."""
    outputs: dict[str, tuple[int, list[int], bool]] = field(default_factory=dict)
    """By job: how many lines it wrote, which are shown, and whether absent ones are named."""

    @property
    def acts(self) -> int:
        """How many acts need an entry."""
        gone = sum(each.gone is not None for each in self.reservations)
        claims = len(self.claims) + len(self.releases) + len(self.reservations) + gone
        work = len(self.reads) + len(self.terminals) + len(self.objects)
        return claims + work + 2 * len(self.jobs)


def acts_without_entry(history: History) -> list[str]:
    """No act without its entry, committed before."""
    log = _Log(history.entries)
    return [
        *_claims_without_entry(history, log),
        *_terminals_without_entry(history, log),
        *_jobs_without_entry(history, log),
        *_reads_without_entry(history),
    ]


def entries_twice(history: History) -> list[str]:
    """No event twice, and no number of an entry left out."""
    events = Counter(each.event for each in history.entries)
    found = [f"event {event} is there {n} times" for event, n in sorted(events.items()) if n > 1]
    numbers = [each.sequence for each in history.entries]
    if numbers != list(range(1, len(numbers) + 1)):
        found.append("the entries are not numbered from 1 on, without a gap")
    return found


def terminals_at_once(history: History) -> list[str]:
    """Each job has one recorded terminal at most, at any moment."""
    found = [
        f"terminal {each.session} was not recorded"
        for each in history.terminals
        if not each.recorded
    ]
    by_job: dict[str, list[SeenTerminal]] = defaultdict(list)
    for each in sorted(history.terminals, key=lambda terminal: terminal.opened):
        by_job[each.job].append(each)
    for job, terminals in by_job.items():
        for place, second in enumerate(terminals):
            for first in terminals[:place]:
                found += _at_once(job, first, second, history.ended.get(first.session))
    return found


def bytes_not_recorded(history: History) -> list[str]:
    """The recording of a session begins with every byte that its client saw."""
    found = []
    for each in history.terminals:
        recording = history.recordings.get(each.session)
        if recording is None:
            found.append(f"terminal {each.session} has no recording")
            continue
        if recording.problem:
            found.append(f"recording {each.session}: {recording.problem}")
        if not recording.output.startswith(each.shown):
            at = _first_difference(recording.output, each.shown)
            found.append(
                f"terminal {each.session} showed {len(each.shown)} bytes, and its recording has "
                f"others from byte {at} on: {each.shown[at : at + 60]!r}, recorded "
                f"{recording.output[at : at + 60]!r}"
            )
        if not recording.typed.startswith(each.typed):
            found.append(f"terminal {each.session}: what was typed is not in its recording")
        numbers = [int(line[2]) for line in _LINE.finditer(recording.output)]
        if numbers != list(range(1, len(numbers) + 1)):
            found.append(f"recording {each.session} lacks lines that its program wrote")
    return found


def reservations_apart(history: History) -> list[str]:
    """Claims and Slurm's reservations agree."""
    names = sorted({*history.claimed, *history.reserved})
    return [
        f"{name}: claimed {history.claimed.get(name, 'by nobody')}, "
        f"reserved {history.reserved.get(name, 'for nobody')}"
        for name in names
        if history.claimed.get(name) != history.reserved.get(name)
    ]


def lines_lost(history: History) -> list[str]:
    """Every line of a job's output is shown once and in order, or shown to be absent."""
    found = []
    for job, (written, shown, absent) in sorted(history.outputs.items()):
        if shown != sorted(set(shown)):
            found.append(f"job {job}: lines twice or out of order")
        elif not absent and shown != list(range(written)):
            found.append(f"job {job}: {len(shown)} of {written} lines, and none is shown absent")
    return found


CHECKS = {
    "acts with their entry in the audit log before": acts_without_entry,
    "entries of the audit log, none twice": entries_twice,
    "recorded terminals, one at a time": terminals_at_once,
    "bytes that were seen, all of them recorded": bytes_not_recorded,
    "claims that agree with Slurm's reservations": reservations_apart,
    "lines of sealed output": lines_lost,
}


class _Log:
    """The audit log, by what is looked up."""

    def __init__(self, entries: Iterable[AuditEntry]) -> None:
        self._times: dict[str, float] = {}
        self._ends: dict[str, float] = {}
        self._attached: dict[str, float] = {}
        self._of_job: Counter[tuple[AuditAct, str]] = Counter()
        for each in entries:
            at = each.time.timestamp()
            # Behind the session is a hash of the whole name of the recording.
            event = each.event[:_END] if each.act is AuditAct.ATTACH_END else each.event
            self._times.setdefault(event, at)
            is_done = each.outcome is AuditOutcome.DONE
            if each.act is AuditAct.RELEASE and is_done:
                self._ends.setdefault(each.target, at)
            elif each.act is AuditAct.CLAIM and each.outcome is AuditOutcome.FAILED:
                # Slurm took it back: no act of anybody, so its entry may come after.
                self._ends[each.target] = 0.0
            named = _SESSION.search(each.detail)
            if each.act is AuditAct.ATTACH_START and is_done and named is not None:
                self._attached.setdefault(named[1], at)
            self._of_job[each.act, each.allocation.partition("@")[0]] += 1

    def has(self, event: str, *, before: float = float("inf")) -> bool:
        return event in self._times and self._times[event] <= before

    def released(self, claim: str, before: float) -> bool:
        """Or undone, whenever that was recorded."""
        return self._ends.get(claim, float("inf")) <= before

    def attached(self, session: str, before: float) -> bool:
        return self._attached.get(session, float("inf")) <= before

    def of_job(self, act: AuditAct, job: str) -> int:
        return self._of_job[act, job]


def _claims_without_entry(history: History, log: _Log) -> Iterator[str]:
    for claim in history.claims:
        if not log.has(f"claim-{claim.claim}", before=claim.answered):
            yield f"claim {claim.claim} of {claim.user} has no entry before its answer"
    for release in history.releases:
        if not log.released(release.claim, release.answered):
            yield f"release of {release.claim} has no entry before its answer"
    for each in history.reservations:
        if not log.has(f"claim-{each.claim}", before=each.first):
            yield f"Slurm had a reservation of {each.claim}, which has no entry before"
        if each.gone is not None and not log.released(each.claim, each.gone):
            yield f"Slurm's reservation of {each.claim} went without an entry before"


def _terminals_without_entry(history: History, log: _Log) -> Iterator[str]:
    for terminal in history.terminals:
        if not log.attached(terminal.session, terminal.opened):
            yield f"terminal {terminal.session} opened without an entry before"
        if not log.has(f"attach-end-{terminal.session}"):
            yield f"terminal {terminal.session} has no entry of its end"
    for stored in history.objects:
        if stored.session and not log.attached(stored.session, stored.stored):
            yield f"the bucket has a recording of {stored.session}, which has no entry before"


def _jobs_without_entry(history: History, log: _Log) -> Iterator[str]:
    for stored in history.objects:
        if not stored.session and not log.of_job(AuditAct.ALLOCATION_START, stored.job):
            yield f"the bucket has output of {stored.job}, whose start has no entry"
    for job in sorted(history.jobs):
        for act in (AuditAct.ALLOCATION_START, AuditAct.ALLOCATION_END):
            if (count := log.of_job(act, job)) != 1:
                yield f"job {job} has {count} entries {act.value}"


def _reads_without_entry(history: History) -> list[str]:
    """Each read has an entry of its own, between the question and the end of the answer."""
    times: dict[tuple[AuditAct, str, str], list[float]] = defaultdict(list)
    for each in history.entries:
        if each.act in (AuditAct.LOG_READ, AuditAct.RECORDING_READ):
            named = _SESSION.search(each.detail)
            of_session = each.act is AuditAct.RECORDING_READ and named is not None
            target = named[1] if of_session and named else each.allocation.partition("@")[0]
            if each.outcome is AuditOutcome.DONE:
                times[each.act, each.user, target].append(each.time.timestamp())
    found = []
    # The earliest entry for the read that ends first: if any assignment exists, this finds one.
    for read in sorted(history.reads, key=lambda read: read.answered):
        unused = times[read.act, read.user, read.target]
        fits = [at for at in unused if read.asked <= at <= read.answered]
        if fits:
            unused.remove(min(fits))
        else:
            found.append(f"{read.user} read {read.target}, and no {read.act.value} entry is of it")
    return found


def _at_once(
    job: str, first: SeenTerminal, second: SeenTerminal, first_ended: float | None
) -> list[str]:
    found = []
    if first_ended is None or first_ended > second.opened:
        found.append(
            f"job {job}: terminal {second.session} opened before {first.session} had ended"
        )
    one, two = first.span, second.span
    if one is not None and two is not None and one[1] >= two[0] and two[1] >= one[0]:
        found.append(
            f"job {job}: terminals {first.session} on {first.node} and {second.session} on "
            f"{second.node} were both seen for {min(one[1], two[1]) - max(one[0], two[0]):.1f} s"
        )
    return found


def _first_difference(one: bytes, other: bytes) -> int:
    for at, (left, right) in enumerate(zip(one, other, strict=False)):
        if left != right:
            return at
    return min(len(one), len(other))
