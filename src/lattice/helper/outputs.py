"""The node's verbs for a job's output: open it as its owner, or note it for later.

    open_output        The files behind descriptors of its processes.
    open_output_file   One file by its path.
    note_output        Records what `open_output` would find; opens nothing.
    open_noted         The recorded files, when the processes are gone.

There are two steps, because they need two rights that must never be combined. *Finding* the file
behind another process's descriptor needs CAP_SYS_PTRACE (`descriptors`). *Opening* it happens after
this process became the owner and has no capability left. So the owner's rights to that file decide,
also on a share that maps root to nobody.

No file is opened by a name that could be replaced meanwhile: the file that was found is the one
that is checked and opened. `open_output_file` and `open_noted` start with a name. There the owner's
rights decide too, also for links, and a noted file must still be the same file.
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
from lattice.helper.account import answers_refusals, granted_owner
from lattice.helper.descriptors import (
    CHANGED,
    NAMED,
    STANDARD,
    Finder,
    FoundDescriptor,
    HeldOutputs,
    OpenedFile,
    Skipped,
    TooMany,
    opened_answer,
    reason,
)
from lattice.helper.inode import Inodes
from lattice.helper.notes import Note, Notes
from lattice.helper.privilege import Kernel, become

_PATIENCE_S = 10
_OPENED = os.O_RDONLY | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC


class OutputFiles:
    """Each request uses it in its own child, which then becomes the user."""

    def __init__(
        self, kernel: Kernel, inodes: Inodes, notes: Notes | None, proc: Path = Path("/proc")
    ) -> None:
        """`notes` is None if nothing can be recorded."""
        self._kernel = kernel
        self._inodes = inodes
        self._notes = notes
        self._proc = proc
        self._skipped: list[Skipped] = []

    @answers_refusals
    def act(
        self,
        grant: Grant,
        question: OpenOutput | OpenOutputFile | OpenNoted,
        descriptors: Sequence[int],
    ) -> tuple[Answer, Sequence[int]]:
        if isinstance(question, OpenOutput):
            return self._open_found(grant, question, descriptors)
        if isinstance(question, OpenOutputFile):
            return self._open_path(grant, question, descriptors)
        return self._open_noted(grant, question, descriptors)

    def _open_found(
        self, grant: Grant, question: OpenOutput, descriptors: Sequence[int]
    ) -> tuple[Answer, Sequence[int]]:
        """Open the files that the job's processes write to; ignores processes of other users.

        The request may pass one descriptor: an inotify instance of the client. Its watches count
        for the client's limit, not for root's or the owner's.
        """
        account = self._begin(grant, descriptors)
        finder = Finder(self._kernel, self._inodes, self._proc)
        try:
            found = finder.outputs_of(question.pids, grant.job_id, account)
        except TooMany as refusal:
            return Answer(outcome=Outcome.BAD_QUESTION, message=str(refusal)), ()
        self._skipped += finder.skipped
        fault = self._note(grant.job_id, found)[1] if self._notes is not None else ""
        self._become(account)
        answer, passed = self._answer(account, found, descriptors)
        return replace(answer, message=answer.message or fault), passed

    def note(self, question: NoteOutput, descriptors: Sequence[int]) -> Answer:
        """Record the files of these processes; the answer has only their number."""
        if descriptors:
            return Answer(outcome=Outcome.BAD_QUESTION, message="no descriptors")
        signal.signal(signal.SIGALRM, signal.SIG_DFL)
        signal.alarm(_PATIENCE_S)
        noted, message = 0, ""
        finder = Finder(self._kernel, self._inodes, self._proc)
        # One process at a time: one with too many files must not prevent notes of the others.
        for pid in dict.fromkeys(question.pids):
            try:
                found = finder.outputs_of((pid,), question.job_id, None)
            except TooMany as refusal:
                message = str(refusal)
                continue
            count, fault = self._note(question.job_id, found)
            message = fault or message
            noted += count
            packet.close_all(each.fd for each in found)
        if message and not noted:
            return Answer(outcome=Outcome.FAILED, message=message)
        return Answer(outcome=Outcome.DONE, message=message, output=str(noted))

    def _note(self, job_id: int, found: Sequence[FoundDescriptor]) -> tuple[int, str]:
        """Runs as root. How many were recorded, and why not, or an empty string."""
        if self._notes is None:
            return 0, "nothing can be written down here"
        try:
            return self._notes.write(job_id, found), ""
        except OSError as error:
            return 0, f"it can't be written down: {reason(error)}"

    def _open_noted(
        self, grant: Grant, question: OpenNoted, descriptors: Sequence[int]
    ) -> tuple[Answer, Sequence[int]]:
        """Open the job's noted files that still exist, with the owner's current rights."""
        account = self._begin(grant, descriptors)
        assert self._notes is not None  # the verb is not offered without
        notes = self._notes.of(grant.job_id, account.pw_uid, question.since_ms, question.until_ms)
        page = notes[question.skip :][:MOST_OUTPUTS]
        more = len(notes) > question.skip + len(page)
        finder = Finder(self._kernel, self._inodes, self._proc)
        self._become(account)
        found = [each for note in page if (each := self._find_noted(account, note, finder))]
        return self._answer(account, found, descriptors, more=more)

    def _find_noted(
        self, account: pwd.struct_passwd, note: Note, finder: Finder
    ) -> FoundDescriptor | None:
        """Runs as the owner."""
        holders = [each.holding for each in note.holders]
        path = os.fsencode(note.path).decode(errors="replace")
        try:
            fd = os.open(os.fsencode(note.path), NAMED)
            inode = self._inodes.statx(fd)
        except (OSError, ValueError) as error:
            self._skip(holders, f"{account.pw_name} can't reach it any more: {reason(error)}")
            return None
        fault = finder.fault(inode) if note.is_of(inode) else "there is another file now"
        if fault:
            os.close(fd)
            self._skip(holders, fault)
            return None
        return FoundDescriptor(fd, inode, path, holders[0].comm, holders=holders)

    def _open_path(
        self, grant: Grant, question: OpenOutputFile, descriptors: Sequence[int]
    ) -> tuple[Answer, Sequence[int]]:
        """Open the file with that path, if the owner may read it."""
        account = self._begin(grant, descriptors)
        finder = Finder(self._kernel, self._inodes, self._proc)
        self._become(account)
        try:
            fd = os.open(question.path, NAMED)
            inode = self._inodes.statx(fd)
        except (OSError, ValueError) as error:
            return _no_file(f"{account.pw_name} can't reach it: {reason(error)}"), ()
        if fault := finder.fault(inode):
            return _no_file(fault), ()
        answer, passed = self._answer(
            account, [FoundDescriptor(fd, inode, question.path)], descriptors
        )
        if self._skipped:
            packet.close_all(passed)
            return _no_file(self._skipped[0].why), ()
        return answer, passed

    def _begin(self, grant: Grant, descriptors: Sequence[int]) -> pwd.struct_passwd:
        # A share that does not answer blocks this process; only its end frees it.
        return granted_owner(grant, descriptors, _PATIENCE_S, most_descriptors=1)

    def _become(self, account: pwd.struct_passwd) -> None:
        become(self._kernel, account)
        # Some hosts let owners debug processes that were privileged; this prevents it.
        self._kernel.hide_memory()

    def _answer(
        self,
        account: pwd.struct_passwd,
        found: Sequence[FoundDescriptor],
        notices: Sequence[int],
        *,
        more: bool | None = None,
    ) -> tuple[Answer, Sequence[int]]:
        """Runs as the owner."""
        files, passed = [], []
        for each in found:
            opened = self._open(account, each)
            os.close(each.fd)
            if opened is not None:
                size = os.fstat(opened).st_size
                files.append(OpenedFile(each, size, self._watched(notices, opened)))
                passed.append(opened)
        answer = opened_answer(files, self._skipped, more=more)
        return answer, passed if answer.outcome is Outcome.DONE else ()

    def _open(self, account: pwd.struct_passwd, found: FoundDescriptor) -> int | None:
        """Open exactly the file that was found, with the owner's rights."""
        path = f"/proc/self/fd/{found.fd}"
        # Slurm's own processes also hold other files, such as their logs. A job's output belongs to
        # its owner or is writable for the owner.
        if found.inode.uid != account.pw_uid and not os.access(path, os.W_OK):
            if all(each.descriptor in STANDARD for each in found.holders):
                self._skip(found.holders, f"{account.pw_name} may not write to it")
            return None
        try:
            opened = os.open(path, _OPENED)
        except OSError as error:
            self._skip(found.holders, f"{account.pw_name} can't read it: {reason(error)}")
            return None
        inode = self._inodes.statx(opened)
        if inode.identity != found.inode.identity or inode.kind_fault:
            os.close(opened)
            self._skip(found.holders, CHANGED)
            return None
        return opened

    def _skip(self, holders: Sequence[HeldOutputs], why: str) -> None:
        first = holders[0] if holders else HeldOutputs(0, 0)
        self._skipped.append(Skipped(first.pid, first.descriptor, why))

    def _watched(self, notices: Sequence[int], opened: int) -> int:
        for each in notices:
            with suppress(OSError):
                return self._inodes.watch(each, opened)
        return -1


def _no_file(why: str) -> Answer:
    return Answer(outcome=Outcome.FAILED, message=why)
