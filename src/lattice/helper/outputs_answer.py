"""What the helper says of the files it opened, in one packet. Text only.

The JSON in an answer's `output`; `lattice.adapters.helper.outputs` reads it. Descriptors go with
it, one for each file in the same order.
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
_SHORTER_PATHS = (LONGEST_PATH_BYTES, 1024, 256, 64, 16, 0)


@dataclass(frozen=True, slots=True, kw_only=True)
class OpenedFile:
    """One file, and who holds it."""

    inode: Inode
    size: int
    facts: DescriptorFacts
    path: str
    comm: str
    holders: tuple[tuple[int, int, int], ...]
    """Process, descriptor, and rank in the step or -1."""
    watch: int

    def told(self, longest_path: int) -> dict[str, object]:
        return {
            "holders": self.holders,
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


@dataclass(frozen=True, slots=True)
class Skipped:
    """A descriptor that was not opened, and why; `why` may be shown."""

    pid: int
    descriptor: int
    why: str


def opened_answer(files: Sequence[OpenedFile], skipped: Sequence[Skipped]) -> Answer:
    """The answer; where it would not fit into a packet, paths are cut short in all of them."""
    if sum(len(each.holders) for each in files) > _MOST_HOLDERS:
        message = "too many descriptors: ask for fewer processes"
        return Answer(outcome=Outcome.BAD_QUESTION, message=message)
    for longest_path in _SHORTER_PATHS:
        told = {
            "files": [each.told(longest_path) for each in files],
            "skipped": [(each.pid, each.descriptor, each.why) for each in skipped[:_MOST_SKIPPED]],
        }
        output = json.dumps(told, separators=(",", ":"))
        answer = Answer(outcome=Outcome.DONE, output=output)
        if len(write_answer(answer)) <= LARGEST_BYTES:
            return answer
    return Answer(outcome=Outcome.BROKEN, message="the answer does not fit")
