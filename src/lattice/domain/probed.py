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
LONGEST_TEXT = 256
LONGEST_MOUNT_STATISTICS = 1024 * 1024
_LONGEST_PATH = 4096
_LARGEST = 2**63


class BadProbe(Exception):
    """Not a helper's report. The text is for the log."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MountReport:
    """How one file system answered a probe of its root."""

    path: str
    kind: str
    source: str
    answered_s: float | None = None
    waited_s: float | None = None
    """If it did not answer: for how long, counted from an earlier probe if there was one."""
    trouble: str = ""
    device: str = ""
    """Its number, as `mountinfo` has it: `259:1`."""
    calls: int | None = None
    """Reads, writes and syncs of the job there since it began; None: not counted."""
    spent_s: float | None = None
    """How long these took together."""
    read_bytes: int | None = None
    write_bytes: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class MountsReport:
    """All mounts that the job sees. `statistics` is `mountstats` as the kernel wrote it."""

    mounts: tuple[MountReport, ...]
    statistics: str = ""
    unlooked: str = ""
    """Why some were not probed; empty: all were."""
    uncounted: str = ""
    """Why the job's reads and writes are not counted; empty: they are."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskReport:
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
class StackReport:
    pid: int
    rank: int | None
    language: StackLanguage
    frames: tuple[StackFrame, ...] = ()
    state: str = ""
    waits_in: str = ""
    trouble: str = ""
    command: str = ""


def write_mounts(report: MountsReport) -> bytes:
    return _written(asdict(report))


def read_mounts(raw: bytes) -> MountsReport:
    """Decode. Raises `BadProbe`."""
    document = _json(raw)
    fields = {"mounts", "statistics", "unlooked", "uncounted"}
    if type(document) is not dict or document.keys() != fields:
        raise BadProbe("other fields")
    return MountsReport(
        mounts=_list(document["mounts"], MountReport, MOST_MOUNTS),
        statistics=_text(document["statistics"], LONGEST_MOUNT_STATISTICS),
        unlooked=_text(document["unlooked"], LONGEST_TEXT),
        uncounted=_text(document["uncounted"], LONGEST_TEXT),
    )


def write_reports(reports: Sequence[TaskReport | StackReport]) -> bytes:
    return _written([asdict(each) for each in reports])


def read_tasks(raw: bytes) -> tuple[TaskReport, ...]:
    """Decode. Raises `BadProbe`."""
    return _list(_json(raw), TaskReport, MOST_PROCESSES)


def read_stacks(raw: bytes) -> tuple[StackReport, ...]:
    """Decode. Raises `BadProbe`."""
    return _list(_json(raw), StackReport, MOST_STACKS)


def _written(document: Any) -> bytes:
    return json.dumps(document, separators=(",", ":"), allow_nan=False).encode()


def _json(raw: bytes) -> Any:
    if len(raw) > LARGEST_BYTES:
        raise BadProbe("too much")
    try:
        return read_json(raw)
    except ValueError:
        raise BadProbe("no JSON") from None


_T = TypeVar("_T")


def _list(value: Any, kind: type[_T], most: int) -> tuple[_T, ...]:
    if type(value) is not list or len(value) > most:
        raise BadProbe("no list, or too long")
    return tuple(_one(each, kind) for each in value)


def _one(value: Any, kind: type[_T]) -> _T:
    hints = get_type_hints(kind)
    if type(value) is not dict or value.keys() != hints.keys():
        raise BadProbe(f"not the fields of {kind.__name__}")
    return kind(**{name: _READERS[hint](value[name]) for name, hint in hints.items()})


def _text(value: Any, most: int = _LONGEST_PATH) -> str:
    if type(value) is not str:
        raise BadProbe("no text")
    return value[:most]


def _count(value: Any) -> int:
    if type(value) is not int or not 0 <= value < _LARGEST:
        raise BadProbe("no count")
    return value


def _amount(value: Any) -> float:
    # NaN is never within bounds; an int beyond every float would make `isfinite` fail.
    if type(value) not in (int, float) or not 0 <= value < _LARGEST:
        raise BadProbe("no amount")
    return float(value)


def _flag(value: Any) -> bool:
    if type(value) is not bool:
        raise BadProbe("neither yes nor no")
    return value


def _language(value: Any) -> StackLanguage:
    try:
        return StackLanguage(value)
    except ValueError:
        raise BadProbe("no language") from None


def _or_none(read: Callable[[Any], _T]) -> Callable[[Any], _T | None]:
    return lambda value: None if value is None else read(value)


_READERS: dict[Any, Callable[[Any], Any]] = {
    str: _text,
    int: _count,
    int | None: _or_none(_count),
    float | None: _or_none(_amount),
    bool | None: _or_none(_flag),
    StackLanguage: _language,
    tuple[StackFrame, ...]: lambda value: _list(value, StackFrame, MOST_FRAMES),
}
