"""Finds the files behind the descriptors of a job's processes, and writes the answer about them.

Finding runs before the process becomes the owner, with CAP_SYS_PTRACE. So it opens no file:
O_PATH only refers to one. With that capability even `/proc/PID/mem` of a setuid program would open.

The answer about opened files is the JSON in its `output`, in one packet. Its descriptors are in the
order of the files. `lattice.adapters.helper.outputs` parses it.
"""

from __future__ import annotations

import json
import os
import pwd
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path

from lattice.base import packet
from lattice.base.text import inert
from lattice.domain.privileged import (
    LONGEST_PATH_BYTES,
    MOST_OUTPUTS,
    Answer,
    Outcome,
    write_answer,
)
from lattice.helper.inode import Inode, Inodes
from lattice.helper.kernel_texts import DescriptorFacts, read_descriptor_facts, text_of
from lattice.helper.mounts import MOST_MOUNTS_BYTES, Mounts, mount_fault, read_mounts
from lattice.helper.privilege import Kernel
from lattice.helper.process import Pinned, pinned

STANDARD = (1, 2)
CHANGED = "it changed while it was looked at"
NAMED = os.O_PATH | os.O_CLOEXEC
_SLURMS_OWN = frozenset({"srun", "slurmstepd"})
_MOST_DESCRIPTORS = 4096
"""The limit for one request, however many processes call themselves `srun`."""
_MOST_SKIPPED = 64
_MOST_HOLDERS = 2048
_MOST_HOLDERS_OF_NOTED = 8
_SHORTER_PATHS = (LONGEST_PATH_BYTES, 1024, 256, 64, 16, 0)
_FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC


class TooMany(Exception):
    """More than one answer can hold; the text names what."""


@dataclass(frozen=True, slots=True)
class HeldOutputs:
    """A descriptor of a process that is open for writing."""

    pid: int
    descriptor: int
    rank: int = -1
    """In the step; -1: not known."""
    uid: int = 0
    """The user who may read the process's descriptors."""
    step: str = ""
    comm: str = ""
    start_ticks: int = 0
    """When the process started, in ticks since the boot; identifies the process with its pid."""

    @property
    def daemon(self) -> bool:
        return self.comm == "slurmstepd"


@dataclass(frozen=True, slots=True)
class Skipped:
    """A descriptor that was not opened, and why; `why` may be shown."""

    pid: int
    descriptor: int
    why: str


@dataclass(slots=True)
class FoundDescriptor:
    """A file that one of our descriptors refers to. `fd` is that descriptor."""

    fd: int
    inode: Inode
    path: str
    """For display."""
    comm: str = ""
    facts: DescriptorFacts = field(default_factory=lambda: DescriptorFacts(0, 0, 0, None))
    holders: list[HeldOutputs] = field(default_factory=list)
    name: str = ""
    """Its exact path (`os.fsencode` gives the bytes)."""


@dataclass(frozen=True, slots=True)
class OpenedFile:
    """A file that was opened. `watch` is the number of its inotify watch, or -1."""

    found: FoundDescriptor
    size: int
    watch: int

    def to_json(self, longest_path: int, *, noted: bool) -> dict[str, object]:
        return {
            "holders": self._holders_of_noted() if noted else self._holders(),
            "dev": self.found.inode.device,
            "ino": self.found.inode.number,
            "flags": self.found.facts.flags,
            "position": self.found.facts.position,
            "size": self.size,
            "born": self.found.inode.born,
            "path": inert(self.found.path)[:longest_path],
            "watch": self.watch,
            "comm": inert(self.found.comm),
        }

    def _holders(self) -> list[tuple[int, int, int]]:
        return [(each.pid, each.descriptor, each.rank) for each in self.found.holders]

    def _holders_of_noted(self) -> list[tuple[int, int, int, str, bool]]:
        """With more fields: the client may never have seen these processes."""
        return [
            (each.pid, each.descriptor, each.rank, each.step, each.daemon)
            for each in self.found.holders[-_MOST_HOLDERS_OF_NOTED:]
        ]


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
        with self._allowed_to_read(process, account) as uid:
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
        packet.close_all(each.fd for each in found.values())
        return {}

    @contextmanager
    def _allowed_to_read(self, process: Pinned, account: pwd.struct_passwd | None) -> Iterator[int]:
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
            fd = os.open(f"fd/{number}", NAMED, dir_fd=process.folder)
        except OSError:
            return None
        inode, fault = self._inspect(process, fd)
        after = read_descriptor_facts(text_of(process.folder, f"fdinfo/{number}"))
        if not fault and (after is None or not after.same_file(before)):
            fault = CHANGED
        if inode is not None and not fault:
            name = _name_of(process.folder, number)
            path = os.fsencode(name).decode(errors="replace")
            return FoundDescriptor(fd, inode, path, process.comm, before, name=name)
        os.close(fd)
        if number in STANDARD:
            self.skipped.append(Skipped(process.pid, number, fault))
        return None

    def _inspect(self, process: Pinned, fd: int) -> tuple[Inode | None, str]:
        try:
            inode = self._inodes.statx(fd)
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
            os.close(each.fd)
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


def opened_answer(
    files: Sequence[OpenedFile], skipped: Sequence[Skipped], *, more: bool | None = None
) -> Answer:
    """The answer. If it does not fit into a packet, all paths are shortened.

    `more` is set for noted files only: whether there are others.
    """
    noted = more is not None
    if not noted and sum(len(each.found.holders) for each in files) > _MOST_HOLDERS:
        message = "too many descriptors: ask for fewer processes"
        return Answer(outcome=Outcome.BAD_QUESTION, message=message)
    for longest_path in _SHORTER_PATHS:
        document = {
            **({"more": more} if noted else {}),
            "files": [each.to_json(longest_path, noted=noted) for each in files],
            "skipped": [(each.pid, each.descriptor, each.why) for each in skipped[:_MOST_SKIPPED]],
        }
        output = json.dumps(document, separators=(",", ":"))
        answer = Answer(outcome=Outcome.DONE, output=output)
        if len(write_answer(answer)) <= packet.LARGEST_BYTES:
            return answer
    return Answer(outcome=Outcome.BROKEN, message="the answer does not fit")
