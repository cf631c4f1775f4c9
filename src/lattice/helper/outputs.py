"""The node's verbs about a job's output: opened as its owner, or noted for later.

    open_output        what stands behind descriptors of its processes
    open_output_file   one file by its path
    note_output        writes down what `open_output` would find, and opens nothing
    open_noted         what was written down, when the processes are gone

Two steps, because two rights are needed and must never meet. *Finding* what stands behind a
descriptor of another process takes CAP_SYS_PTRACE (`descriptors`). *Opening* it comes after this
process became the owner, with no capability left, so that the owner's own rights to that very
file decide, as on a share where root is nobody.

Nothing is opened by a name that could be exchanged meanwhile: what was found is what is looked at,
and what was looked at is what is opened. `open_output_file` and `open_noted` begin with a name; the
owner's own rights decide there too, links and all, and a noted file must be the very one of then.
"""

from __future__ import annotations

import os
import pwd
import signal
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

from lattice.base import packet
from lattice.domain.grant import Grant
from lattice.domain.privileged import (
    MOST_OUTPUTS,
    Answer,
    NoteOutput,
    OpenNoted,
    OpenOutput,
    OpenOutputFile,
    Outcome,
)
from lattice.helper.account import job_owner
from lattice.helper.descriptors import CHANGED, NAMED, STANDARD, Finder, Found, TooMany, reason
from lattice.helper.inode import Inodes
from lattice.helper.notes import Note, Notes
from lattice.helper.outputs_answer import Holding, Skipped, opened_answer
from lattice.helper.privilege import Kernel, become

_PATIENCE_S = 10
_OPENED = os.O_RDONLY | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC


