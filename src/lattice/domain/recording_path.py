"""Where the chunks of a recording are in the bucket of sensitive work. Pure.

TENANT/ACCOUNT/JOB/recordings/ALLOCATION/SESSION/NUMBER
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from lattice.domain.objects import key_of, unescaped
from lattice.domain.recording import RecordingName

_NONE = "-"
_FOLDER = "recordings"
_DEPTH = 7
_NUMBER = re.compile(r"[0-9]{10}", re.ASCII)


@dataclass(frozen=True, slots=True, kw_only=True)
class RecordingPath:
    """A recording, and the parts of its keys."""

    name: RecordingName
    tenant: str
    account: str

    @property
    def prefix(self) -> str:
        return key_of(
            self.tenant or _NONE,
            self.account or _NONE,
            self.name.allocation.partition("@")[0],
            _FOLDER,
            self.name.allocation,
            self.name.session,
        )

    def key(self, number: int) -> str:
        return f"{self.prefix}/{number:010d}"


def recorded_allocation(key: str) -> str:
    """The allocation of the chunk under a key; empty if it is no chunk."""
    parts = key.split("/")
    return unescaped(parts[4]) if len(parts) == _DEPTH and parts[3] == _FOLDER else ""


def chunk_number(name: str) -> int | None:
    """The number of the chunk of this name; None for what is no chunk."""
    return int(name) if _NUMBER.fullmatch(name) else None
