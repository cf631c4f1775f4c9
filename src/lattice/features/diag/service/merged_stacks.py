"""Merges the stacks of many ranks by place, and finds outliers. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import PurePosixPath

from lattice.domain.jobfacts import RankStack, StackFrame, StackLanguage
from lattice.features.diag.model import StackGroup, StackPlace, Subject

_LIBRARY = ("site-packages", "dist-packages", "/lib/python", "lib64/python", "<")
_MEETS = (
    "all_reduce",
    "allreduce",
    "all_gather",
    "allgather",
    "reduce_scatter",
    "broadcast",
    "barrier",
    "all_to_all",
    "synchronize",
    "wait",
    "recv",
)
"""Calls that synchronise ranks: a rank in one of them waits for the others."""
_PARENTS = frozenset({"do_wait", "wait4", "kernel_wait4", "do_wait4"})
_Key = tuple[str, ...]


def merged(stacks: Iterable[RankStack]) -> tuple[StackGroup, ...]:
    """Return groups of ranks at the same place; outliers first, then larger groups."""
    groups: dict[_Key, list[RankStack]] = {}
    for each in _main(stacks):
        groups.setdefault(_key(each), []).append(each)
    odd = _odd(groups)
    made = [_group(members, is_odd=key in odd) for key, members in groups.items()]
    return tuple(sorted(made, key=lambda each: (not each.is_odd, -len(each.subjects), each.ranks)))


def picture(groups: Sequence[StackGroup]) -> str:
    """Such as `ranks 0-2: all_reduce, train.py:212 | rank 3: DataLoader.__next__, loader.py:88`."""
    if not groups:
        return "no rank was seen"
    return " | ".join(each.words for each in sorted(groups, key=lambda each: -len(each.subjects)))


def _main(stacks: Iterable[RankStack]) -> list[RankStack]:
    """Return each rank's main process, not its shell or helpers."""
    found: dict[tuple[str, int], list[RankStack]] = {}
    alone: list[RankStack] = []
    for each in stacks:
        if each.rank is None:
            alone.append(each)
        else:
            found.setdefault((each.node, each.rank), []).append(each)
    chosen = [min(members, key=_weight) for members in found.values()]
    # Without ranks every process counts on its own.
    return chosen or alone


def _weight(stack: RankStack) -> tuple[bool, bool, bool, int]:
    readable = stack.language is StackLanguage.PYTHON and bool(stack.frames)
    return not readable, stack.waits_in in _PARENTS, not stack.frames, stack.pid


def _is_library(frame: StackFrame) -> bool:
    return not frame.file or any(mark in frame.file for mark in _LIBRARY)


def _telling(frames: Sequence[StackFrame]) -> tuple[str, StackFrame | None]:
    """Return what the program's own code calls, and the frame of that code.

    The innermost frames belong to a library; their exact line says nothing.
    """
    for index, frame in enumerate(frames):
        if not _is_library(frame):
            called = frames[index - 1].function if index else frame.function
            return called, frame
    return (frames[0].function, frames[0]) if frames else ("", None)


def _key(stack: RankStack) -> _Key:
    if stack.language is not StackLanguage.PYTHON or not stack.frames:
        return stack.language.value, _kernel_function(stack)
    called, own = _telling(stack.frames)
    outer = stack.frames[stack.frames.index(own) :] if own is not None else ()
    return (
        stack.language.value,
        called,
        *(f"{each.function} {each.file}:{each.line}" for each in outer),
    )


def _kernel_function(stack: RankStack) -> str:
    if stack.waits_in:
        return stack.waits_in
    return stack.frames[0].function if stack.frames else stack.state


def _odd(groups: dict[_Key, list[RankStack]]) -> set[_Key]:
    """Return the groups outside the majority.

    Without a majority, return those that do not synchronise, if others do.
    """
    total = sum(map(len, groups.values()))
    if len(groups) < 2:
        return set()
    largest = max(groups, key=lambda key: len(groups[key]))
    if len(groups[largest]) * 2 > total:
        return set(groups) - {largest}
    meeting = {key for key, members in groups.items() if _meets(members[0])}
    return set(groups) - meeting if meeting and meeting != set(groups) else set()


def _meets(stack: RankStack) -> bool:
    called, _ = _telling(stack.frames)
    return any(word in called.lower() for word in _MEETS)


def _group(members: Sequence[RankStack], *, is_odd: bool) -> StackGroup:
    first = members[0]
    ranks = tuple(sorted({each.rank for each in members if each.rank is not None}))
    return StackGroup(
        words=f"{_who(members, ranks)}: {_where(first)}",
        ranks=ranks,
        subjects=tuple(
            Subject(node=each.node, rank=each.rank, thing=f"pid {each.pid}") for each in members
        ),
        language=first.language,
        frames=tuple(
            StackPlace(function=each.function, file=each.file, line=each.line)
            for each in first.frames
        ),
        is_odd=is_odd,
    )


def _who(members: Sequence[RankStack], ranks: Sequence[int]) -> str:
    if not ranks:
        return f"{len(members)} processes" if len(members) > 1 else f"pid {members[0].pid}"
    return f"rank{'s' if len(ranks) > 1 else ''} {spans(ranks)}"


def _where(stack: RankStack) -> str:
    if stack.language is StackLanguage.PYTHON and stack.frames:
        called, own = _telling(stack.frames)
        if own is not None and own.file:
            line = f":{own.line}" if own.line else ""
            return f"{called}, {PurePosixPath(own.file).name}{line}"
        return called
    function = _kernel_function(stack)
    state = {"R": "runs", "D": "waits for a device", "T": "is stopped", "Z": "has ended"}
    return (
        f"in the kernel's {function}"
        if stack.waits_in or stack.frames
        else state.get(function, "?")
    )


def spans(numbers: Sequence[int]) -> str:
    """Fold sorted numbers into ranges: `0-2,5`."""
    parts: list[list[int]] = []
    for each in numbers:
        if parts and each == parts[-1][1] + 1:
            parts[-1][1] = each
        else:
            parts.append([each, each])
    return ",".join(str(low) if low == high else f"{low}-{high}" for low, high in parts)