class OutputFiles:
    """Used in a child of its own for each question: it is the user afterwards."""

    def __init__(
        self, kernel: Kernel, inodes: Inodes, notes: Notes | None, proc: Path = Path("/proc")
    ) -> None:
        """`notes` is None where nothing can be written down."""
        self._kernel = kernel
        self._inodes = inodes
        self._notes = notes
        self._proc = proc
        self._skipped: list[Skipped] = []

    def open(
        self, grant: Grant, question: OpenOutput, descriptors: Sequence[int]
    ) -> tuple[Answer, Sequence[int]]:
        """What the job's processes write to; processes of others are nothing.

        The one descriptor that may come with the question is an inotify instance of the asker's:
        its watches count for him, and neither for root nor for the owner.
        """
        account = self._begin(grant, descriptors)
        if isinstance(account, Answer):
            return account, ()
        finder = Finder(self._kernel, self._inodes, self._proc)
        try:
            found = finder.outputs_of(question.pids, grant.job_id, account)
        except TooMany as refusal:
            return Answer(outcome=Outcome.BAD_QUESTION, message=str(refusal)), ()
        self._skipped += finder.skipped
        fault = self._note(grant.job_id, found) if self._notes is not None else ""
        self._become(account)
        answer, passed = self._answer(account, found, descriptors)
        return replace(answer, message=answer.message or fault), passed

    def note(self, question: NoteOutput, descriptors: Sequence[int]) -> Answer:
        """How many files were written down: nobody is named, and nothing is given away."""
        if descriptors:
            return Answer(outcome=Outcome.BAD_QUESTION, message="no descriptors")
        signal.signal(signal.SIGALRM, signal.SIG_DFL)
        signal.alarm(_PATIENCE_S)
        noted, message = 0, ""
        finder = Finder(self._kernel, self._inodes, self._proc)
        # One process at a time: one that has too many files takes no other's away.
        for pid in dict.fromkeys(question.pids):
            try:
                found = finder.outputs_of((pid,), question.job_id, None)
            except TooMany as refusal:
                message = str(refusal)
                continue
            fault = self._note(question.job_id, found)
            message = fault or message
            noted += 0 if fault else len(found)
            packet.close_all(each.place for each in found)
        if message and not noted:
            return Answer(outcome=Outcome.FAILED, message=message)
        return Answer(outcome=Outcome.DONE, message=message, output=str(noted))

    def _note(self, job_id: int, found: Sequence[Found]) -> str:
        """As root. Why it could not be written down, or an empty text."""
        if self._notes is None:
            return "nothing can be written down here"
        try:
            self._notes.write(job_id, found)
        except OSError as error:
            return f"it can't be written down: {reason(error)}"
        return ""

    def open_noted(
        self, grant: Grant, question: OpenNoted, descriptors: Sequence[int]
    ) -> tuple[Answer, Sequence[int]]:
        """Those of the job's noted files that are still there, by the owner's rights of now."""
        account = self._begin(grant, descriptors)
        if isinstance(account, Answer):
            return account, ()
        assert self._notes is not None  # the verb is not offered without
        notes = self._notes.of(grant.job_id, account.pw_uid, question.since_ms, question.until_ms)
        page = notes[question.skip :][:MOST_OUTPUTS]
        more = len(notes) > question.skip + len(page)
        finder = Finder(self._kernel, self._inodes, self._proc)
        self._become(account)
        found = [each for note in page if (each := self._find_noted(account, note, finder))]
        return self._answer(account, found, descriptors, more=more)

    def _find_noted(self, account: pwd.struct_passwd, note: Note, finder: Finder) -> Found | None:
        """Now as the owner."""
        holders = [each.holding for each in note.holders]
        path = os.fsencode(note.path).decode(errors="replace")
        try:
            place = os.open(os.fsencode(note.path), NAMED)
            inode = self._inodes.look(place)
        except (OSError, ValueError) as error:
            self._skip(holders, f"{account.pw_name} can't reach it any more: {reason(error)}")
            return None
        fault = finder.fault(inode) if note.is_of(inode) else "there is another file now"
        if fault:
            os.close(place)
            self._skip(holders, fault)
            return None
        return Found(place, inode, path, holders[0].comm, holders=holders)

    def open_path(
        self, grant: Grant, question: OpenOutputFile, descriptors: Sequence[int]
    ) -> tuple[Answer, Sequence[int]]:
        """The file of that name, if the owner may read it."""
        account = self._begin(grant, descriptors)
        if isinstance(account, Answer):
            return account, ()
        finder = Finder(self._kernel, self._inodes, self._proc)
        self._become(account)
        try:
            place = os.open(question.path, NAMED)
            inode = self._inodes.look(place)
        except (OSError, ValueError) as error:
            return _no_file(f"{account.pw_name} can't reach it: {reason(error)}"), ()
        if fault := finder.fault(inode):
            return _no_file(fault), ()
        answer, passed = self._answer(account, [Found(place, inode, question.path)], descriptors)
        if self._skipped:
            packet.close_all(passed)
            return _no_file(self._skipped[0].why), ()
        return answer, passed

    def _begin(self, grant: Grant, descriptors: Sequence[int]) -> pwd.struct_passwd | Answer:
        if len(descriptors) > 1 or grant.job_id <= 0:
            return Answer(outcome=Outcome.BAD_QUESTION, message="a job, and one descriptor at most")
        account = job_owner(grant.user)
        if account is None:
            return Answer(outcome=Outcome.ACCOUNT_REFUSED, message="not the user of a job")
        # A share that does not answer holds this process; only its end frees it.
        signal.signal(signal.SIGALRM, signal.SIG_DFL)
        signal.alarm(_PATIENCE_S)
        return account

    def _become(self, account: pwd.struct_passwd) -> None:
        become(self._kernel, account)
        # Where the host lets owners debug what was privileged: not this process.
        self._kernel.hide_memory()

    def _answer(
        self,
        account: pwd.struct_passwd,
        found: Sequence[Found],
        notices: Sequence[int],
        *,
        more: bool | None = None,
    ) -> tuple[Answer, Sequence[int]]:
        """Now as the owner."""
        files, passed = [], []
        for each in found:
            opened = self._open(account, each)
            os.close(each.place)
            if opened is not None:
                files.append(each.opened(os.fstat(opened).st_size, self._watched(notices, opened)))
                passed.append(opened)
        answer = opened_answer(files, self._skipped, more=more)
        return answer, passed if answer.outcome is Outcome.DONE else ()

    def _open(self, account: pwd.struct_passwd, found: Found) -> int | None:
        """The very file that was found, by the owner's rights to it."""
        path = f"/proc/self/fd/{found.place}"
        # What Slurm's own processes hold besides (a log of theirs) is none of the job's, even
        # where everybody may read it: a job's output is its owner's, or one he may write to.
        if found.inode.uid != account.pw_uid and not os.access(path, os.W_OK):
            if all(each.descriptor in STANDARD for each in found.holders):
                self._skip(found.holders, f"{account.pw_name} may not write to it")
            return None
        try:
            opened = os.open(path, _OPENED)
        except OSError as error:
            self._skip(found.holders, f"{account.pw_name} can't read it: {reason(error)}")
            return None
        inode = self._inodes.look(opened)
        if inode.identity != found.inode.identity or inode.kind_fault:
            os.close(opened)
            self._skip(found.holders, CHANGED)
            return None
        return opened

    def _skip(self, holders: Sequence[Holding], why: str) -> None:
        first = holders[0] if holders else Holding(0, 0)
        self._skipped.append(Skipped(first.pid, first.descriptor, why))

    def _watched(self, notices: Sequence[int], opened: int) -> int:
        for each in notices:
            with suppress(OSError):
                return self._inodes.watch(each, opened)
        return -1


def _no_file(why: str) -> Answer:
    return Answer(outcome=Outcome.FAILED, message=why)
