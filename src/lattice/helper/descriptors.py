"""What stands behind the descriptors of a job's processes, found and not opened.

Everything here happens before the process becomes the owner, with CAP_SYS_PTRACE in hand, so
nothing here opens a file: O_PATH only names one. With that capability `/proc/PID/mem` of a setuid
program would open, too.
"""

from __future__ import annotations

import os
import pwd
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path

from lattice.base import packet
from lattice.domain.privileged import MOST_OUTPUTS
from lattice.helper.inode import Inode, Inodes
from lattice.helper.mounts import MOST_MOUNTS_BYTES, Mounts, mount_fault, read_mounts
from lattice.helper.outputs_answer import Holding, OpenedFile, Skipped
from lattice.helper.privilege import Kernel
from lattice.helper.process import DescriptorFacts, Pinned, pinned, read_descriptor_facts, text_of

STANDARD = (1, 2)
CHANGED = "it changed while it was looked at"
NAMED = os.O_PATH | os.O_CLOEXEC
_SLURMS_OWN = frozenset({"srun", "slurmstepd"})
_MOST_DESCRIPTORS = 4096
"""Looked at in one question, however many processes call themselves `srun`."""
_FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC


class TooMany(Exception):
    """More than one answer can bring; the text says of what."""


@dataclass(slots=True)
class Found:
    """A file that a descriptor of ours names. `place` is that descriptor."""

    place: int
    inode: Inode
    path: str
    """To be shown."""
    comm: str = ""
    facts: DescriptorFacts = field(default_factory=lambda: DescriptorFacts(0, 0, 0, None))
    holders: list[Holding] = field(default_factory=list)
    name: str = ""
    """Its path, byte for byte (`os.fsencode`)."""

    def opened(self, size: int, watch: int) -> OpenedFile:
        return OpenedFile(
            inode=self.inode,
            size=size,
            facts=self.facts,
            path=self.path,
            comm=self.comm,
            holders=tuple(self.holders),
            watch=watch,
        )


Files = dict[tuple[int, int], Found]


