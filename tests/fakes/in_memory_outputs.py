"""Outputs without a root helper: files of a folder, held by processes that are only numbers.

Grants are the job they name, as text: what a helper would read in a signed one.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from lattice.base.errors import DataUnavailable, Unavailable, UsageError
from lattice.domain.outputs import Holder, OpenedOutputs, OutputFile, SkippedOutput
from lattice.domain.privileged import MOST_OUTPUTS, OpenOutput, OpenOutputFile


@dataclass(frozen=True, slots=True)
class Held:
    """A descriptor of a process; no path means something that is no file."""

    grant: str
    holder: Holder
    path: Path | None


class InMemoryOutputs:
    """Passes the same suite as the helper. `away` is a helper that does not answer."""

    def __init__(self) -> None:
        self.held: list[Held] = []
        self.asked: list[tuple[int, ...] | str] = []
        self.grants: list[str] = []
        self.away = False

    def hold(self, grant: str, pid: int, descriptor: int, path: Path | None) -> None:
        """From now on this process of that job writes there."""
        self.held.append(Held(grant, Holder(pid, descriptor), path))

    async def open_output(self, grant: str, pids: Sequence[int]) -> OpenedOutputs:
        self._answering(OpenOutput(tuple(pids)).fault())
        self.asked.append(tuple(pids))
        self.grants.append(grant)
        mine = [each for each in self.held if each.grant == grant and each.holder.pid in pids]
        files: dict[Path, list[Holder]] = {}
        for each in mine:
            if each.path is not None:
                files.setdefault(each.path, []).append(each.holder)
        if len(files) > MOST_OUTPUTS:
            raise UsageError("lattice-helper can't take this: more than 64 files.")
        skipped = [SkippedOutput(each.holder, "it is a pipe") for each in mine if not each.path]
        opened = [_opened(path, tuple(holders)) for path, holders in files.items()]
        return OpenedOutputs(None, tuple(opened), tuple(skipped))

    async def open_output_file(self, grant: str, path: str) -> OpenedOutputs:
        self._answering(OpenOutputFile(path).fault())
        self.asked.append(path)
        self.grants.append(grant)
        if not Path(path).is_file():
            raise DataUnavailable("The output can't be read: no such file.")
        return OpenedOutputs(None, (_opened(Path(path), ()),))

    def _answering(self, fault: str) -> None:
        if fault:
            raise UsageError(f"The helper can't be asked that: {fault}.")
        if self.away:
            raise Unavailable("lattice-helper on the node does not answer.")


def _opened(path: Path, holders: tuple[Holder, ...]) -> OutputFile:
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
