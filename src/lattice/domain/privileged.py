"""The protocol of the root helper: its verbs, one typed question each, and its answers. Pure.

Both ends use only this module: the helper decodes strictly, its clients encode. A question's digest
covers all of it, and the grant carries that digest. So a question can't be changed after the server
permitted it. Payloads (a script) are sent as descriptors, and the question names them by their
SHA-256. The method `fault` of a question returns why it is invalid, or an empty text.
"""

from __future__ import annotations

import hashlib
import json
import re
from dataclasses import asdict, dataclass, fields
from enum import StrEnum
from typing import Any, TypeAlias, TypeVar

from lattice.base.strictjson import read_fields, read_json
from lattice.domain.administration import (
    AdministrationQuestion,
    ListReservations,
    MakeReservation,
    NodeQuestion,
    RemoveReservation,
    RightsQuestion,
    TenantQuestion,
    VerbGroup,
)
from lattice.domain.grant import Act
from lattice.domain.stream import is_session
from lattice.domain.submission import CancelQuestion, SubmitQuestion
from lattice.domain.terminal import LARGEST_SIDE

MOST_PIDS = 128
MOST_OUTPUTS = 64
"""Files in one answer."""
LONGEST_PATH_BYTES = 4096
MOST_ARGUMENTS = 256
LONGEST_COMMAND = 8192
SHORTEST_PROBE_MS = 50
LONGEST_PROBE_MS = 15_000
_LARGEST_PID = 2**22
_LARGEST_JOB = 2**32
_LARGEST_TIME = 2**53
_LONGEST_SIGNED = 2048
_DOMAIN = b"lattice question 1\n"
_TERMINAL = re.compile(r"(?:[A-Za-z0-9][A-Za-z0-9+._-]{0,63})?", re.ASCII)


class HelperRole(StrEnum):
    """Where a helper runs: on a node, or beside the server as the submit gate."""

    NODE = "node"
    GATE = "gate"


class BadQuestion(Exception):
    """Not a question, or one with an invalid field. The text is for the log."""


def _pids_fault(pids: tuple[int, ...]) -> str:
    if not 0 < len(pids) <= MOST_PIDS:
        return f"between 1 and {MOST_PIDS} processes at once"
    return "" if all(0 < each <= _LARGEST_PID for each in pids) else "a number is no process id"


def _patience_fault(timeout_ms: int) -> str:
    fits = SHORTEST_PROBE_MS <= timeout_ms <= LONGEST_PROBE_MS
    return "" if fits else f"between {SHORTEST_PROBE_MS} and {LONGEST_PROBE_MS} ms"


def _path_fault(path: str) -> str:
    if not path.startswith("/") or "\0" in path:
        return "the path is not absolute"
    try:
        long = len(path.encode()) > LONGEST_PATH_BYTES
    except UnicodeEncodeError:
        return "the path is no text"
    return "the path is too long" if long else ""


@dataclass(frozen=True, slots=True)
class Enter:
    """A terminal in the granted job, as its owner, that outlives its connections for a while.

    The answer carries one socket with the frames of a pipe (`lattice.domain.pipe`), a packet each.
    Its messages are those of `lattice.domain.terminal`.
    """

    session: str
    argv: tuple[str, ...]
    """The command; empty: the owner's login shell."""
    terminal: str
    """The value of TERM; empty: pipes instead of a terminal."""
    rows: int
    columns: int
    tools: str
    """The path of an image to mount for this terminal alone; empty: none."""
    uncontained: bool
    """Whether to enter a job without a step for accounting (no `PrologFlags=Contain`)."""

    def fault(self) -> str:
        if not is_session(self.session):
            return "the session is not named well"
        if len(self.argv) > MOST_ARGUMENTS or sum(map(len, self.argv)) > LONGEST_COMMAND:
            return "the command is too long"
        if any("\0" in each for each in self.argv) or (self.argv and not self.argv[0]):
            return "the command can't be run"
        if not _TERMINAL.fullmatch(self.terminal):
            return "the terminal is not named well"
        if not (0 < self.rows <= LARGEST_SIDE and 0 < self.columns <= LARGEST_SIDE):
            return "a size that no terminal has"
        return _path_fault(self.tools) if self.tools else ""


@dataclass(frozen=True, slots=True)
class EnterSigned(Enter):
    """As `Enter`, for sensitive work.

    The job, and the image of tools, must be images that the site has signed. The terminal ends
    soon after the connection to its recorder, with every process that was started in it.
    """


@dataclass(frozen=True, slots=True)
class Rejoin:
    """The terminal of that session again, over a new socket, for the same caller and user."""

    session: str

    def fault(self) -> str:
        return "" if is_session(self.session) else "the session is not named well"


@dataclass(frozen=True, slots=True)
class RejoinSigned(Rejoin):
    """As `Rejoin`, for a terminal of `EnterSigned`. Neither fits a terminal of the other."""


