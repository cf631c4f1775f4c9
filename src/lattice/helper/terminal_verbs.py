"""The node's verbs `enter`, `enter_signed` and `rejoin`: terminals in jobs.

`enter` finds a process of the job and starts the program beside it (`terminal_process`). It answers
when that runs, with one end of a socket pair. Then its child stays as the holder. `enter_signed`
does so only where the job runs in signed images (`images`). `rejoin` connects to the holder's
socket (`sessions`) and answers with that connection.

The text of a refusal is for the owner of the job.
"""

from __future__ import annotations

import json
import os
import socket
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from pathlib import Path

from lattice.domain.grant import Act, Grant, written
from lattice.domain.privileged import (
    Answer,
    Enter,
    EnterSigned,
    Outcome,
    Rejoin,
    RejoinSigned,
    write_answer,
    write_request,
)
from lattice.helper.account import answers_refusals, granted_owner
from lattice.helper.guests import GuestProcesses
from lattice.helper.holder import ADMITTED
from lattice.helper.images import JobImages, NotSigned
from lattice.helper.job_entry import EntryMethod, Foresight, Owner
from lattice.helper.jobgroups import JobGroups, find_job
from lattice.helper.judge import read_unchecked
from lattice.helper.privilege import Kernel
from lattice.helper.sessions import HelperSessions, NoRoom
from lattice.helper.target import NoTarget, ProbeTarget, find_target, rehearse_target
from lattice.helper.terminal_process import (
    START_S,
    HeldProgram,
    NotStarted,
    StartedProgram,
    TerminalProcess,
)
from lattice.helper.tools import PATIENCE_S

UNCONTAINED = (
    "This cluster gives jobs no step to be joined (PrologFlags=Contain is not set). A terminal "
    "here would not be counted to the job, not be held to its limits, and not end with it"
)
SIGNED_ONLY = "Terminals of sensitive work open in signed images only"
_PROC = Path("/proc")
_CLOCKS_DIFFER_S = 5.0
_SLACK_S = 2.0
_LONGEST_S = START_S + PATIENCE_S + _SLACK_S
_MADE_UP = Grant(id="0" * 32, act=Act.ATTACH, place="", subject="", user="", issued=0, expires=0)
_ANY_TERMINAL = Enter("0" * 32, (), "", 1, 1, "", False)
_NO_SESSION = "There is no such session on this node: it is over, or was away for too long."


