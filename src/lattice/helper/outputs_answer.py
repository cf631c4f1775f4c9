"""The helper's answer about the files it opened, in one packet. Text only.

It is the JSON in an answer's `output`; `lattice.adapters.helper.outputs` parses it. The descriptors
go with it, one for each file in the same order.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass

from lattice.base.packet import LARGEST_BYTES
from lattice.base.text import inert
from lattice.domain.privileged import LONGEST_PATH_BYTES, Answer, Outcome, write_answer
from lattice.helper.inode import Inode
from lattice.helper.process import DescriptorFacts

_MOST_SKIPPED = 64
_MOST_HOLDERS = 2048
_MOST_HOLDERS_OF_NOTED = 8
_SHORTER_PATHS = (LONGEST_PATH_BYTES, 1024, 256, 64, 16, 0)


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


@dataclass(frozen=True, slots=True, kw_only=True)
class OpenedFile:
    """One file and its holders."""

    inode: Inode
    size: int
    facts: DescriptorFacts
    path: str
    comm: str
    holders: tuple[HeldOutputs, ...]
    watch: int

    def told(self, longest_path: int, *, noted: bool) -> dict[str, object]:
        return {
            "holders": self._holders_of_noted() if noted else self._holders(),
            "dev": self.inode.device,
            "ino": self.inode.number,
            "flags": self.facts.flags,
            "position": self.facts.position,
            "size": self.size,
            "born": self.inode.born,
            "path": inert(self.path)[:longest_path],
            "watch": self.watch,
            "comm": inert(self.comm),
        }

    def _holders(self) -> list[tuple[int, int, int]]:
        return [(each.pid, each.descriptor, each.rank) for each in self.holders]

    def _holders_of_noted(self) -> list[tuple[int, int, int, str, bool]]:
        """With more fields: the client may never have seen these processes."""
        return [
            (each.pid, each.descriptor, each.rank, each.step, each.daemon)
            for each in self.holders[-_MOST_HOLDERS_OF_NOTED:]
        ]


@dataclass(frozen=True, slots=True)
class Skipped:
    """A descriptor that was not opened, and why; `why` may be shown."""

    pid: int
    descriptor: int
    why: str


def opened_answer(
    files: Sequence[OpenedFile], skipped: Sequence[Skipped], *, more: bool | None = None
) -> Answer:
    """The answer. If it does not fit into a packet, all paths are shortened.

    `more` is set for noted files only: whether there are others.
    """
    noted = more is not None
    if not noted and sum(len(each.holders) for each in files) > _MOST_HOLDERS:
        message = "too many descriptors: ask for fewer processes"
        return Answer(outcome=Outcome.BAD_QUESTION, message=message)
    for longest_path in _SHORTER_PATHS:
        told = {
            **({"more": more} if noted else {}),
            "files": [each.told(longest_path, noted=noted) for each in files],
            "skipped": [(each.pid, each.descriptor, each.why) for each in skipped[:_MOST_SKIPPED]],
        }
        output = json.dumps(told, separators=(",", ":"))
        answer = Answer(outcome=Outcome.DONE, output=output)
        if len(write_answer(answer)) <= LARGEST_BYTES:
            return answer
    return Answer(outcome=Outcome.BROKEN, message="the answer does not fit")
