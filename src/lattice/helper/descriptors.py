"""Finds the files behind the descriptors of a job's processes, without opening them.

This code runs before the process becomes the owner, with CAP_SYS_PTRACE. So it opens no file:
O_PATH only refers to one. With that capability even `/proc/PID/mem` of a setuid program would open.
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
from lattice.helper.outputs_answer import HeldOutputs, OpenedFile, Skipped
from lattice.helper.privilege import Kernel
from lattice.helper.process import DescriptorFacts, Pinned, pinned, read_descriptor_facts, text_of

STANDARD = (1, 2)
CHANGED = "it changed while it was looked at"
NAMED = os.O_PATH | os.O_CLOEXEC
_SLURMS_OWN = frozenset({"srun", "slurmstepd"})
_MOST_DESCRIPTORS = 4096
"""The limit for one request, however many processes call themselves `srun`."""
_FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC


class TooMany(Exception):
    """More than one answer can hold; the text names what."""


@dataclass(slots=True)
class FoundDescriptor:
    """A file that one of our descriptors refers to. `place` is that descriptor."""

    place: int
    inode: Inode
    path: str
    """For display."""
    comm: str = ""
    facts: DescriptorFacts = field(default_factory=lambda: DescriptorFacts(0, 0, 0, None))
    holders: list[HeldOutputs] = field(default_factory=list)
    name: str = ""
    """Its exact path (`os.fsencode` gives the bytes)."""

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


Files = dict[tuple[int, int], FoundDescriptor]


class Finder:
    """One for each request. `skipped` lists standard descriptors that were found and not used."""

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
    ) -> list[FoundDescriptor]:
        """Each file once, with all its holders.

        With `account`, only processes of this user and of root count. Raises `TooMany`.
        """
        found: Files = {}
        for pid in dict.fromkeys(pids):
            with pinned(self._proc, pid, job_id) as process:
                if process is not None:
                    _merge(found, self._outputs_of(process, account))
        return list(found.values())

    def fault(self, inode: Inode) -> str:
        """Why a file that this process can see is no output, or an empty string."""
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
                    holding = HeldOutputs(
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
        """The uid to read as; -1 if reading is not allowed.

        Only its owner can read the folder of descriptors; no capability of this process overrides
        that.
        """
        try:
            uid = os.stat("fd", dir_fd=process.folder).st_uid
        except OSError:
            uid = -1
        theirs = account is not None and uid not in (0, account.pw_uid)
        if uid < 0 or theirs:  # a process of another user in the job
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

    def _find(self, process: Pinned, number: int) -> FoundDescriptor | None:
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
            return FoundDescriptor(place, inode, path, process.comm, before, name=name)
        os.close(place)
        if number in STANDARD:
            self.skipped.append(Skipped(process.pid, number, fault))
        return None

    def _look(self, process: Pinned, place: int) -> tuple[Inode | None, str]:
        try:
            inode = self._inodes.look(place)
        except OSError as error:  # a FUSE file system shows itself only to its user
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
            self._theirs = {process.pid: theirs}  # cached for one process at a time
        return mount_fault(None, theirs.find(inode.mount_id, inode.device))


def reason(error: Exception) -> str:
    """The kernel's error text."""
    return (getattr(error, "strerror", None) or "no such name").lower()


def _merge(into: Files, more: Files) -> None:
    """Keep one of our descriptors for each file, even if several refer to it."""
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
    """The kernel returns no path that is longer than a page."""
    try:
        return os.readlink(f"fd/{number}", dir_fd=folder)
    except OSError:
        return ""