class Attaching:
    """Each request uses it in its own child."""

    def __init__(  # noqa: PLR0913 - what it is made of
        self,
        kernel: Kernel,
        node: str,
        sessions: HelperSessions,
        holding: TerminalProcess,
        *,
        control_groups: Path = Path("/sys/fs/cgroup"),
        tools: bool = True,
        images: JobImages | None = None,
        foresight: Foresight | None = None,
        to_server_time: Callable[[float], float] = lambda here_s: here_s,
        at: Callable[[str], None] = lambda _: None,
    ) -> None:
        """`to_server_time` converts a time of this node's clock to the servers' time.

        `at` is called with the name of each step of the entry, for tests.
        """
        self._kernel = kernel
        self._node = node
        self._sessions = sessions
        self._holding = holding
        self._control_groups = control_groups
        self._tools = tools
        self._images = images
        self._foresight = foresight
        self._to_server_time = to_server_time
        self._at = at
        self._started: StartedProgram | None = None
        self._opened: ExitStack | None = None
        """Descriptors of the target: the holder needs some of them until its process ends."""

    @answers_refusals
    def enter(
        self, grant: Grant, question: Enter, descriptors: Sequence[int]
    ) -> tuple[Answer, Sequence[int]]:
        """Start a terminal and pass back its socket."""
        if self._foresight is not None:
            self._foresight.begin()
        owner = _owner(grant, descriptors)
        if question.tools and not self._tools:
            return _failed("This site mounts no images of tools."), ()
        uid = owner.account.pw_uid
        try:
            groups = self._groups(grant, uid)
            guests = _guests(groups, question)
            with ExitStack() as opened:
                target = opened.enter_context(
                    find_target(self._kernel, _PROC, groups, uid, grant.job_id)
                )
                if isinstance(question, EnterSigned):
                    assert self._images is not None  # the verb is not offered without
                    self._images.require(target, owner)
                connection = self._enter(grant, question, owner, target, guests)
                self._opened = opened.pop_all()
                return Answer(outcome=Outcome.DONE), (connection.detach(),)
        except (NoTarget, NotStarted) as refusal:
            return _failed(str(refusal)), ()
        except NotSigned as refusal:
            return _failed(f"{SIGNED_ONLY}: {refusal}."), ()
        except NoRoom as refusal:
            return Answer(outcome=Outcome.BUSY, message=str(refusal)), ()

    def _groups(self, grant: Grant, uid: int) -> JobGroups:
        """The groups of the granted attempt. Raises `NoTarget`."""
        groups = find_job(self._control_groups, self._node, uid, grant.job_id)
        born = groups.born if groups is not None else None
        if groups is None or born is None:
            raise NoTarget(f"Job {grant.job_id} has nothing of yours running on {self._node}.")
        if grant.started and self._to_server_time(born) < grant.started - _CLOCKS_DIFFER_S:
            raise NoTarget(f"Job {grant.job_id} was started again meanwhile: ask anew.")
        return groups

    def _enter(
        self,
        grant: Grant,
        question: Enter,
        owner: Owner,
        target: ProbeTarget,
        guests: Sequence[str],
    ) -> socket.socket:
        """The client's end of the terminal. Raises `NoRoom`, `NotStarted`."""
        uid, recorded = owner.account.pw_uid, isinstance(question, EnterSigned)
        alone = self._sessions.claim_alone(grant.job_id) if recorded else -1
        try:
            listener, folder = self._sessions.claim(uid, question.session)
        except BaseException:
            if recorded:
                os.close(alone)
            raise
        theirs, ours = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        method = EntryMethod(
            kernel=self._kernel, target=target, owner=owner, guests=guests, at=self._at
        )
        held = HeldProgram(
            method=method,
            question=question,
            node=self._node,
            warnings=() if guests else (f"{UNCONTAINED.partition('. ')[2]}.",),
            connection=ours,
            listener=listener,
            folder=folder,
            belongs_to=_belonging(grant, recorded=recorded),
            others=GuestProcesses(guests[0], uid) if recorded else None,
            alone=alone,
            check_tools=self._images.fault if recorded and self._images is not None else None,
        )
        try:
            self._started = self._holding.start(held)
        except NotStarted:
            theirs.close()
            raise
        return theirs

    def rehearse(self) -> None:
        """Read a made-up request, and search for a job that no node has."""
        read_unchecked(write_request(written("", _MADE_UP.payload(), b""), _ANY_TERMINAL))
        find_job(self._control_groups, self._node, 0, 0)
        rehearse_target(self._kernel, _PROC)
        write_answer(_failed(""))

    def hold(self) -> None:
        """Hold the terminal that `enter` opened, until its end. The process must then end."""
        if self._started is not None:
            self._holding.hold(self._started)

    @answers_refusals
    def rejoin(
        self, grant: Grant, question: Rejoin, descriptors: Sequence[int]
    ) -> tuple[Answer, Sequence[int]]:
        """A new connection to the same terminal; the older one is closed."""
        self._kernel.set_capabilities(())  # root's uid is enough to connect
        owner = _owner(grant, descriptors)
        try:
            connection = self._sessions.connect(owner.account.pw_uid, question.session)
        except OSError:
            return _failed(_NO_SESSION), ()
        try:
            recorded = isinstance(question, RejoinSigned)
            belonging = _belonging(grant, recorded=recorded)
            connection.sendall(json.dumps(belonging).encode())
            admitted = connection.recv(len(ADMITTED)) == ADMITTED
        except OSError:
            admitted = False
        if not admitted:
            connection.close()
            return _failed(_NO_SESSION), ()
        return Answer(outcome=Outcome.DONE), (connection.detach(),)


def _guests(groups: JobGroups, question: Enter) -> tuple[str, ...]:
    guests = groups.guests
    if not guests and (isinstance(question, EnterSigned) or not question.uncontained):
        raise NoTarget(f"{UNCONTAINED}.")
    return guests


def _owner(grant: Grant, descriptors: Sequence[int]) -> Owner:
    return Owner.of(granted_owner(grant, descriptors, int(_LONGEST_S + _SLACK_S)))


def _belonging(grant: Grant, *, recorded: bool) -> dict[str, str]:
    """The values that identify the owner of a session, and whether it is recorded."""
    values = {"user": grant.user, "subject": grant.subject, "job": str(grant.job_id)}
    return {**values, "recorded": "yes"} if recorded else values


def _failed(message: str) -> Answer:
    return Answer(outcome=Outcome.FAILED, message=message)
