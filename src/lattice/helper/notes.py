"""Records which output files a job's processes had open, for when the processes are gone.

One small file a note, in a folder that only root can read:

    notes/4242/2049-131077.json    job, device and inode

A note opens nothing and is not shown to anyone. It records the file (device, inode, birth) and its
path. `outputs` opens that path later as the owner, and only if it is still the same file. A path
that only the job could see (its own mount) then leads nowhere or to another file, and is refused.

Limits: `MOST_A_JOB` files a job and `MOST_JOBS` jobs, for a week after the last note of the job.
"""

from __future__ import annotations

import errno
import fcntl
import json
import os
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass, replace
from pathlib import Path

from lattice.base.clock import Clock
from lattice.helper.descriptors import FoundDescriptor, HeldOutputs
from lattice.helper.inode import Inode
from lattice.helper.kernel_texts import text_of
from lattice.helper.privilege import make_private_folder
from lattice.helper.process import is_of_job

MOST_A_JOB = 1024
MOST_JOBS = 4096
RETENTION_S = 7 * 24 * 3600.0
_MOST_HOLDERS = 16
_LARGEST_NOTE = 64 * 1024
_UNFINISHED = ".new"
_FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_WRITTEN = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW | os.O_CLOEXEC


@dataclass(frozen=True, slots=True)
class NotedHolding:
    """A process that held the file, and its start in milliseconds since 1970."""

    holding: HeldOutputs
    began_ms: int

    @property
    def identity(self) -> tuple[int, int, int]:
        return self.holding.pid, self.holding.descriptor, self.holding.start_ticks


@dataclass(frozen=True, slots=True, kw_only=True)
class Note:
    """One file."""

    device: int
    inode: int
    born: float | None
    path: str
    """As the kernel has it; bytes that are not UTF-8 are preserved (`os.fsencode`)."""
    holders: tuple[NotedHolding, ...]

    def is_of(self, inode: Inode) -> bool:
        """Whether it is the same file; compares the birth too if the file system records it."""
        if (inode.device, inode.number) != (self.device, self.inode):
            return False
        return inode.born == self.born or None in (inode.born, self.born)

    def of(self, uid: int, since_ms: int, until_ms: int) -> Note | None:
        """The same note with only the holders of a user's job in that time; None without any."""
        mine = tuple(
            each
            for each in self.holders
            if each.holding.uid in (0, uid)
            and since_ms <= each.began_ms
            and (not until_ms or each.began_ms <= until_ms)
        )
        return replace(self, holders=mine) if mine else None


