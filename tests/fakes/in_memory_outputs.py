"""Outputs without a root helper: files of a folder, held by processes that are only numbers.

Grants are the job they name, as text: what a helper would read in a signed one.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from lattice.base.errors import DataUnavailable, Unavailable, UsageError
from lattice.domain.outputs import OpenedOutputs, OutputFile, OutputHolder, SkippedOutput
from lattice.domain.privileged import (
    MOST_OUTPUTS,
    NoteOutput,
    OpenNoted,
    OpenOutput,
    OpenOutputFile,
)


@dataclass(frozen=True, slots=True)
class Held:
    """A descriptor of a process; no path means something that is no file."""

    grant: str
    holder: OutputHolder
    path: Path | None


@dataclass(slots=True)
class Noted:
    """A file that a process of a job wrote to, as it was then."""

    path: Path
    identity: tuple[int, int]
    holders: list[OutputHolder]


class InMemoryOutputs:
    """Passes the same suite as the helper. `away` is a helper that does not answer.

    Where it is `watching`, what it opens comes with something to wait at that never tells.
    """

    def __init__(self) -> None:
        self.held: list[Held] = []
        self.asked: list[tuple[int, ...] | str] = []
        self.grants: list[str] = []
        self.notes: dict[str, dict[tuple[int, int], Noted]] = {}
        self.noted: list[tuple[int, ...]] = []
        self.away = False
        self.watching = False

    def hold(self, grant: str, pid: int, descriptor: int, path: Path | None) -> None:
        """From now on this process of that job writes there."""
        self.held.append(Held(grant, OutputHolder(pid, descriptor), path))

    async def open_output(self, grant: str, pids: Sequence[int]) -> OpenedOutputs:
        self._answering(OpenOutput(tuple(pids)).fault())
        self.asked.append(tuple(pids))
        self.grants.append(grant)
        mine = [each for each in self.held if each.grant == grant and each.holder.pid in pids]
        files: dict[Path, list[OutputHolder]] = {}
        for each in mine:
            if each.path is not None:
                files.setdefault(each.path, []).append(each.holder)
        if len(files) > MOST_OUTPUTS:
            raise UsageError("lattice-helper can't take this: more than 64 files.")
        skipped = [SkippedOutput(each.holder, "it is a pipe") for each in mine if not each.path]
        self._note(grant, files)
        opened = [_opened(path, tuple(holders)) for path, holders in files.items()]
        watch = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC) if self.watching else None
        return OpenedOutputs(watch, tuple(opened), tuple(skipped))

    async def open_output_file(self, grant: str, path: str) -> OpenedOutputs:
        self._answering(OpenOutputFile(path).fault())
        self.asked.append(path)
        self.grants.append(grant)
        if not Path(path).is_file():
            raise DataUnavailable("The output can't be read: no such file.")
        return OpenedOutputs(None, (_opened(Path(path), ()),))

    async def note_output(self, job_id: int, pids: Sequence[int]) -> int:
        self._answering(NoteOutput(job_id, tuple(pids)).fault())
        self.noted.append(tuple(pids))
        files: dict[Path, list[OutputHolder]] = {}
        for each in self.held:
            if each.grant == str(job_id) and each.holder.pid in pids and each.path is not None:
                files.setdefault(each.path, []).append(each.holder)
        self._note(str(job_id), files)
        return len(files)

    async def open_noted(
        self, grant: str, since_ms: int, until_ms: int, skip: int
    ) -> OpenedOutputs:
        """Moments are not looked at."""
        self._answering(OpenNoted(since_ms, until_ms, skip).fault())
        self.grants.append(grant)
        notes = [note for _, note in sorted(self.notes.get(grant, {}).items())]
        page = notes[skip : skip + MOST_OUTPUTS]
        same = [note for note in page if _identity(note.path) == note.identity]
        skipped = [
            SkippedOutput(note.holders[0], "there is another file now")
            for note in page
            if note not in same
        ]
        opened = [_opened(note.path, tuple(note.holders)) for note in same]
        more = len(notes) > skip + len(page)
        return OpenedOutputs(None, tuple(opened), tuple(skipped), more)

    def _note(self, job: str, files: Mapping[Path, Sequence[OutputHolder]]) -> None:
        notes = self.notes.setdefault(job, {})
        for path, holders in files.items():
            identity = _identity(path)
            assert identity is not None
            note = notes.setdefault(identity, Noted(path, identity, []))
            note.holders += [each for each in holders if each not in note.holders]

    def _answering(self, fault: str) -> None:
        if fault:
            raise UsageError(f"The helper can't be asked that: {fault}.")
        if self.away:
            raise Unavailable("lattice-helper on the node does not answer.")


def _identity(path: Path) -> tuple[int, int] | None:
    try:
        found = path.stat()
    except OSError:
        return None
    return found.st_dev, found.st_ino


def _opened(path: Path, holders: tuple[OutputHolder, ...]) -> OutputFile:
    fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    found = os.fstat(fd)
    return OutputFile(
        fd=fd,
        device=found.st_dev,
        inode=found.st_ino,
        born=None,
        size=found.st_size,
        path=str(path),
        holders=holders,
        comm="sleep" if holders else "",
    )