class Finder:
    """One for each question. `skipped` is what was found at standard places and left."""

    def __init__(self, kernel: Kernel, inodes: Inodes, proc: Path) -> None:
        self._kernel = kernel
        self._inodes = inodes
        self._proc = proc
        self._own = Mounts(read_mounts(_mountinfo(proc / "self")))
        self._theirs: dict[int, Mounts] = {}
        self._looks_left = _MOST_DESCRIPTORS
        self.skipped: list[Skipped] = []

    def outputs_of(
        self, pids: Sequence[int], job_id: int, account: pwd.struct_passwd | None
    ) -> list[Found]:
        """Each file once, with all who hold it; of this user's and root's processes, or of all.

        Raises `TooMany`.
        """
        found: Files = {}
        for pid in dict.fromkeys(pids):
            with pinned(self._proc, pid, job_id) as process:
                if process is not None:
                    _merge(found, self._outputs_of(process, account))
        return list(found.values())

    def fault(self, inode: Inode) -> str:
        """Why a file that this process sees by itself is no output, or an empty text."""
        return inode.kind_fault or mount_fault(self._own.find(inode.mount_id, inode.device), None)

    def _outputs_of(self, process: Pinned, account: pwd.struct_passwd | None) -> Files:
        found: Files = {}
        skipped_before = len(self.skipped)
        with self._allowed_to_look(process, account) as uid:
            allowed = uid >= 0
            slurms = process.comm in _SLURMS_OWN
            rank = None if slurms or not allowed else process.rank()
            step = process.step() if allowed else ""
            for number in self._numbers(process) if allowed else ():
                if (each := self._find(process, number)) is not None:
                    holding = Holding(
                        process.pid,
                        number,
                        -1 if rank is None else rank,
                        uid,
                        step,
                        process.comm,
                        process.started,
                    )
                    each.holders.append(holding)
                    _merge(found, {each.inode.identity: each})
        if process.unchanged():
            return found
        del self.skipped[skipped_before:]
        packet.close_all(each.place for each in found.values())
        return {}

    @contextmanager
    def _allowed_to_look(self, process: Pinned, account: pwd.struct_passwd | None) -> Iterator[int]:
        """As whom; -1 if not at all.

        The folder of descriptors is open to its owner alone; no right here passes that by.
        """
        try:
            uid = os.stat("fd", dir_fd=process.folder).st_uid
        except OSError:
            uid = -1
        theirs = account is not None and uid not in (0, account.pw_uid)
        if uid < 0 or theirs:  # a process of somebody else in the job
            yield -1
            return
        self._kernel.set_file_user(uid)
        try:
            yield uid
        finally:
            self._kernel.set_file_user(0)

    def _numbers(self, process: Pinned) -> Sequence[int]:
        if process.comm not in _SLURMS_OWN:
            return STANDARD
        numbers = []
        with suppress(OSError):
            folder = os.open("fd", _FOLDER, dir_fd=process.folder)
            try:
                with os.scandir(folder) as entries:
                    for entry in entries:
                        self._looks_left -= 1
                        if self._looks_left < 0:
                            raise TooMany("too many descriptors: ask for fewer processes")
                        numbers.append(int(entry.name))
            finally:
                os.close(folder)
        return sorted(numbers)

    def _find(self, process: Pinned, number: int) -> Found | None:
        before = read_descriptor_facts(text_of(process.folder, f"fdinfo/{number}"))
        if before is None or not before.writes:
            return None
        try:
            place = os.open(f"fd/{number}", NAMED, dir_fd=process.folder)
        except OSError:
            return None
        inode, fault = self._look(process, place)
        after = read_descriptor_facts(text_of(process.folder, f"fdinfo/{number}"))
        if not fault and (after is None or not after.same_file(before)):
            fault = CHANGED
        if inode is not None and not fault:
            name = _name_of(process.folder, number)
            path = os.fsencode(name).decode(errors="replace")
            return Found(place, inode, path, process.comm, before, name=name)
        os.close(place)
        if number in STANDARD:
            self.skipped.append(Skipped(process.pid, number, fault))
        return None

    def _look(self, process: Pinned, place: int) -> tuple[Inode | None, str]:
        try:
            inode = self._inodes.look(place)
        except OSError as error:  # a file system of the user's shows itself to nobody else
            return None, f"it can't be looked at: {reason(error)}"
        return inode, inode.kind_fault or self._mount_fault(process, inode)

    def _mount_fault(self, process: Pinned, inode: Inode) -> str:
        own = self._own.find(inode.mount_id, inode.device)
        if own is not None:
            return mount_fault(own, None)
        theirs = self._theirs.get(process.pid)
        if theirs is None:
            text = text_of(process.folder, "mountinfo", MOST_MOUNTS_BYTES)
            theirs = Mounts(read_mounts(text))
            self._theirs = {process.pid: theirs}  # of one process at a time
        return mount_fault(None, theirs.find(inode.mount_id, inode.device))


def reason(error: Exception) -> str:
    """The kernel's word for it."""
    return (getattr(error, "strerror", None) or "no such name").lower()


def _merge(into: Files, more: Files) -> None:
    """One descriptor of ours for each file, however many name it."""
    for identity, each in more.items():
        known = into.setdefault(identity, each)
        if known is not each:
            os.close(each.place)
            known.holders.extend(each.holders)
        if len(into) > MOST_OUTPUTS:
            raise TooMany(f"more than {MOST_OUTPUTS} files: ask for fewer processes")


def _mountinfo(folder: Path) -> str:
    descriptor = os.open(folder, _FOLDER)
    try:
        return text_of(descriptor, "mountinfo", MOST_MOUNTS_BYTES)
    finally:
        os.close(descriptor)


def _name_of(folder: int, number: int) -> str:
    """The kernel tells none that is longer than a page."""
    try:
        return os.readlink(f"fd/{number}", dir_fd=folder)
    except OSError:
        return ""
