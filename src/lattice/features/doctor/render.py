"""An examination as text. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from lattice.base.style import Style
from lattice.base.text import inert, wrapped
from lattice.features.doctor.model import Check, CheckCounts, CheckGroup, CheckState, Examination

_MARKS = {
    CheckState.OK: ("✓", "+", "green"),
    CheckState.WARNING: ("!", "!", "yellow"),
    CheckState.FAILED: ("✗", "x", "red"),
    CheckState.UNKNOWN: ("—", "-", "dim"),
    CheckState.OFF: ("—", "-", "dim"),
}
_TITLES = {
    CheckGroup.SLURM: "Slurm",
    CheckGroup.STATE: "Agreed state",
    CheckGroup.METRICS: "Metric store",
    CheckGroup.OBJECTS: "Object store",
    CheckGroup.CERTIFICATES: "Certificates",
    CheckGroup.SIGN_IN: "Sign-in",
    CheckGroup.SERVER: "Server",
    CheckGroup.AGENTS: "Agents",
    CheckGroup.MACHINE: "This machine",
}
_WIDEST = max(map(len, _TITLES.values()))
_LEAST_ROOM = 20


def page(found: Examination, style: Style, *, everything: bool = False) -> str:
    """The verdict, then the groups. With `everything` every check has its line."""
    lines = [verdict(found.counts, style), *_head(found, style)]
    for group, title in _TITLES.items():
        checks = [each for each in found.checks if each.group is group]
        if checks and everything:
            lines += ["", style.paint(title, "bold")]
            lines += [line for each in checks for line in _check(each, style)]
        elif checks:
            lines += _compact(title, checks, style)
    return "\n".join(lines) + "\n"


def verdict(counts: CheckCounts, style: Style) -> str:
    """`32 checks: 30 ok, 1 warning, 1 failed`."""
    numbers = [(getattr(counts, each.value), each.value) for each in CheckState]
    total = sum(number for number, _ in numbers)
    listed = ", ".join(f"{number} {name}" for number, name in numbers if number)
    sign, plain, colour = _MARKS[worst(counts)]
    text = f"{style.glyph(sign, plain)} {total} checks: {listed or 'none'}"
    return style.paint(text, f"bold {colour}" if colour != "dim" else "bold")


def worst(counts: CheckCounts) -> CheckState:
    for state in (CheckState.FAILED, CheckState.WARNING, CheckState.UNKNOWN):
        if getattr(counts, state.value):
            return state
    return CheckState.OK


def _head(found: Examination, style: Style) -> Iterator[str]:
    if found.replica:
        text = f"  server {inert(found.replica)}, version {inert(found.version)}"
        yield style.paint(f"{text}, examined in {found.took_s:.1f} s", "dim")


def _compact(title: str, checks: Sequence[Check], style: Style) -> Iterator[str]:
    """One line of what is well or not used, then every problem in full."""
    problems = [each for each in checks if each.state not in {CheckState.OK, CheckState.OFF}]
    fine = sum(each.state is CheckState.OK for each in checks)
    off = sum(each.state is CheckState.OFF for each in checks)
    counted = [f"{fine} ok"] if fine else []
    counted += [f"{off} off"] if off else []
    counted += [f"{len(problems)} to see below"] if problems else []
    states = {each.state for each in problems} or ({CheckState.OK} if fine else {CheckState.OFF})
    gravest = next(each for each in _GRAVITY if each in states)
    yield f"{_mark(gravest, style)} {title.ljust(_WIDEST)}  {', '.join(counted)}"
    for each in problems:
        yield from _check(each, style)


_GRAVITY = (
    CheckState.FAILED,
    CheckState.WARNING,
    CheckState.UNKNOWN,
    CheckState.OK,
    CheckState.OFF,
)


def _check(check: Check, style: Style) -> Iterator[str]:
    """Glyph and word, so that neither colour nor a special font is needed."""
    title = f"{check.state.value}: {inert(check.title)}  ({inert(check.id)})"
    yield f"  {_mark(check.state, style)} {title}"
    for piece in wrapped(inert(check.evidence), _room(style)):
        yield f"      {piece}"
    arrow = style.glyph("→", ">")
    for index, piece in enumerate(wrapped(inert(check.remedy), _room(style, 2))):
        yield f"      {' ' if index else arrow} {piece}"


def _room(style: Style, more: int = 0) -> int:
    return max((style.width or 100) - 6 - more, _LEAST_ROOM)


def _mark(state: CheckState, style: Style) -> str:
    sign, plain, colour = _MARKS[state]
    return style.paint(style.glyph(sign, plain), colour)