@dataclass(frozen=True, slots=True)
class OpenOutput:
    """The files that processes of the granted job write their output to, opened as its owner.

    Those are descriptors 1 and 2 of any process, and every descriptor of Slurm's own two writers,
    `srun` and `slurmstepd`.
    """

    pids: tuple[int, ...]

    def fault(self) -> str:
        return _pids_fault(self.pids)


@dataclass(frozen=True, slots=True)
class OpenOutputFile:
    """A file of the granted job by its path, opened as the job's owner."""

    path: str

    def fault(self) -> str:
        return _path_fault(self.path)


@dataclass(frozen=True, slots=True)
class NoteOutput:
    """Record which files these processes of a job have open as output. Discloses nothing."""

    job_id: int
    pids: tuple[int, ...]

    def fault(self) -> str:
        if not 0 < self.job_id <= _LARGEST_JOB:
            return "a number is no job id"
        return _pids_fault(self.pids)


@dataclass(frozen=True, slots=True)
class OpenNoted:
    """Recorded files of the granted job, opened as its owner when the writers have ended.

    Selects files with writers that began between two times, in milliseconds since 1970. An end of 0
    is none. One answer has `MOST_OUTPUTS` of them, after `skip` others.
    """

    since_ms: int
    until_ms: int
    skip: int

    def fault(self) -> str:
        numbers = (self.since_ms, self.until_ms, self.skip)
        return "" if all(0 <= each < _LARGEST_TIME for each in numbers) else "a number is too large"


@dataclass(frozen=True, slots=True)
class WatchCounters:
    """A conversation about the kernel's counters of jobs here: numbers, and nothing else.

    The answer comes at once. The rest of the connection is `lattice.domain.counters`.
    """


@dataclass(frozen=True, slots=True)
class ProbeMounts:
    """Probe the mounts that the granted job sees, each as its owner.

    The answer carries one descriptor: sealed memory with `lattice.domain.probed` in it. So do the
    answers to the two below.
    """

    timeout_ms: int
    """How long each mount may take."""

    def fault(self) -> str:
        return _patience_fault(self.timeout_ms)


@dataclass(frozen=True, slots=True)
class ReadTasks:
    """The processes that do the work of the granted job's ranks, and their state."""


@dataclass(frozen=True, slots=True)
class DumpStacks:
    """The stacks of the processes that do the work of the granted job's ranks."""

    timeout_ms: int
    """How long all of them together may take."""

    def fault(self) -> str:
        return _patience_fault(self.timeout_ms)


@dataclass(frozen=True, slots=True)
class Challenge:
    """A nonce for a server to sign with its time, in the output. Valid once, for seconds."""


@dataclass(frozen=True, slots=True)
class SetClock:
    """The server's signed time in answer to the challenge (`lattice.domain.signedtime`).

    From then on grants are checked by that time and not by the node's own clock.
    """

    signed: str

    def fault(self) -> str:
        return "" if 0 < len(self.signed) <= _LONGEST_SIGNED else "no signed time"


Question: TypeAlias = (
    Enter
    | Rejoin
    | OpenOutput
    | OpenOutputFile
    | NoteOutput
    | OpenNoted
    | WatchCounters
    | ProbeMounts
    | ReadTasks
    | DumpStacks
    | Challenge
    | SetClock
    | SubmitQuestion
    | CancelQuestion
    | AdministrationQuestion
)


@dataclass(frozen=True, slots=True)
class Verb:
    name: str
    role: HelperRole
    act: Act
    question: type[Question]
    granted: bool = True
    """True if it needs a grant. Four don't: they disclose nothing, or only numbers."""
    lasting: bool = False
    """Its child process continues the conversation after the answer."""
    group: VerbGroup | None = None
    """What the site must allow the gate for this verb; None: nothing."""


