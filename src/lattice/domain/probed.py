"""The root helper's reports about a job's surroundings: mounts, processes, stacks. Pure.

The helper writes with this module, and its client reads strictly, because the job's owner controls
much of the content. Texts are cut and lists are bounded. An invalid number makes the whole report
invalid.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from typing import Any, TypeVar, get_type_hints

from lattice.base.strictjson import read_json
from lattice.domain.jobfacts import StackFrame, StackLanguage

LARGEST_BYTES = 4 * 1024 * 1024
MOST_MOUNTS = 64
MOST_PROCESSES = 128
MOST_STACKS = 64
MOST_FRAMES = 64
LONGEST_WORDS = 256
LONGEST_MOUNT_STATISTICS = 1024 * 1024
_LONGEST_PATH = 4096
_LARGEST = 2**63


class BadProbe(Exception):
    """Not a helper's report. The text is for the log."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MountLook:
    """How one file system answered a probe of its root."""

    path: str
    kind: str
    source: str
    answered_s: float | None = None
    waited_s: float | None = None
    """If it did not answer: for how long, counted from an earlier probe if there was one."""
    trouble: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class MountsLook:
    """All mounts that the job sees. `statistics` is `mountstats` as the kernel wrote it."""

    mounts: tuple[MountLook, ...]
    statistics: str = ""
    unlooked: str = ""
    """Why some were not probed; empty: all were."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskLook:
    """One process that does a rank's work."""

    pid: int
    step: str
    rank: int | None
    state: str
    waits_in: str = ""
    cpu_seconds: float | None = None
    age_s: float | None = None
    command: str = ""
    python_unbuffered: bool | None = None
    output_piped: bool | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class StackLook:
    """The stack of one process."""

    pid: int
    rank: int | None
    language: StackLanguage
    frames: tuple[StackFrame, ...] = ()
    state: str = ""
    waits_in: str = ""
    trouble: str = ""
    command: str = ""


def write_mounts(look: MountsLook) -> bytes:
    """Encode for the client."""
    return _written(asdict(look))


def read_mounts(raw: bytes) -> MountsLook:
    """Decode. Raises `BadProbe`."""
    told = _json(raw)
    if type(told) is not dict or told.keys() != {"mounts", "statistics", "unlooked"}:
        raise BadProbe("other fields")
    return MountsLook(
        mounts=_list(told["mounts"], MountLook, MOST_MOUNTS),
        statistics=_text(told["statistics"], LONGEST_MOUNT_STATISTICS),
        unlooked=_text(told["unlooked"], LONGEST_WORDS),
    )


def write_tasks(looks: Sequence[TaskLook]) -> bytes:
    """Encode for the client."""
    return _written([asdict(each) for each in looks])


def read_tasks(raw: bytes) -> tuple[TaskLook, ...]:
    """Decode. Raises `BadProbe`."""
    return _list(_json(raw), TaskLook, MOST_PROCESSES)


def write_stacks(looks: Sequence[StackLook]) -> bytes:
    """Encode for the client."""
    return _written([asdict(each) for each in looks])


def read_stacks(raw: bytes) -> tuple[StackLook, ...]:
    """Decode. Raises `BadProbe`."""
    return _list(_json(raw), StackLook, MOST_STACKS)


def _written(told: Any) -> bytes:
    return json.dumps(told, separators=(",", ":"), allow_nan=False).encode()


def _json(raw: bytes) -> Any:
    if len(raw) > LARGEST_BYTES:
        raise BadProbe("too much")
    try:
        return read_json(raw)
    except ValueError:
        raise BadProbe("no JSON") from None


_T = TypeVar("_T")


def _list(told: Any, kind: type[_T], most: int) -> tuple[_T, ...]:
    if type(told) is not list or len(told) > most:
        raise BadProbe("no list, or too long")
    return tuple(_one(each, kind) for each in told)


def _one(told: Any, kind: type[_T]) -> _T:
    hints = get_type_hints(kind)
    if type(told) is not dict or told.keys() != hints.keys():
        raise BadProbe(f"not the fields of {kind.__name__}")
    return kind(**{name: _READERS[hint](told[name]) for name, hint in hints.items()})


def _text(told: Any, most: int = _LONGEST_PATH) -> str:
    if type(told) is not str:
        raise BadProbe("no text")
    return told[:most]


def _count(told: Any) -> int:
    if type(told) is not int or not 0 <= told < _LARGEST:
        raise BadProbe("no count")
    return told


def _amount(told: Any) -> float:
    # NaN is never within bounds; an int beyond every float would make `isfinite` fail.
    if type(told) not in (int, float) or not 0 <= told < _LARGEST:
        raise BadProbe("no amount")
    return float(told)


def _flag(told: Any) -> bool:
    if type(told) is not bool:
        raise BadProbe("neither yes nor no")
    return told


def _language(told: Any) -> StackLanguage:
    try:
        return StackLanguage(told)
    except ValueError:
        raise BadProbe("no language") from None


def _or_none(read: Callable[[Any], _T]) -> Callable[[Any], _T | None]:
    return lambda told: None if told is None else read(told)


_READERS: dict[Any, Callable[[Any], Any]] = {
    str: _text,
    int: _count,
    int | None: _or_none(_count),
    float | None: _or_none(_amount),
    bool | None: _or_none(_flag),
    StackLanguage: _language,
    tuple[StackFrame, ...]: lambda told: _list(told, StackFrame, MOST_FRAMES),
}