class Notes:
    """The folder of notes. Several children of the helper may write to it, each as root."""

    def __init__(self, folder: Path, clock: Clock, proc: Path = Path("/proc")) -> None:
        """Create the folder. Raises `OSError`, and `ValueError` if others could change it."""
        self._folder = folder
        self._clock = clock
        self._proc = proc
        make_private_folder(folder)

    def write(self, job_id: int, found: Sequence[FoundDescriptor]) -> int:
        """Record these files; return how many have a path. Raises `OSError`."""
        named = [each for each in found if each.name.startswith("/")]
        if not named:
            return 0
        if not (self._folder / str(job_id)).is_dir():
            self.sweep(room_for=1)
        with self._locked(job_id) as folder:
            left = MOST_A_JOB - len(_names(folder))
            for each in named:
                known = _read(folder, _name(each))
                if known is None:
                    left -= 1
                if left < 0:
                    raise OSError(errno.ENOSPC, "too many files of one job")
                note = self._merged(known, each)
                if note != known:
                    _write(folder, _name(each), note)
        return len(named)

    def of(self, job_id: int, uid: int, since_ms: int, until_ms: int) -> list[Note]:
        """The notes of a user's job in that time, always in the same order."""
        try:
            folder = os.open(self._folder / str(job_id), _FOLDER)
        except OSError:
            return []
        try:
            notes = (_read(folder, each) for each in sorted(_names(folder)))
            mine = (each.of(uid, since_ms, until_ms) for each in notes if each is not None)
            return [each for each in mine if each is not None]
        finally:
            os.close(folder)

    def sweep(self, *, room_for: int = 0) -> None:
        """Remove jobs with old notes, and the oldest jobs if there are too many.

        Jobs that still have a process stay. Raises `OSError` if there is no room then.
        """
        jobs = sorted(self._jobs())
        old = self._clock.now().timestamp() - RETENTION_S
        too_many = len(jobs) + room_for - MOST_JOBS
        for written, name in jobs:
            if written >= old and too_many <= 0:
                return
            if not self._lives(name):
                from shutil import rmtree  # noqa: PLC0415 - brings every archiver, and is rare

                rmtree(self._folder / name, ignore_errors=True)
                too_many -= 1
        if too_many > 0:
            raise OSError(errno.ENOSPC, "too many jobs at once")

    def _jobs(self) -> Iterator[tuple[float, str]]:
        with os.scandir(self._folder) as entries:
            for entry in entries:
                with suppress(OSError):
                    yield entry.stat(follow_symlinks=False).st_mtime, entry.name

    def _lives(self, job: str) -> bool:
        # This may be any job, also at the helper's start. So it reads only the control group: other
        # files of a process can block the reader.
        for pid in {each.holding.pid for note in self._all(job) for each in note.holders}:
            with suppress(OSError):
                folder = os.open(self._proc / str(pid), _FOLDER)
                try:
                    if is_of_job(text_of(folder, "cgroup"), int(job)):
                        return True
                finally:
                    os.close(folder)
        return False

    def _all(self, job: str) -> list[Note]:
        if not job.isdecimal():
            return []
        folder = os.open(self._folder / job, _FOLDER)
        try:
            notes = [_read(folder, each) for each in _names(folder)]
        finally:
            os.close(folder)
        return [each for each in notes if each is not None]

    @contextmanager
    def _locked(self, job_id: int) -> Iterator[int]:
        path = self._folder / str(job_id)
        with suppress(FileExistsError):
            path.mkdir(mode=0o700)
        folder = os.open(path, _FOLDER)
        try:
            # If two children note one file, the note must have the holders of both.
            fcntl.flock(folder, fcntl.LOCK_EX)
            yield folder
        finally:
            os.close(folder)

    def _merged(self, known: Note | None, found: FoundDescriptor) -> Note:
        before = known.holders if known is not None and known.is_of(found.inode) else ()
        holders = {each.identity: each for each in before}
        for each in found.holders:
            noted = NotedHolding(each, self._began_ms(each.start_ticks))
            # A new computation would give a slightly different time.
            began_ms = holders.get(noted.identity, noted).began_ms
            holders[noted.identity] = NotedHolding(each, began_ms)
        newest = sorted(holders.values(), key=lambda each: (each.began_ms, each.identity))
        return Note(
            device=found.inode.device,
            inode=found.inode.number,
            born=found.inode.born,
            path=found.name,
            holders=tuple(newest[-_MOST_HOLDERS:]),
        )

    def _began_ms(self, start_ticks: int) -> int:
        # By the clock that grants are checked with: they use the servers' time.
        age_s = time.clock_gettime(time.CLOCK_BOOTTIME) - start_ticks / os.sysconf("SC_CLK_TCK")
        return int((self._clock.now().timestamp() - age_s) * 1000)


def _names(folder: int) -> list[str]:
    with os.scandir(folder) as entries:
        return [each.name for each in entries if each.name != _UNFINISHED]


def _name(found: FoundDescriptor) -> str:
    return f"{found.inode.device}-{found.inode.number}.json"


def _write(folder: int, name: str, note: Note) -> None:
    raw = json.dumps(asdict(note), separators=(",", ":")).encode()
    file = os.open(_UNFINISHED, _WRITTEN, 0o600, dir_fd=folder)
    try:
        written = os.write(file, raw)
    finally:
        os.close(file)
    if written != len(raw):
        raise OSError(errno.ENOSPC, "no room for a note")
    os.rename(_UNFINISHED, name, src_dir_fd=folder, dst_dir_fd=folder)


def _read(folder: int, name: str) -> Note | None:
    """None if it is missing, or was truncated by a power failure."""
    try:
        file = os.open(name, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=folder)
    except OSError:
        return None
    try:
        document = json.loads(os.read(file, _LARGEST_NOTE))
        holders = tuple(
            NotedHolding(HeldOutputs(**each["holding"]), int(each["began_ms"]))
            for each in document["holders"]
        )
        return Note(**{**document, "holders": holders})
    except (OSError, ValueError, TypeError, KeyError):
        return None
    finally:
        os.close(file)