VERBS: dict[str, Verb] = {
    verb.name: verb
    for verb in (
        Verb("enter", HelperRole.NODE, Act.ATTACH, Enter),
        Verb("enter_signed", HelperRole.NODE, Act.ATTACH, EnterSigned),
        Verb("rejoin", HelperRole.NODE, Act.ATTACH, Rejoin),
        Verb("rejoin_signed", HelperRole.NODE, Act.ATTACH, RejoinSigned),
        Verb("open_output", HelperRole.NODE, Act.READ_OUTPUT, OpenOutput),
        Verb("open_output_file", HelperRole.NODE, Act.READ_OUTPUT, OpenOutputFile),
        Verb("note_output", HelperRole.NODE, Act.READ_OUTPUT, NoteOutput, granted=False),
        Verb("open_noted", HelperRole.NODE, Act.READ_OUTPUT, OpenNoted),
        Verb(
            "watch_counters",
            HelperRole.NODE,
            Act.READ_COUNTERS,
            WatchCounters,
            granted=False,
            lasting=True,
        ),
        Verb("probe_mounts", HelperRole.NODE, Act.PROBE_MOUNTS, ProbeMounts),
        Verb("read_tasks", HelperRole.NODE, Act.READ_FACTS, ReadTasks),
        Verb("dump_stacks", HelperRole.NODE, Act.DUMP_STACKS, DumpStacks),
        Verb("challenge", HelperRole.NODE, Act.CLOCK, Challenge, granted=False),
        Verb("set_clock", HelperRole.NODE, Act.CLOCK, SetClock, granted=False),
        Verb("submit", HelperRole.GATE, Act.SUBMIT, SubmitQuestion),
        Verb("cancel", HelperRole.GATE, Act.CANCEL, CancelQuestion),
        Verb(
            "change_nodes",
            HelperRole.GATE,
            Act.CHANGE_NODES,
            NodeQuestion,
            group=VerbGroup.NODES,
        ),
        Verb(
            "change_tenant",
            HelperRole.GATE,
            Act.CHANGE_TENANT,
            TenantQuestion,
            group=VerbGroup.TENANTS,
        ),
        Verb(
            "make_reservation",
            HelperRole.GATE,
            Act.MAKE_RESERVATION,
            MakeReservation,
            group=VerbGroup.CLAIMS,
        ),
        Verb(
            "remove_reservation",
            HelperRole.GATE,
            Act.REMOVE_RESERVATION,
            RemoveReservation,
            group=VerbGroup.CLAIMS,
        ),
        Verb(
            "list_reservations",
            HelperRole.GATE,
            Act.LIST_RESERVATIONS,
            ListReservations,
            group=VerbGroup.CLAIMS,
        ),
        Verb("show_rights", HelperRole.GATE, Act.SHOW_RIGHTS, RightsQuestion),
    )
}
_NAME_OF = {verb.question: verb.name for verb in VERBS.values()}


def verb_of(question: Question) -> Verb:
    return VERBS[_NAME_OF[type(question)]]


def digest_of(question: Question) -> str:
    """The digest that the grant for this question must carry."""
    return hashlib.sha256(_DOMAIN + _written({"": _fields_of(question)})).hexdigest()


def write_request(grant: str, question: Question) -> bytes:
    """A question with its grant, encoded for the helper."""
    return _written({"grant": grant, **_fields_of(question)})


def read_request(raw: bytes) -> tuple[str, Verb, Question]:
    """Decode the grant's text, the verb and the question, strictly. Raises `BadQuestion`."""
    document = _object(raw, {"grant", "verb", "question"})
    grant, name = document["grant"], document["verb"]
    if type(grant) is not str or type(name) is not str:
        raise BadQuestion("grant and verb are texts")
    verb = VERBS.get(name)
    if verb is None:
        raise BadQuestion("a verb that is not known")
    return grant, verb, _decoded(document["question"], verb.question)


class Outcome(StrEnum):
    DONE = "done"
    FAILED = "failed"
    """The program ended with a code other than 0; its text is the message."""
    UNSURE = "unsure"
    """The program was ended before it answered: its effect is unknown."""
    ACCOUNT_REFUSED = "account_refused"
    DIRECTORY_REFUSED = "directory_refused"
    NOT_OFFERED = "not_offered"
    REFUSED = "refused"
    """No grant for this, or not the user that the helper serves."""
    UNTIMELY = "untimely"
    """A grant that is not valid by the helper's clock, which can be set."""
    BAD_QUESTION = "bad_question"
    BUSY = "busy"
    BROKEN = "broken"
    """A defect of the helper."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """The helper's answer. `output` is what the program wrote, if the verb returns that."""

    outcome: Outcome
    message: str = ""
    exit_code: int = 0
    output: str = ""
    notes: tuple[str, ...] = ()


def write_answer(answer: Answer) -> bytes:
    return _written(asdict(answer))


def read_answer(raw: bytes) -> Answer:
    """Decode an answer. Raises `BadQuestion`."""
    document = _object(raw, {field.name for field in fields(Answer)})
    return _decoded(document, Answer)


def _fields_of(question: Question) -> dict[str, Any]:
    return {"verb": verb_of(question).name, "question": asdict(question)}


def _written(document: dict[str, Any]) -> bytes:
    return json.dumps(document, sort_keys=True, separators=(",", ":")).encode()


def _object(raw: bytes, names: set[str]) -> dict[str, Any]:
    try:
        # Two parsers could each take another of two equal names.
        document = read_json(raw)
    except ValueError:
        raise BadQuestion("not a JSON object") from None
    if not isinstance(document, dict) or document.keys() != names:
        raise BadQuestion(f"not the fields {', '.join(sorted(names))}")
    return document


_T = TypeVar("_T")


def _decoded(document: Any, kind: type[_T]) -> _T:
    try:
        made = read_fields(document, kind)
    except ValueError as error:
        raise BadQuestion(str(error)) from None
    fault = getattr(made, "fault", None)
    problem = fault() if fault is not None else ""
    if problem:
        raise BadQuestion(problem)
    return made
